"""What it costs to compute an array anew at each place where it is read."""

from collections.abc import Callable

from hotk._core import Atom, Jaxpr, JaxprEqn, Literal, inner_jaxprs, traits_of


# An array that takes so many additions and products for each of its entries is computed
# again in less time than it is written and read.
CHEAP = 16

_COSTLY = CHEAP + 1


def recomputation_costs(jaxpr: Jaxpr) -> list[int]:
    """Count the operations that each entry of each result of a program takes.

    Args:
        jaxpr: The program; its inputs and constants are there.

    Returns:
        A number for each result, larger than `CHEAP` where it is not cheap.
    """
    return _costs(jaxpr, [0] * len(jaxpr.invars))


def _costs(jaxpr: Jaxpr, inputs: list[int]) -> list[int]:
    costs = dict.fromkeys(jaxpr.constvars, 0)
    costs.update(zip(jaxpr.invars, inputs, strict=True))
    of = lambda atom: 0 if isinstance(atom, Literal) else costs[atom]
    for equation in jaxpr.eqns:
        costs.update(zip(equation.outvars, _results(equation, of), strict=True))
    return [of(atom) for atom in jaxpr.outvars]


def _results(equation: JaxprEqn, of: Callable[[Atom], int]) -> list[int]:
    operands = [of(atom) for atom in equation.invars]
    traits = traits_of(equation)
    inner = inner_jaxprs(equation.params.values())
    if traits.is_inlined and len(inner) == 1 and len(inner[0].invars) == len(operands):
        return _costs(inner[0], operands)
    name, power = equation.primitive.name, equation.params.get("y", 0)
    # a sum, a product, a choice or a move, in a cycle or less; a division takes ten
    quick = traits.fused and traits.is_straight and name != "div"
    if quick or name == "square" or (name == "integer_pow" and 0 < power <= 4):
        cost = 1 + sum(operands)
    else:
        cost = _COSTLY
    return [min(cost, _COSTLY)] * len(equation.outvars)
