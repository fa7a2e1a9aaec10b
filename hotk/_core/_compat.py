"""The only file that touches what JAX does not promise: each use with its reason."""

from collections.abc import Hashable, Iterator
from typing import Any

import jax
import numpy as np
from jax._src import (
    api_util as _api_util,
    config as _config,
    core as _jax_core,
    linear_util as _linear_util,
    source_info_util as _source,
)
from jax._src.interpreters import partial_eval as _partial_eval


try:  # jax.extend is the semi-public home of these names
    from jax.extend.core import (
        ClosedJaxpr,
        Jaxpr,
        Literal,
        jaxpr_as_fun as jaxpr_as_fun,
    )
except ImportError:  # pragma: no cover
    from jax._src.core import (  # type: ignore[assignment]
        ClosedJaxpr,
        Jaxpr,
        Literal,
        jaxpr_as_fun as jaxpr_as_fun,
    )


# The concrete array class: `type(a) is ARRAY` is 20x faster than `isinstance`, which
# also answers yes for tracers.
ARRAY: type = type(jax.numpy.zeros(()))

# What `jax.jit` returns; it has no public name, and is told apart by its type alone.
JITTED: type = type(jax.jit(lambda: None))

Tracer = _jax_core.Tracer

# What JAX raises when Python asks a tracer for its value.
NEEDS_VALUE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


def trace_context() -> Hashable:
    """Return everything in JAX's configuration that a trace depends on."""
    return _config.trace_context()


def unkeyed_setting() -> Hashable:
    """Return how random keys are made: JAX leaves that out of `trace_context`."""
    return _config.default_prng_impl.value


def current_settings() -> tuple[str, ...]:
    """Return the settings that a user changes and a program's numbers depend on."""
    names = ("enable_x64", "default_matmul_precision", "numpy_dtype_promotion")
    return tuple(f"{name}={getattr(jax.config, f'jax_{name}')}" for name in names)


def in_trace() -> bool:
    """Whether an outer transformation is tracing now."""
    return not _jax_core.trace_state_clean()


def varies_by_device(arrays: Any) -> bool:
    """Whether `shard_map` has typed any of these by the mesh axes it varies along.

    A program traced without such types has lost where the types change, so it has to be
    traced for them. The type has no public reader in every version.
    """
    for array in arrays:
        kind = getattr(jax.typeof(array), "manual_axis_type", None)
        if getattr(kind, "varying", None):
            return True
    return False


def cache_size(jitted: Any) -> int:
    """Return the number of signatures that a jitted function was called with."""
    return jitted._cache_size()


def sub_jaxprs(value: Any) -> Iterator[Any]:
    """Yield the jaxprs inside one parameter of an equation."""
    if isinstance(value, ClosedJaxpr):
        yield value.jaxpr
    elif isinstance(value, Jaxpr):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from sub_jaxprs(item)


def equations(jaxpr: Any) -> Iterator[Any]:
    """Yield all equations of a jaxpr, those of inner jaxprs included."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in sub_jaxprs(value):
                yield from equations(inner)


def tracers_inside(closed: Any) -> bool:
    """Whether a program holds a tracer as a constant: one that has leaked into it."""
    if any(isinstance(constant, Tracer) for constant in closed.consts):
        return True
    for equation in closed.jaxpr.eqns:
        for value in equation.params.values():
            for item in value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(item, ClosedJaxpr) and tracers_inside(item):
                    return True
    return False


def check_forward(closed: Any) -> None:
    """Refuse a program that holds the forward derivative of a `custom_vjp` function.

    JAX leaves a mark in the program and complains when the program is lowered; only
    then would the next nesting be tried.
    """
    for equation in equations(closed.jaxpr):
        if equation.primitive.name == "custom_lin":
            raise TypeError(
                "can't apply forward-mode autodiff (jvp) to a custom_vjp function."
            )


def source_line(equation: Any) -> str:
    """Return `file:line (function)` of the user's code that made an equation."""
    try:
        return _source.summarize(equation.source_info)
    except Exception:
        return "unknown place"


# Parameters that do not change what a program computes, only how it is named.
_NAMES = frozenset({"name", "debug_info", "fwd_name", "keep_unused"})
# Rules of functions with their own derivative: irrelevant once a program is only run.
_RULES = frozenset(
    {"jvp_jaxpr_fun", "jvp_jaxpr_thunk", "fwd_jaxpr_thunk", "bwd", "out_trees"}
)
_CUSTOM = ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")
_CONTENT_LIMIT = 1 << 24


class Unrecognized(Exception):
    """A program holds something that cannot be compared by value."""


def fingerprint(closed: Any, *, lift: bool) -> tuple[Hashable, tuple[Any, ...]]:
    """Return a key under which equal programs are equal, and the constants lifted out.

    Two programs with the same key compute the same numbers; their derivative rules may
    differ, so the key is good for running a program, not for differentiating it.

    Args:
        closed: A closed jaxpr.
        lift: Whether the constants of the outermost jaxpr are taken out (they become
            arguments); otherwise they are part of the key, bit by bit.

    Raises:
        Unrecognized: If a parameter cannot be compared by value.
    """
    key: list[Hashable] = []
    if lift:
        key.append(tuple(map(_aval, closed.jaxpr.constvars)))
        constants = tuple(closed.consts)
    else:
        key.append(tuple(map(_content, closed.consts)))
        constants = ()
    _print_jaxpr(closed.jaxpr, key)
    return tuple(key), constants


def _aval(variable: Any) -> Hashable:
    return variable.aval


def _content(value: Any) -> Hashable:
    if isinstance(value, Tracer):
        raise Unrecognized("a tracer among the constants")
    if isinstance(value, jax.Array) and jax.numpy.issubdtype(
        value.dtype, jax.dtypes.extended
    ):
        value = jax.random.key_data(value)
    array = np.asarray(value)
    if array.dtype == object or array.nbytes > _CONTENT_LIMIT:
        raise Unrecognized("a constant without comparable content")
    weak = bool(getattr(value, "weak_type", False))
    return (type(value), array.shape, array.dtype.name, weak, array.tobytes())


def same_program(first: Any, second: Any, places: list[Any]) -> bool:
    """Whether two programs are equal once constants of the second are arguments.

    Args:
        first: A closed jaxpr without such constants.
        second: A closed jaxpr with fewer arguments and more constants.
        places: For each argument of the first, the value of the constant that takes its
            place in the second, or `None` for an argument.
    """
    arguments = iter(second.jaxpr.invars)
    constants = list(zip(second.jaxpr.constvars, second.consts, strict=True))
    inputs: list[Any] = []
    for place in places:
        if place is None:
            inputs.append(next(arguments))
            continue
        found = [
            i for i, (_, value) in enumerate(constants) if _same_array(value, place)
        ]
        inputs.append(constants.pop(found[0])[0] if found else object())
    keys: tuple[list[Hashable], list[Hashable]] = ([], [])
    try:
        kept = tuple(_content(value) for _, value in constants)
        if kept != tuple(map(_content, first.consts)):
            return False
        for closed, key, order in (
            (first, keys[0], [*first.jaxpr.invars, *first.jaxpr.constvars]),
            (second, keys[1], [*inputs, *(variable for variable, _ in constants)]),
        ):
            _print_equations(closed.jaxpr, key, {v: i for i, v in enumerate(order)})
    except (Unrecognized, KeyError):
        return False
    return keys[0] == keys[1]


def _same_array(constant: Any, place: Any) -> bool:
    if np.shape(constant) != np.shape(place):
        return False
    return np.asarray(constant).astype(place.dtype).tobytes() == place.tobytes()


def _print_jaxpr(jaxpr: Any, key: list[Hashable]) -> None:
    number: dict[Any, int] = {}
    for variable in (*jaxpr.constvars, *jaxpr.invars):
        number[variable] = len(number)
        key.append(_aval(variable))
    _print_equations(jaxpr, key, number)


def _print_equations(jaxpr: Any, key: list[Hashable], number: dict[Any, int]) -> None:
    def atom(value: Any) -> Hashable:
        if isinstance(value, Literal):
            return ("literal", _aval(value), _content(value.val))
        return number[value]

    for equation in jaxpr.eqns:
        key.append(equation.primitive)
        key.append(_context(equation.ctx))
        key.append(tuple(map(atom, equation.invars)))
        custom = equation.primitive.name in _CUSTOM
        for name in sorted(equation.params):
            if name in _NAMES or (custom and name in _RULES):
                continue
            key.append(name)
            _print_parameter(equation.params[name], key)
        for variable in equation.outvars:
            number[variable] = len(number)
            key.append(_aval(variable))
    key.append(tuple(map(atom, jaxpr.outvars)))


def _context(context: Any) -> Hashable:
    """Return the settings that an equation was traced under and keeps."""
    metadata = getattr(context, "xla_metadata", None)
    return (
        getattr(context, "compute_type", None),
        getattr(context, "threefry_partitionable", None),
        str(metadata) if metadata else None,
    )


def _print_parameter(value: Any, key: list[Hashable]) -> None:
    if isinstance(value, ClosedJaxpr):
        key.append(tuple(map(_content, value.consts)))
        _print_jaxpr(value.jaxpr, key)
    elif isinstance(value, Jaxpr):
        _print_jaxpr(value, key)
    elif isinstance(value, (tuple, list)):
        key.append((type(value), len(value)))
        for item in value:
            _print_parameter(item, key)
    elif isinstance(value, dict):
        key.append((dict, len(value)))
        for name, item in value.items():
            key.append(name)
            _print_parameter(item, key)
    elif isinstance(value, (np.ndarray, np.generic, jax.Array)):
        key.append(_content(value))
    elif isinstance(value, float):
        key.append((float, value.hex()))
    else:
        try:
            hash(value)
        except TypeError as error:
            raise Unrecognized(f"a parameter of type {type(value).__name__}") from error
        key.append((type(value), value))


def stage_moving(function: Any, arrays: list[Any]) -> tuple[Any, tuple[Any, ...], Any]:
    """Trace a function so that what does not depend on `arrays` is computed now.

    `jax.make_jaxpr` stages every operation, so that `if c > 0` fails for a captured
    array `c`; without a trace it works. Partial evaluation does as eager code does.

    Returns:
        A closed jaxpr whose first arguments are constants, those constants, and the
        structure of the result.
    """
    trees = []

    def flat(*moving: Any) -> list[Any]:
        leaves, tree = jax.tree.flatten(function(list(moving)))
        trees.append(tree)
        return leaves

    avals = [jax.typeof(array) for array in arrays]
    debug = _api_util.debug_info("stage_moving", flat, avals, {})
    unknown = [_partial_eval.PartialVal.unknown(aval) for aval in avals]
    jaxpr, _, constants = _partial_eval.trace_to_jaxpr_nounits(
        _linear_util.wrap_init(flat, debug_info=debug), unknown, instantiate=True
    )
    jaxpr = _partial_eval.convert_constvars_jaxpr(jaxpr)
    closed = jaxpr if hasattr(jaxpr, "consts") else ClosedJaxpr(jaxpr, ())
    return closed, tuple(constants), trees[0]


def run_jaxpr(closed: Any, constants: Any, arguments: Any) -> list[Any]:
    """Evaluate a jaxpr whose outermost constants are given as arguments.

    Functions with their own derivative rule are run by their body, so that the program
    made of this keeps nothing of the user's rules alive.
    """
    environment: dict[Any, Any] = {}

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else environment[atom]

    jaxpr = closed.jaxpr
    inputs = (*jaxpr.constvars, *jaxpr.invars)
    environment.update(zip(inputs, (*constants, *arguments), strict=True))
    for equation in jaxpr.eqns:
        inputs = [read(atom) for atom in equation.invars]
        body = _inlined(equation)
        if body is not None:
            outputs = run_jaxpr(body, body.consts, inputs)
        else:
            parameters = equation.primitive.get_bind_params(equation.params)
            with (
                _source.user_context(equation.source_info.traceback),
                equation.ctx.manager,
            ):
                outputs = equation.primitive.bind(*inputs, **parameters)
            if not equation.primitive.multiple_results:
                outputs = [outputs]
        environment.update(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def inner_constants(closed: Any) -> bool:
    """Whether a jitted function inside a program has captured arrays."""
    for equation in closed.jaxpr.eqns:
        body = _inlined(equation)
        if body is not None and (body.consts or inner_constants(body)):
            return True
    return False


def inlined(closed: Any) -> Any:
    """Run jitted functions in place, so that all their constants are the program's."""
    avals = [variable.aval for variable in closed.jaxpr.invars]
    shapes = [
        jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in avals
    ]
    return jax.make_jaxpr(lambda *a: run_jaxpr(closed, closed.consts, a))(*shapes)


def _inlined(equation: Any) -> Any:
    """Return the body of a call that is run in place, or `None`."""
    name = equation.primitive.name
    if name in ("jit", "pjit"):
        return equation.params.get("jaxpr")
    body = equation.params.get("call_jaxpr")
    return body if name in _CUSTOM and isinstance(body, ClosedJaxpr) else None
