"""hotk: higher-order derivatives in JAX, prepared once, never stale.

`dir(hotk)` lists the names, `help(hotk.optim)` documents a module.
"""

import importlib
import os
import sys
import types
import typing

from hotk._capture import (
    Closure as Closure,
    Signature as Signature,
    static as static,
)
from hotk._core import (
    ChangingValueWarning as ChangingValueWarning,
    CurvatureMismatchWarning as CurvatureMismatchWarning,
    DensePatternWarning as DensePatternWarning,
    DtypeError as DtypeError,
    HotkError as HotkError,
    ModeError as ModeError,
    NestedDerivativesWarning as NestedDerivativesWarning,
    NotPositiveDefiniteError as NotPositiveDefiniteError,
    NotStationaryWarning as NotStationaryWarning,
    OpaqueWarning as OpaqueWarning,
    OutputError as OutputError,
    PreparationError as PreparationError,
    Shard as Shard,
    SingularHessianWarning as SingularHessianWarning,
    StructureError as StructureError,
    TooLargeError as TooLargeError,
    VerificationError as VerificationError,
    Where as Where,
    ZeroHessianWarning as ZeroHessianWarning,
)
from hotk._first import (
    derivative as derivative,
    divergence as divergence,
    gradient as gradient,
    jacobian as jacobian,
    jvp as jvp,
    value_and_derivative as value_and_derivative,
    value_and_divergence as value_and_divergence,
    value_and_gradient as value_and_gradient,
    value_and_jacobian as value_and_jacobian,
    value_and_jvp as value_and_jvp,
    value_and_vjp as value_and_vjp,
    vjp as vjp,
)
from hotk._mode import (
    FORWARD_OVER_FORWARD as FORWARD_OVER_FORWARD,
    FORWARD_OVER_REVERSE as FORWARD_OVER_REVERSE,
    REVERSE_OVER_FORWARD as REVERSE_OVER_FORWARD,
    REVERSE_OVER_REVERSE as REVERSE_OVER_REVERSE,
    Auto as Auto,
    Forward as Forward,
    Nested as Nested,
    Reverse as Reverse,
    Taylor as Taylor,
)
from hotk._prepared import (
    Prepared as Prepared,
    cache_info as cache_info,
    clear_cache as clear_cache,
    explain as explain,
    memory_budget as memory_budget,
    set_memory_budget as set_memory_budget,
)
from hotk._second import (
    cross_hessian as cross_hessian,
    cross_hvp as cross_hvp,
    hessian as hessian,
    hessian_diagonal as hessian_diagonal,
    hvp as hvp,
    quadratic_form as quadratic_form,
    second_derivative as second_derivative,
    value_gradient_and_hessian as value_gradient_and_hessian,
    value_gradient_and_hvp as value_gradient_and_hvp,
)


if typing.TYPE_CHECKING:
    from hotk._exported import (
        ExportedProgram as ExportedProgram,
        export as export,
        load as load,
    )
    from hotk._higher import (
        DifferentialOperator as DifferentialOperator,
        SymmetricTensor as SymmetricTensor,
        biharmonic as biharmonic,
        derivative_tensor as derivative_tensor,
        derivatives as derivatives,
        differential_operator as differential_operator,
        laplacian as laplacian,
        partial as partial,
        taylor as taylor,
        tvp as tvp,
        value_and_laplacian as value_and_laplacian,
    )
    from hotk.curvature import (
        empirical_fvp as empirical_fvp,
        fvp as fvp,
        ggnvp as ggnvp,
        sampled_fvp as sampled_fvp,
    )
    from hotk.estimate import Estimate as Estimate
    from hotk.linop import (
        Diagonal as Diagonal,
        EmpiricalFisherOperator as EmpiricalFisherOperator,
        FisherOperator as FisherOperator,
        GGNOperator as GGNOperator,
        HessianOperator as HessianOperator,
        Identity as Identity,
        KFACOperator as KFACOperator,
        SampledFisherOperator as SampledFisherOperator,
    )
    from hotk.optim import Minimum as Minimum
    from hotk.rule import (
        as_shards as as_shards,
        can_differentiate as can_differentiate,
        from_shards as from_shards,
        locate_nan as locate_nan,
        over_axis as over_axis,
        safe as safe,
    )
    from hotk.sparse import (
        SparseMatrix as SparseMatrix,
        sparse_ggn as sparse_ggn,
        sparse_hessian as sparse_hessian,
        sparse_jacobian as sparse_jacobian,
        sparse_lagrangian as sparse_lagrangian,
        sparsity as sparsity,
        value_and_sparse_jacobian as value_and_sparse_jacobian,
        value_gradient_and_sparse_hessian as value_gradient_and_sparse_hessian,
    )
    from hotk.statistics import (
        laplace_approximation as laplace_approximation,
    )

    from . import (
        curvature as curvature,
        estimate as estimate,
        interop as interop,
        linop as linop,
        optim as optim,
        plot as plot,
        rule as rule,
        sparse as sparse,
        statistics as statistics,
        testing as testing,
        verify as verify,
    )
else:
    # The same imports, each made when its name is first read: all of them at once take
    # a third of the time of JAX. `tests/test_import.py` compares the two lists.
    _LAZY = {
        "curvature": "empirical_fvp fvp ggnvp sampled_fvp",
        "estimate": "Estimate",
        "_exported": "ExportedProgram export load",
        "_higher": (
            "DifferentialOperator SymmetricTensor biharmonic derivative_tensor "
            "derivatives differential_operator laplacian partial taylor tvp "
            "value_and_laplacian"
        ),
        "linop": (
            "Diagonal EmpiricalFisherOperator FisherOperator GGNOperator "
            "HessianOperator Identity KFACOperator SampledFisherOperator"
        ),
        "optim": "Minimum",
        "rule": "as_shards can_differentiate from_shards locate_nan over_axis safe",
        "sparse": (
            "SparseMatrix sparse_ggn sparse_hessian sparse_jacobian sparse_lagrangian "
            "sparsity value_and_sparse_jacobian value_gradient_and_sparse_hessian"
        ),
        "statistics": "laplace_approximation",
    }
    _FOLDERS = {name: folder for folder in _LAZY for name in _LAZY[folder].split()}
    # Modules only, as in SciPy: `help(hotk)` prints each class that is named here.
    __all__ = ["curvature", "estimate", "interop", "linop", "optim", "plot", "rule"]
    __all__ += ["safe", "sparse", "statistics", "testing", "verify"]

    def __getattr__(name):
        if name in _FOLDERS:
            folder = importlib.import_module(f"hotk.{_FOLDERS[name]}")
            return globals().setdefault(name, getattr(folder, name))
        if name in __all__:
            return importlib.import_module(f"hotk.{name}")
        raise _core.no_name(sys.modules[__name__], name)

    def __dir__():
        here = [name for name in list(globals()) if not name.startswith("_")]
        own = [n for n in here if not isinstance(globals()[n], types.ModuleType)]
        return sorted({*own, *_FOLDERS, *__all__})

    # It checks every program from the first on.
    if os.environ.get("HOTK_VERIFY", "0") not in ("", "0"):
        importlib.import_module("hotk.verify")


__version__ = "0.1.0"
