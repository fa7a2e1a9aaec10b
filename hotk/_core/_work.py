"""How much work a program is, counted in numbers that are computed."""

import math

from ._compat import Jaxpr, JaxprEqn, ShapedArray, inner_jaxprs
from ._primitives import ProgramKind, traits_of


# Up to so many unknowns a matrix is formed and factorized where an iteration would do:
# it is exact, takes seconds at most and, in float64, 32 MiB.
LARGEST_FACTOR = 2048


def work(jaxpr: Jaxpr) -> int:
    """Count the numbers that a program computes, with all terms of its products."""
    return sum(map(_equation_work, jaxpr.eqns))


def _equation_work(equation: JaxprEqn) -> int:
    inside = sum(map(work, inner_jaxprs(equation.params.values())))
    if inside:
        scan = traits_of(equation).program is ProgramKind.SCAN
        return inside * (equation.params["length"] if scan else 1)
    results = sum(map(_size, equation.outvars))
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        aval = equation.invars[0].aval
        assert isinstance(aval, ShapedArray)
        return results * math.prod(aval.shape[d] for d in contracted)
    if equation.primitive.name == "conv_general_dilated":
        kernel = equation.invars[1].aval
        assert isinstance(kernel, ShapedArray)
        outputs = kernel.shape[equation.params["dimension_numbers"].rhs_spec[0]]
        return results * max(kernel.size // max(outputs, 1), 1)
    return results


def _size(variable: object) -> int:
    aval = getattr(variable, "aval", None)
    return aval.size if isinstance(aval, ShapedArray) else 0
