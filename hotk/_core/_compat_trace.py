"""What JAX does not promise of traces and of what it keeps in them."""

import contextlib
from collections.abc import (
    Callable,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any

import jax
import numpy as np
from jax._src import (
    api_util as _api_util,
    core as _jax_core,
    custom_derivatives as _custom,
    linear_util as _linear_util,
    source_info_util as _source,
)
from jax._src.interpreters import (
    ad as _ad,
    batching as _batching,
    partial_eval as _partial_eval,
)
from jaxtyping import Array, PyTree

from ._axes import crosses_devices, names_axes
from ._compat import (
    AbstractValue,
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Primitive,
    Tracer,
    equations,
    inner_jaxprs,
)
from ._interpret import bound, evaluate
from ._primitives import TRAITS, traits_of


def source_frames(equation: JaxprEqn) -> Iterator[tuple[str, int, str]]:
    """Yield file, line and function of the calls that made an equation, inner first."""
    for frame in _source.user_frames(equation.source_info.traceback):
        yield frame.file_name, frame.start_line, frame.function_name


@contextlib.contextmanager
def abandoned_if_failed() -> Iterator[None]:
    """Empty the trace that is going on if an error comes out of it.

    JAX keeps the tracers of a failed trace that has met a constant for ever.
    """
    trace = _jax_core.trace_ctx.trace
    try:
        yield
    except BaseException:  # a `KeyboardInterrupt` leaves as much behind
        if isinstance(trace, _partial_eval.DynamicJaxprTrace):
            trace.invalidate()
        raise


class _Eager(_partial_eval.DynamicJaxprTrace):
    """A trace of what depends on its arguments alone; all else is done at once."""

    __slots__ = ()
    # Whether what calls the host is done at once as well.
    host = True

    def _is_staged(self, arrays: Iterable[object]) -> bool:
        return any(isinstance(a, Tracer) and a._trace is self for a in arrays)

    def stage_value(self, val: object) -> object:
        outside: Any = self.parent_trace or _jax_core.eval_trace
        if self._is_staged((val,)):
            return super().stage_value(val)
        if isinstance(outside, _jax_core.EvalTrace) and isinstance(val, np.ndarray):
            return _placed(val)
        return outside.stage_value(val)

    def process_primitive(
        self,
        primitive: Primitive,
        arrays: Sequence[Any],
        params: dict[str, Any],
        /,
    ) -> object:
        outside: Any = self.parent_trace or _jax_core.eval_trace
        if self._is_staged(arrays) or not (self.host or _no_host(primitive, params)):
            return super().process_primitive(primitive, arrays, params)
        if isinstance(outside, _jax_core.EvalTrace) and names_axes(params):
            # A number that is to vary over devices: there are none outside of the mesh.
            return super().process_primitive(primitive, arrays, params)
        if _is_of_integers(arrays, params):
            # Indices: those that an outer trace computes would not be known.
            outside = _jax_core.eval_trace
            if primitive.name == "iota" and _is_plain(**params):
                return _placed(_iota(**params))
        with _jax_core.set_current_trace(outside):
            return outside.process_primitive(primitive, arrays, params)

    # A function with rules is run here, as it may have captured what is traced: without
    # a tracer among its arguments there is nothing to derive.
    def process_custom_jvp_call(self, *args: Any, **options: Any) -> Any:
        if not any(isinstance(a, Tracer) for a in args[-1]):
            return args[1].call_wrapped(*args[-1])
        return super().process_custom_jvp_call(*self._eagerly(*args), **options)

    def process_custom_vjp_call(self, *args: Any, **options: Any) -> Any:
        if not any(isinstance(a, Tracer) for a in args[-1]):
            return args[1].call_wrapped(*args[-1])
        return super().process_custom_vjp_call(*self._eagerly(*args), **options)

    def _eagerly(self, primitive: Primitive, function: Any, *rest: Any) -> list[Any]:
        """Have JAX trace the body as this trace: what it keeps is read by its rules."""

        def run(inner: Callable[..., object], *arrays: Any) -> object:
            trace = _jax_core.trace_ctx.trace
            if isinstance(trace, _partial_eval.DynamicJaxprTrace):
                trace.__class__ = type(self)
            return inner(*arrays)

        return [primitive, function.wrap(run, (), None), *rest]


class _EagerButForHost(_Eager):
    """The same for a program that is kept: it calls the host each time it is run."""

    __slots__ = ()
    host = False


def _placed(numbers: np.ndarray) -> Array:
    """Hand an array to JAX, which would compile the identity for it."""
    dtype = jax.dtypes.canonicalize_dtype(numbers.dtype)
    with _jax_core.set_current_trace(_jax_core.eval_trace):
        # a copy, as it may be written to
        return jax.device_put(np.array(numbers, dtype=dtype, copy=True))


def _is_plain(shape: tuple[object, ...], sharding: object, **_: object) -> bool:
    """Whether `_iota` has all it needs: sizes may be symbols, in what is exported."""
    return sharding is None and all(type(size) is int for size in shape)


def _iota(
    dtype: np.dtype, shape: tuple[int, ...], dimension: int, sharding: None
) -> np.ndarray:
    """Count along an axis: JAX would compile a program for each shape."""
    del sharding
    counted = np.arange(shape[dimension]).astype(dtype)
    others = [axis for axis in range(len(shape)) if axis != dimension]
    return np.broadcast_to(np.expand_dims(counted, others), shape)


def _is_of_integers(arrays: Sequence[Any], params: Mapping[str, Any]) -> bool:
    """Whether integers and Booleans are computed with, all of them known here."""
    if any(isinstance(a, Tracer) for a in arrays) or names_axes(params):
        return False
    if not jax.sharding.get_abstract_mesh().empty:
        return False  # JAX computes nothing at once for a mesh without devices
    asked = (params.get(name) for name in ("dtype", "new_dtype"))
    types = [*map(jax.numpy.result_type, arrays), *(t for t in asked if t is not None)]
    return bool(types) and all(getattr(t, "kind", "V") in "iub" for t in types)


def _no_host(primitive: Primitive, parameters: Mapping[str, object]) -> bool:
    if primitive.name in TRAITS and TRAITS[primitive.name].on_host:
        return False
    inner = inner_jaxprs(parameters.values())
    return not any(traits_of(e).on_host for j in inner for e in equations(j))


def trace_once(
    function: Callable[..., PyTree], *arguments: PyTree, kept: bool
) -> tuple[ClosedJaxpr, PyTree]:
    """Run a function once, and return its program and the shapes of its results.

    What does not depend on the arguments is computed now, as it is without a trace:
    `jax.make_jaxpr` stages every operation, so that `if c > 0` fails for a captured
    array `c`, and what the function keeps for later is a dead tracer.

    Args:
        function: The function.
        *arguments: Trees of arrays, numbers and shapes.
        kept: Whether the program is run more than once: then it calls the host itself.
    """
    leaves, tree = jax.tree.flatten(arguments)
    structures = []

    def flat(*moving: Array) -> list[Array]:
        # JAX makes the trace itself and takes none; so its class is changed here.
        _jax_core.trace_ctx.trace.__class__ = _EagerButForHost if kept else _Eager
        with abandoned_if_failed():
            results, structure = jax.tree.flatten(function(*tree.unflatten(moving)))
        structures.append(structure)
        return [
            a if isinstance(a, jax.Array) else jax.numpy.asarray(a) for a in results
        ]

    types = [_jax_core.shaped_abstractify(leaf) for leaf in leaves]
    debug = _api_util.debug_info("trace_once", function, arguments, {})
    wrapped = _linear_util.wrap_init(flat, debug_info=debug)
    jaxpr, _, constants = _partial_eval.trace_to_jaxpr_dynamic(wrapped, types)
    closed = ClosedJaxpr(jaxpr, constants)
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in closed.out_avals]
    return closed, structures[0].unflatten(shapes)


# What JAX makes of a rule of the user: each leads to it.
_MACHINERY = tuple(
    module.__name__
    for module in (_partial_eval, _linear_util, _custom, _jax_core, _batching, _ad)
)
_RULES = ("jvp_jaxpr_fun", "jvp_jaxpr_thunk", "fwd_jaxpr_thunk", "bwd")
_FLAT = frozenset({"_flatten_jvp", "_flatten_fwd", "_flatten_bwd"})


def rule_functions(
    equation: JaxprEqn,
) -> tuple[list[Callable[..., object]], tuple[Hashable, ...]]:
    """Return what the rules of an equation with a derivative of its own are made of.

    JAX keeps them in closures of its own. Beside them stand the axes along which they
    are mapped.

    Raises:
        LookupError: If they are used in a way that is not known.
    """
    waiting = [equation.params[name] for name in _RULES if name in equation.params]
    functions: list[Callable[..., object]] = []
    mapped: list[Hashable] = []
    known = set()
    while waiting:
        here = waiting.pop()
        # A trace would lead to all of its tracers, none of which is part of the rule.
        if id(here) in known or isinstance(here, _jax_core.Trace):
            continue
        known.add(id(here))
        if isinstance(here, _linear_util.WrappedFun):
            if here.params:
                raise LookupError("parameters of a rule")
            for transform, options in here.transforms:
                if getattr(transform, "__name__", "") not in _FLAT:
                    mapped.append((transform, *map(_axes, options)))
            waiting.append(here.f)
        elif isinstance(here, (tuple, list)):
            waiting.extend(here)
        # What JAX wraps around a rule is gone through; what is left is the user's.
        elif getattr(here, "__module__", None) in _MACHINERY and (
            getattr(here, "__closure__", None)
        ):
            waiting.extend(cell.cell_contents for cell in here.__closure__)
        elif callable(here):
            functions.append(here)
    if not functions:
        raise LookupError("a rule that is not found")
    return functions, tuple(mapped)


def _axes(option: object) -> Hashable:
    """Return what a rule is mapped along, as a value."""
    if isinstance(option, (tuple, list)):
        return tuple(map(_axes, option))
    if isinstance(option, (_batching.AxisData, _jax_core.TraceTag)):
        return option
    if option is None or type(option) in (int, str, bool):
        return option
    raise LookupError("a rule given more than arrays")


def program_for_types(
    function: Callable[[list[Any]], list[Any]], types: Sequence[AbstractValue]
) -> Jaxpr:
    """Return a program whose outputs have the shardings and mesh axes of the results.

    `jax.eval_shape` takes shapes and dtypes alone. What does not depend on the arrays
    is computed, as the function may keep it.

    Args:
        function: A function of a list of arrays that returns a list of them.
        types: The types of the arrays.
    """

    def flat(*arrays: Array) -> list[Any]:
        _jax_core.trace_ctx.trace.__class__ = _Eager
        return function(list(arrays))

    debug = _api_util.debug_info("program_for_types", flat, types, {})
    wrapped = _linear_util.wrap_init(flat, debug_info=debug)
    return _partial_eval.trace_to_jaxpr_dynamic(wrapped, list(types))[0]


def output_types(
    function: Callable[[list[Any]], list[Any]], types: Sequence[AbstractValue]
) -> list[AbstractValue]:
    """Return the types of a function's results; arguments of `program_for_types`."""
    return [variable.aval for variable in program_for_types(function, types).outvars]


def known_results(
    closed: ClosedJaxpr, known: Sequence[bool], asked: Sequence[bool]
) -> dict[int, np.ndarray]:
    """Return the results of a program that do not depend on its unknown inputs.

    JAX splits programs so, loops included, but not in public.

    Args:
        closed: A program.
        known: For each of its constants whether it is an array and no tracer. Its
            inputs are unknown.
        asked: For each result whether it is asked for.

    Returns:
        The results that are known and asked for, by their number.
    """
    jaxpr = closed.jaxpr
    if not any(asked):
        return {}
    constants = list(zip(jaxpr.constvars, closed.consts, known, strict=True))
    fixed = [(v, c) for v, c, is_known in constants if is_known]
    # Tracers of an outer trace are inputs: what depends on them is not known.
    moving = [v for v, _, is_known in constants if not is_known]
    opened = jaxpr.replace(
        constvars=[v for v, _ in fixed],
        invars=[*moving, *jaxpr.invars],
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    values = [c for _, c in fixed]
    # not those of `opened`: from JAX 0.12 on its inputs include the constants
    unknown = [True] * (len(moving) + len(jaxpr.invars))
    split = _partial_eval.partial_eval_jaxpr_nounits(
        ClosedJaxpr(opened, values), unknown, False
    )
    first, _, depends, _ = split
    pairs = enumerate(zip(asked, depends, strict=True))
    numbers = [i for i, (is_asked, is_unknown) in pairs if is_asked and not is_unknown]
    rank = np.cumsum([not d for d in depends]) - 1
    used = [False] * len(first.jaxpr.outvars)
    for i in numbers:
        used[rank[i]] = True
    needed, _ = _partial_eval.dce_jaxpr(first.jaxpr, used, instantiate=True)
    program = ClosedJaxpr(needed, first.consts)

    def step(equation: JaxprEqn, inputs: list[Any]) -> Sequence[Any]:
        # What differs from one device to another is not known; `shard_map` is not run.
        outside = equation.primitive.name == "shard_map" or crosses_devices(equation)
        # JAX runs a `pvary` in `shard_map` alone.
        inner = inner_jaxprs(equation.params.values())
        typed = any(e.primitive.name == "pvary" for j in inner for e in equations(j))
        if outside or typed or any(a is None for a in inputs):
            return [None] * len(equation.outvars)
        return inputs if equation.primitive.name == "pvary" else bound(equation, inputs)

    with jax.ensure_compile_time_eval():
        results = jax.jit(lambda: evaluate(program, program.consts, (), step))()
    pairs = zip(numbers, results, strict=True)
    return {i: np.asarray(a) for i, a in pairs if a is not None}


def constants_behind(closed: ClosedJaxpr, asked: Sequence[bool]) -> list[int]:
    """Return which constants decide results that do not depend on the inputs.

    Args:
        closed: A program.
        asked: For each result whether it is asked for.

    Returns:
        The numbers of the constants.
    """
    if not any(asked):
        return []
    jaxpr = closed.jaxpr
    opened = jaxpr.replace(
        constvars=[],
        invars=[*jaxpr.constvars, *jaxpr.invars],
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    unknown = [False] * len(closed.consts) + [True] * len(jaxpr.invars)
    first, _, depends, _ = _partial_eval.partial_eval_jaxpr_nounits(
        ClosedJaxpr(opened, ()), unknown, False
    )
    wanted = zip(asked, depends, strict=True)
    used = [is_asked for is_asked, is_unknown in wanted if not is_unknown]
    # Residuals for the other part follow.
    used += [False] * (len(first.jaxpr.outvars) - len(used))
    _, inputs = _partial_eval.dce_jaxpr(first.jaxpr, used)
    return [i for i, is_used in enumerate(inputs) if is_used]
