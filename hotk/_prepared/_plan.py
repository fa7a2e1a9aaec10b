"""`Plan`: the modes to try; `derive`: where the formula of an operator meets `f`."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from hotk._capture import RULE_CAPTURES_TRACER, OpaqueReason, facts_of
from hotk._core import ClosedJaxpr, Leaf, Point, PyTreeDef, settings_for
from hotk._dense import Block
from hotk._mode import FORWARD_OVER_FORWARD, AbstractMode, Auto, Facts, Nested
from hotk._primitive import NotTransposableError, with_rules

from ._call import Call
from ._checks import as_one_number
from ._one_device import DeviceSum, modes_on_devices
from .warnings import kinks, warn_if_zero_hessian


ASKED = "asked for"


class Fallback(Exception):
    """The function cannot be traced with tracers in place of its captured arrays.

    Attributes:
        reason: Why.
    """

    def __init__(self, reason: OpaqueReason) -> None:
        super().__init__(reason)
        self.reason = reason


class Plan(NamedTuple):
    """A mode to try, the reason for it, and how many directions at once.

    Attributes:
        mode: The mode.
        why: The reason for it.
        block: How many directions at once, and how the result is divided.
        derive_rules: Whether functions of `jax.custom_vjp` get the forward rule that
            they lack: the transpose of their reverse rule.
        by_body: Whether they get the derivative of their body instead.
        extremes: Whether a derivative goes through a maximum or a minimum.
        kinks: The places where a function that is piecewise linear has its kinks.
    """

    mode: AbstractMode
    why: str
    block: Block
    derive_rules: bool = False
    by_body: bool = False
    extremes: bool = False
    kinks: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Name the mode, and whether a rule is derived."""
        how = "by their bodies" if self.by_body else "by transposing"
        return (
            f"{self.mode}, forward rules {how}" if self.derive_rules else str(self.mode)
        )


def plans(call: Call, closed: ClosedJaxpr, y: PyTree) -> Sequence[Plan]:
    """List the modes to try for a call, best first.

    Args:
        call: The call.
        closed: The program of its function.
        y: What the function returns, or the shapes of it.

    Raises:
        ModeError: If its derivatives would be those of one device of several.
    """
    definition, options = call.options.definition, call.options
    facts, block = Facts.of(closed.jaxpr), options.block_size
    if isinstance(options.mode, Auto):
        found = definition.candidates(facts, call.sizes(y))
    else:
        found = [(options.mode, ASKED)]
    found = modes_on_devices(call, closed.jaxpr, found)
    bent = kinks(closed.jaxpr) if definition.curved(options.order) else ()
    plain = [
        Plan(mode, why, block, extremes=facts.extremes, kinks=bent)
        for mode, why in found
    ]
    if not facts.custom_vjps:
        return plain
    # The body may have another derivative than the rule: it comes last.
    what = f"; the forward rule of the custom_vjp at {facts.custom_vjps[0]} is "
    how = what + "the transpose of its reverse rule"
    with_rules = [
        plan._replace(why=plan.why + how, derive_rules=True) for plan in plain
    ]
    if not isinstance(options.mode, Auto):
        return [plain[0], with_rules[0]]
    how = what + "the derivative of its body"
    last = [
        plan._replace(why=plan.why + how, derive_rules=True, by_body=True)
        for plan in plain
    ]
    # The best mode by a transposed rule is still cheaper than the second best as it is.
    return [plain[0], with_rules[0], *plain[1:], *with_rules[1:], *last]


def may_try(plan: Plan, failures: Iterable[Exception]) -> bool:
    """Whether a mode may be tried after others have failed.

    The derivative of a body stands in for a reverse rule that cannot be transposed. It
    does not for one that raises, in code of the user or in what that calls.
    """
    failed = list(failures)
    if plan.derive_rules and RULE_CAPTURES_TRACER in map(str, failed):
        return False  # a rule that is transposed captures it as well, unseen
    if not plan.by_body:
        return True
    stands_in = any(isinstance(error, NotTransposableError) for error in failed)
    return stands_in and not any(map(raised_by_user, failed))


def raised_by_user(error: Exception) -> bool:
    """Whether an error was raised by code of the user, and not by a library."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and not facts_of(trace.tb_frame.f_code).library


def first_line(error: BaseException) -> str:
    """Return the class of an error and the first line of its message, cut short."""
    if isinstance(error, NotTransposableError) and error.__cause__ is not None:
        return first_line(error.__cause__)  # what JAX says of the rule
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0] if lines else ''}"
    return text if len(text) <= 160 else text[:160].rsplit(" ", 1)[0] + " ..."


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
