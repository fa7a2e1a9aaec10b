"""`derive`: the one place where the formula of an operator meets a function."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from hotk._core import Leaf, Point, PyTreeDef, settings_for
from hotk._mode import FORWARD_OVER_FORWARD, Nested
from hotk._primitive import with_rules

from ._call import Call
from ._checks import as_one_number
from ._one_device import DeviceSum
from ._plan import Plan
from .warnings import warn_if_zero_hessian


class Evaluation(Protocol):
    """What evaluates the function of a call: traced for all operators, or shared."""

    def __call__(
        self,
        call: Call,
        captured: Sequence[Leaf],
        x: Sequence[Leaf],
        args: Sequence[Leaf],
    ) -> tuple[PyTree, PyTree]:
        """Return value and auxiliary output."""
        ...


class Derived(NamedTuple):
    """The program of an operator itself: it is run, and not differentiated.

    Attributes:
        run: From the captured arrays and those of the arguments to the leaves of the
            result.
        out_tree: The structure of the result.
    """

    run: Callable[..., Sequence[Leaf]]
    out_tree: PyTreeDef


def derive(
    call: Call,
    evaluation: Evaluation | Derived | None,
    captured: Sequence[Leaf],
    arrays: Sequence[Leaf],
    plan: Plan,
) -> PyTree:
    """Evaluate the operator of a call.

    Args:
        call: The function and the structure of its arguments.
        evaluation: Evaluates the function; `None` to run the function itself. Or what
            the operator was derived to before.
        captured: In place of the captured arrays.
        arrays: In place of the arrays among the arguments.
        plan: The mode to use, and how.
    """
    if isinstance(evaluation, Derived):
        return evaluation.out_tree.unflatten(evaluation.run(*captured, *arrays))
    leaves, direction, args = call.unflatten(arrays)
    point, differentiated = call.point(leaves)
    point = jax.tree.map(jnp.asarray, point)
    # A point of 64 bits keeps them where `jax_enable_x64` is off; constants of its
    # dtype do not. It is on for the derivative, and as the user has it for `f`.
    deriving, running = settings_for(jax.tree.leaves(point))
    wants = call.options.definition.wants

    def f(moving: Point) -> tuple[PyTree, PyTree]:
        with running():
            whole = call.merge(leaves, differentiated, moving)
            x, given = call.arrays_only(whole, 0), call.arrays_only(args, call.ahead)
            if evaluation is None:
                y, aux = call.evaluate_as_is(captured, x, given)
            else:
                y, aux = evaluation(call, captured, x, given)
            # The program of `f` is that of all operators: its value is as `f` made it.
            return as_one_number(y, wants), aux

    if plan.derive_rules or plan.extremes:
        f = with_rules(f, derive=plan.derive_rules, by_body=plan.by_body)
    over_devices = DeviceSum(call, point)
    total = over_devices.of(f)

    def checked(v: PyTree) -> PyTree:
        return call.direction(v, leaves, differentiated, point, arrays)

    with deriving():
        takes = call.options.definition.takes
        if takes == "v":
            direction = checked(direction)
        elif takes == "vs":
            direction = tuple(map(checked, direction))
        elif takes == "u":
            y, _ = jax.eval_shape(total, point)
            direction = call.cotangent(direction, y, arrays)
        results = call.options.evaluate(total, point, direction, plan.mode, plan.block)
        result = call.options.arrange(over_devices.results(results))
        if plan.kinks:
            _warn_of_kinks(call, f, point, plan)
    return result


def _warn_of_kinks(
    call: Call,
    f: Callable[[Point], tuple[PyTree, PyTree]],
    point: Point,
    plan: Plan,
) -> None:
    mode = plan.mode if isinstance(plan.mode, Nested) else FORWARD_OVER_FORWARD
    product = lambda total, v: mode.product(total, point, v)[2]
    name = call.options.definition.call()
    warn_if_zero_hessian(name, call.f, f, point, product, plan.kinks)
