"""Products of matrices with an operand that is known before the program runs.

XLA on CPUs reads beyond an operand that is one number, broadcast, where it fuses the
product with a sum.
"""

from typing import NamedTuple

import numpy as np

from hotk._core import (
    ClosedJaxpr,
    Literal,
    called_program,
    inner_jaxprs,
    needed_for,
    scan_counts,
    source_line,
    traits_of,
)


PRODUCTS = {"dot_general", "conv_general_dilated"}
# Besides what is elementwise: of one number everywhere they make the same again.
KEEP = {"broadcast_in_dim", "reshape", "transpose", "rev", "slice", "dynamic_slice"}
KEEP |= {"concatenate", "reduce_sum", "reduce_max", "gather", "select_n", "split"}


class Known(NamedTuple):
    """What is known of an array before the program runs.

    Attributes:
        fixed: All of it: no argument goes in.
        uniform: It is one number everywhere, which may be an argument.
    """

    fixed: bool
    uniform: bool

    def __and__(self, other):
        return Known(self.fixed and other.fixed, self.uniform and other.uniform)


ARGUMENT = Known(False, False)


def known_operands(closed: ClosedJaxpr) -> list[str]:
    """Name the products with a known operand, each with the line that it is from.

    What the function of a user holds is taken for an argument.
    """
    needed = needed_for(closed, [True] * len(closed.out_avals)).jaxpr
    found: dict[str, None] = {}
    _follow(needed, [ARGUMENT] * len(needed.invars), found)
    return list(found)


def _follow(jaxpr, given, found):
    env = dict.fromkeys(jaxpr.constvars, ARGUMENT)
    env.update(zip(jaxpr.invars, given, strict=True))

    def read(atom):
        known = Known(True, True) if isinstance(atom, Literal) else env[atom]
        return known._replace(uniform=known.uniform or np.size(atom.aval) == 1)

    for equation in jaxpr.eqns:
        name, inputs = equation.primitive.name, list(map(read, equation.invars))
        outputs = _outputs(equation, name, inputs, found)
        env.update(zip(equation.outvars, outputs, strict=True))
        if name in PRODUCTS:
            for atom, known in zip(equation.invars, inputs, strict=True):
                if any(known) and atom.aval.size > 1:
                    kind = "one number" if known.uniform else "a constant"
                    line = f"{kind}: {atom.aval.str_short()}, {source_line(equation)}"
                    found[line] = None
    return [read(atom) for atom in jaxpr.outvars]


def _outputs(equation, name, inputs, found):
    params = equation.params
    program = called_program(equation)
    if program is not None:
        return _follow(program.jaxpr, inputs, found)
    if name == "cond":
        branches = [
            _follow(branch.jaxpr, inputs[1:], found) for branch in params["branches"]
        ]
        met = [ends[0] & ends[-1] for ends in zip(*branches, strict=True)]
        return [known & inputs[0]._replace(uniform=True) for known in met]
    if name == "while":
        body, ahead = params["body_jaxpr"].jaxpr, params["cond_nconsts"]
        count = params["body_nconsts"]
        held, carry = inputs[ahead:][:count], inputs[ahead + count :]
        return _loop(body, held, carry, [], found)
    if name == "scan":
        ends = np.cumsum(scan_counts(params))
        rows = [known._replace(fixed=False) for known in inputs[ends[1] :]]
        held, carry = inputs[: ends[0]], inputs[ends[0] : ends[1]]
        return _loop(params["jaxpr"].jaxpr, held, carry, rows, found)
    for inner in inner_jaxprs(params.values()):  # of a solve, say
        _follow(inner, [ARGUMENT] * len(inner.invars), found)
    fixed = all(known.fixed for known in inputs) and "random" not in name
    same = traits_of(equation).elementwise or name in KEEP
    same = same and bool(inputs) and all(known.uniform for known in inputs)
    return [Known(fixed, same)] * len(equation.outvars)


def _loop(body, held, carry, rows, found):
    count = len(carry)
    start = body.invars[len(held) : len(held) + count]
    # what a step changes is known of no step
    carry = [
        known._replace(fixed=known.fixed and new is old)
        for known, old, new in zip(carry, start, body.outvars, strict=False)
    ]
    while True:
        ends = _follow(body, [*held, *carry, *rows], {})
        met = [
            a._replace(uniform=a.uniform and b.uniform)
            for a, b in zip(carry, ends, strict=False)
        ]
        if met == carry:
            return _follow(body, [*held, *carry, *rows], found)
        carry = met
