"""Second-order optimizers as transformations of optax.

`help(hotk.optim.DiagonalState)` documents one of these:

    DiagonalState GlobalizedState KFACState LineSearchState LinearSolver Minimum
    NaturalGradientState NewtonCGState NewtonState Outcome PreconditionerState Stop
    adahessian apply_gradients cubic_newton kfac levenberg_marquardt minimize
    natural_gradient newton newton_cg nnx_step scale_by_adahessian scale_by_cubic_newton
    scale_by_levenberg_marquardt scale_by_line_search scale_by_natural_gradient
    scale_by_newton scale_by_newton_cg scale_by_sophia scale_by_trust_region sophia
    step_info strip_extra_args trust_region with_params
"""

from ._adahessian import (
    adahessian as adahessian,
    scale_by_adahessian as scale_by_adahessian,
)
from ._cubic_newton import (
    cubic_newton as cubic_newton,
    scale_by_cubic_newton as scale_by_cubic_newton,
)
from ._extra_args import (
    strip_extra_args as strip_extra_args,
    with_params as with_params,
)
from ._gauss_newton import (
    levenberg_marquardt as levenberg_marquardt,
    scale_by_levenberg_marquardt as scale_by_levenberg_marquardt,
)
from ._globalized import GlobalizedState as GlobalizedState
from ._kfac import kfac as kfac
from ._kfac_step import KFACState as KFACState
from ._line_search import (
    LineSearchState as LineSearchState,
    scale_by_line_search as scale_by_line_search,
)
from ._linear_solver import LinearSolver as LinearSolver
from ._local import Outcome as Outcome
from ._minimize import minimize as minimize, step_info as step_info
from ._minimum import Minimum as Minimum, Stop as Stop
from ._moments import DiagonalState as DiagonalState
from ._natural_gradient import (
    NaturalGradientState as NaturalGradientState,
    natural_gradient as natural_gradient,
    scale_by_natural_gradient as scale_by_natural_gradient,
)
from ._newton import (
    NewtonState as NewtonState,
    newton as newton,
    scale_by_newton as scale_by_newton,
)
from ._newton_cg import (
    NewtonCGState as NewtonCGState,
    newton_cg as newton_cg,
    scale_by_newton_cg as scale_by_newton_cg,
)
from ._preconditioner import PreconditionerState as PreconditionerState
from ._sophia import scale_by_sophia as scale_by_sophia, sophia as sophia
from ._train_state import apply_gradients as apply_gradients, nnx_step as nnx_step
from ._trust_region import (
    scale_by_trust_region as scale_by_trust_region,
    trust_region as trust_region,
)
