"""The only file that touches what JAX does not promise: each use with its reason."""

import contextlib
import os
import re
from collections.abc import Hashable, Iterator
from typing import Any

import jax
from jax._src import (
    api_util as _api_util,
    array as _array,
    config as _config,
    core as _jax_core,
    linear_util as _linear_util,
    pjit as _pjit,
    source_info_util as _source,
)
from jax._src.interpreters import mlir, partial_eval as _partial_eval
from jax.extend import source_info_util as _lines

# The rules of a primitive of our own: a function with several derivative rules is one.
# (`jax.interpreters.mlir` is that of `jax._src`, and loads dialects of old as well.)
from jax.interpreters import ad as ad, batching


try:  # jax.extend is the semi-public home of these names
    from jax.extend.core import (
        ClosedJaxpr as ClosedJaxpr,
        Jaxpr as Jaxpr,
        Literal as Literal,
        Primitive,
        jaxpr_as_fun as jaxpr_as_fun,
        mapped_aval as mapped_aval,
        unmapped_aval as unmapped_aval,
    )
except ImportError:  # pragma: no cover
    from jax._src.core import (  # type: ignore[assignment]
        ClosedJaxpr as ClosedJaxpr,
        Jaxpr as Jaxpr,
        Literal as Literal,
        Primitive,
        jaxpr_as_fun as jaxpr_as_fun,
        mapped_aval as mapped_aval,
        unmapped_aval as unmapped_aval,
    )


# Lines of programs are those of the user's code, not of ours.
_lines.register_exclusion(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# The concrete array class: `type(a) is ARRAY` is 20x faster than `isinstance`, which
# also answers yes for tracers.
# No array is made for it: that would start the backend, before the user has chosen it.
ARRAY: type = _array.ArrayImpl

# What `jax.jit` returns; it has no public name, and is told apart by its type alone.
JITTED: type = type(jax.jit(lambda: None))

Tracer = _jax_core.Tracer

# Of Equinox: functions as programs, whose constants are kept beside the program.
try:
    from equinox._ad import _ClosureConvert

    CONVERTED: tuple[type, ...] = (_ClosureConvert,)
except ImportError:  # pragma: no cover
    CONVERTED = ()

# What JAX raises when Python asks a tracer for its value.
NEEDS_VALUE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


def trace_context() -> Hashable:
    """Return everything in JAX's configuration that a trace depends on.

    Named axes and meshes are among it. How random keys are made is not, for JAX.
    """
    return (*_config.trace_context(), _config.default_prng_impl.value)


# The functions whose rules are switched off, in a context that JAX's own caches know:
# nothing traced with rules is run without them.
WITHOUT_RULES = jax.make_user_context(frozenset())


def unkeyed_setting() -> Hashable:
    """Return settings on which the choice of a program depends, but for JAX's own.

    How random keys are made is one that JAX leaves out of `trace_context`.
    """
    return _config.default_prng_impl.value, WITHOUT_RULES.value


def setting_names() -> list[str]:
    """Return the names of the settings in `trace_context`, in order.

    `WITHOUT_RULES` is called so: JAX has one name for all contexts of users.
    """
    before = _config.trace_context()
    with WITHOUT_RULES(frozenset((None,))):
        inside = _config.trace_context()
    pairs = zip(_config.trace_context_names(), before, inside, strict=True)
    names = [name if a == b else "WITHOUT_RULES" for name, a, b in pairs]
    return [*names, "jax_default_prng_impl"]


def makes_keys(closed: Any) -> bool:
    """Whether a program makes random keys, which depends on a setting of its own."""
    names = ("random_seed", "random_wrap")
    return any(e.primitive.name in names for e in equations(closed.jaxpr))


def in_trace() -> bool:
    """Whether an outer transformation is tracing now."""
    return not _jax_core.trace_state_clean()


def varies_by_device(arrays: Any) -> bool:
    """Whether `shard_map` has typed any of these by the mesh axes it varies along.

    A program traced without such types has lost where the types change, so it has to be
    traced for them. The type has no public reader in every version.
    """
    return any(map(_varying, arrays))


def varying_alike(arrays: list[Any]) -> list[Any]:
    """Let arrays vary along the same mesh axes of a `shard_map`, all that any does.

    JAX does so before each primitive of its own; the transpose is a sum over devices,
    and so what comes back for an array that all devices share is whole.
    """
    axes = [_varying(a) for a in arrays]
    every = frozenset().union(*axes)
    return [
        jax.lax.pcast(a, tuple(sorted(every - own)), to="varying")
        if own != every
        else a
        for a, own in zip(arrays, axes, strict=True)
    ]


def _varying(array: Any) -> frozenset[str]:
    kind = getattr(jax.typeof(array), "manual_axis_type", None)
    return frozenset(getattr(kind, "varying", None) or ())


def cache_size(jitted: Any) -> int:
    """Return the number of signatures that a jitted function was called with."""
    return jitted._cache_size()


def jit_options(jitted: Any) -> Hashable:
    """Return the options that a jitted function was made with, `None` if not known.

    Without the two that tell where it is defined. JAX has no public reader of them.
    """
    info = getattr(jitted, "_jit_info", None)
    inner = getattr(jitted, "__wrapped__", None)
    if info is None or inner is None or getattr(jitted, "_fun", None) is not inner:
        return None
    places = ("fun_sourceinfo", "fun_signature")
    if getattr(info, "_fields", ())[:2] != places or not hasattr(_pjit, "_cpp_pjit"):
        return None
    try:
        hash(info[2:])
    except TypeError:
        return None
    return info[2:]


def has_jit_options(jitted: Any, options: Hashable) -> bool:
    """Whether a jitted function has these options: quicker than asking for its own."""
    return jitted._jit_info[2:] == options and jitted._fun is jitted.__wrapped__


def jit_like(jitted: Any, function: Any) -> Any:
    """Jit a function with the options of a jitted function, with a cache of its own."""
    return _pjit._cpp_pjit(function, jitted._jit_info)


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


def transforms(equation: Any) -> str:
    """Return the transformations that made an equation: `transpose(jvp())`.

    JAX writes them into the names that profilers show, and nowhere else.
    """
    return str(equation.source_info.name_stack)


_CELL = re.compile(r"\S*/ipykernel_\d+/\d+\.py")


def source_line(equation: Any) -> str:
    """Return `file:line (function)` of the user's code that made an equation."""
    try:
        line = _source.summarize(equation.source_info) or _definition(equation)
        return _CELL.sub("notebook cell", line)
    except Exception:
        return "unknown place"


def _definition(equation: Any) -> str:
    """Return where a function inside an equation is defined, if there is one."""
    for value in equation.params.values():
        for jaxpr in sub_jaxprs(value):
            info = jaxpr.debug_info
            if info.func_filename and info.func_lineno:
                return f"{info.func_filename}:{info.func_lineno} ({info.func_name})"
    return ""


CUSTOM = ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")

_JAX = os.path.dirname(os.path.abspath(jax.__file__))
_OWN_FUNCTIONS = {"_slogdet_lu": "slogdet"}


def operation_name(equation: Any) -> str:
    """Return the name of an operation: of its primitive, or of a function of JAX.

    JAX gives a function with a derivative rule no name of its own; where it is defined
    tells which it is. One that is not recognised is any function with a rule.
    """
    if equation.primitive.name == "custom_jvp_call":
        info = equation.params["call_jaxpr"].jaxpr.debug_info
        if (info.func_filename or "").startswith(_JAX + os.sep):
            return _OWN_FUNCTIONS.get(info.func_name, equation.primitive.name)
    return equation.primitive.name


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


def is_type(a: Any) -> bool:
    """Whether it is the type of an array, and not an array."""
    return isinstance(a, _jax_core.AbstractValue)


def output_types(function: Any, types: Any) -> list[Any]:
    """Return the types of a function's results, with their shardings and mesh axes.

    `jax.eval_shape` takes shapes and dtypes alone.

    Args:
        function: A function of a list of arrays that returns a list of them.
        types: The types of the arrays.
    """

    def flat(*arrays: Any) -> list[Any]:
        return function(list(arrays))

    debug = _api_util.debug_info("output_types", flat, types, {})
    wrapped = _linear_util.wrap_init(flat, debug_info=debug)
    jaxpr, *_ = _partial_eval.trace_to_jaxpr_dynamic(wrapped, list(types))
    return [variable.aval for variable in jaxpr.outvars]


def scan_counts(parameters: Any) -> tuple[int, int]:
    """Return how many constants and carries a `scan` has; jax 0.12 renamed them."""
    if "num_carry" in parameters:
        return parameters["num_consts"], parameters["num_carry"]
    constants, carry, _ = parameters["ft_in"].unpack()
    return len(constants), len(carry)


def used_inputs(closed: Any) -> list[bool]:
    """Return for each input of a program whether any output depends on it.

    JAX has the analysis, loops and inner functions included, but not in public.
    """
    outputs = [True] * len(closed.jaxpr.outvars)
    return list(_partial_eval.dce_jaxpr(closed.jaxpr, outputs)[1])


@contextlib.contextmanager
def as_written(equation: Any) -> Iterator[None]:
    """Set the line and the settings that an equation was traced under."""
    with (
        _source.user_context(equation.source_info.traceback),
        equation.ctx.manager,
    ):
        yield


def new_primitive(
    name: str, *, run: Any, types: Any, jvp: Any, transpose: Any, batch: Any
) -> Any:
    """Make an operation of our own known to every transformation.

    Args:
        name: Its name in programs.
        run: From arrays and parameters to a list of arrays.
        types: The same for their types.
        jvp: From primals, tangents and parameters to both of the outputs.
        transpose: From cotangents, arrays and parameters to cotangents.
        batch: From arrays, their mapped axes and parameters to arrays and their axes.
    """
    made = Primitive(name)
    made.multiple_results = True
    made.def_impl(run)
    made.def_abstract_eval(types)
    ad.primitive_jvps[made] = jvp
    ad.primitive_transposes[made] = transpose
    batching.primitive_batchers[made] = batch
    mlir.register_lowering(made, mlir.lower_fun(run, multiple_results=True))
    return made


def in_front(arrays: Any, axes: Any) -> tuple[list[Any], int]:
    """Move the mapped axes of arrays to the front; return also how long they are."""
    sizes = [a.shape[d] for a, d in zip(arrays, axes, strict=True) if d is not None]
    moved = [
        a if d is None else batching.bdim_at_front(a, d, sizes[0])
        for a, d in zip(arrays, axes, strict=True)
    ]
    return moved, sizes[0]


def rule_parts(equation: Any) -> list[Any]:
    """Return the functions, and what they are given, behind a derivative rule.

    JAX keeps the rules of `custom_jvp` and `custom_vjp` inside of functions of its own,
    and the user's function in a cell of those.

    Raises:
        LookupError: If they are not where they are known to be.
    """
    parameters = equation.params
    if equation.primitive.name == "custom_jvp_call":
        wrapped = [_wrapped(parameters["jvp_jaxpr_fun"], "jvp")]
    else:
        wrapped = [_wrapped(parameters["fwd_jaxpr_thunk"], "fwd"), parameters["bwd"]]
    found: list[Any] = []
    for one in wrapped:
        found.append(one.f)
        for _, given in one.transforms:
            found.extend(_given(given))
    return found


def _wrapped(function: Any, cell: str) -> Any:
    """Return what JAX has wrapped in its function that traces a rule."""
    thunk = _cells(function.f)["fn"]
    return _cells(thunk)[cell]


def _cells(function: Any) -> dict[str, Any]:
    names, cells = function.__code__.co_freevars, function.__closure__ or ()
    return {n: c.cell_contents for n, c in zip(names, cells, strict=True)}


def _given(parameters: Any) -> Iterator[Any]:
    """Yield what a rule is called with besides arrays, without JAX's bookkeeping."""
    for item in parameters:
        if isinstance(item, _jax_core.DebugInfo):
            continue
        name = getattr(item, "__qualname__", "")
        if name.startswith("transformation_with_aux"):
            continue
        yield item
