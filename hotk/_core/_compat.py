"""What JAX does not promise, each use with its reason; see also `_compat_trace`."""

import contextlib
import os
import pathlib
import re
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, ParamSpec, TypeAlias, TypeVar

import jax

# The class of all members of an `equinox.Enumeration`: it has no public name.
from equinox._enum import EnumerationItem as EnumerationItem
from jax._src import (
    array as _array,
    config as _config,
    core as _jax_core,
    pjit as _pjit,
    source_info_util as _source,
)
from jax._src.interpreters import mlir, partial_eval as _partial_eval
from jax._src.lax import lax as _lax
from jax.extend import source_info_util as _lines

# jax.extend is the semi-public home of these names.
from jax.extend.core import (
    ClosedJaxpr as ClosedJaxpr,
    Jaxpr as Jaxpr,
    JaxprEqn as JaxprEqn,
    Literal as Literal,
    Primitive as Primitive,
    Var as Var,
    jaxpr_as_fun as jaxpr_as_fun,
    mapped_aval as mapped_aval,
    unmapped_aval as unmapped_aval,
)

# The rules of a primitive of our own: a function with several derivative rules is one.
# (`jax.interpreters.mlir` is that of `jax._src`, and loads dialects of old as well.)
from jax.interpreters import ad as ad, batching
from jaxlib.mlir.dialects import sdy as _sdy
from jaxtyping import Array

from ._compiler_flags import LEAST, QUICK, RIGHT, Options


_P = ParamSpec("_P")
_T = TypeVar("_T")

# Lines of programs are those of the user's code, not of ours.
_lines.register_exclusion(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# The concrete array class: `type(a) is ARRAY` is 20x faster than `isinstance`, which
# also answers yes for tracers.
# No array is made for it: that would start the backend, before the user has chosen it.
ARRAY: type = _array.ArrayImpl

# What `jax.jit` returns; it has no public name, and is told apart by its type alone.
JITTED: type = type(jax.jit(lambda: None))

Tracer = _jax_core.Tracer

ShapedArray = _jax_core.ShapedArray
"""The type of an array in a program."""

AbstractValue = _jax_core.AbstractValue
"""The type of a value in a program: of an array, a token or a reference."""

# What JAX raises where explicit axes of a mesh do not fit; it has no public name.
ShardingTypeError = _jax_core.ShardingTypeError

Atom: TypeAlias = Var | Literal
"""An operand of an equation."""

# Of Equinox: functions as programs, whose constants are kept beside the program.
try:
    from equinox._ad import _ClosureConvert

    CONVERTED: tuple[type, ...] = (_ClosureConvert,)
except ImportError:  # pragma: no cover
    CONVERTED = ()

# Of Equinox: the structure of what an operation with any result returns.
try:
    from equinox.internal._primitive import Flatten as _Flatten

    RESULT_TREES: tuple[type, ...] = (_Flatten,)
except ImportError:  # pragma: no cover
    RESULT_TREES = ()

# What JAX raises when Python asks a tracer for its value.
NEEDS_VALUE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


def trace_context() -> tuple[Hashable, ...]:
    """Return everything in JAX's configuration that a trace depends on.

    Named axes and meshes are among it. How random keys are made is not, for JAX.
    """
    return (*_config.trace_context(), _config.default_prng_impl.value)


# The functions whose rules are switched off, in a context that JAX's own caches know:
# nothing traced with rules is run without them.
WITHOUT_RULES = jax.make_user_context(frozenset())
# What every direct call reads: without the property in Python that JAX has around it.
_PRNG, _RULES = _config.default_prng_impl, getattr(WITHOUT_RULES, "_obj", WITHOUT_RULES)


def unkeyed_setting() -> tuple[Hashable, ...]:
    """Return settings on which the choice of a program depends, but for JAX's own.

    How random keys are made is one that JAX leaves out of `trace_context`.
    """
    return _PRNG.value, _RULES.value


def setting_names() -> list[str]:
    """Return the names of the settings in `trace_context`, in order.

    `WITHOUT_RULES` is called so: JAX has one name for all contexts of users.
    """
    before = _config.trace_context()
    with WITHOUT_RULES(frozenset((None,))):
        inside = _config.trace_context()
    # By what changes when it is set.
    pairs = zip(_config.trace_context_names(), before, inside, strict=True)
    names = [name if a == b else "WITHOUT_RULES" for name, a, b in pairs]
    return [*names, "jax_default_prng_impl"]


def compiler_options(quickly: bool) -> Options:
    """Return options of the compiler for `jax.jit`, as pairs.

    None on a GPU or in a trace, where JAX refuses them. `quickly` takes half the time.
    """
    if in_trace() or jax.default_backend() != "cpu":
        return ()
    return RIGHT + QUICK if quickly else RIGHT


def compiled(
    lowered: jax.stages.Lowered, *, quickly: bool, is_little: bool
) -> jax.stages.Compiled:
    """Compile a program with the options above.

    The jitted function that it was lowered from runs what is compiled here. JAX has no
    public way to that: a nested `jax.jit` refuses options of the compiler, and what
    `Lowered.compile` makes with options is not what a call runs.
    """
    computation: Any = getattr(lowered, "_lowering", None)
    options = getattr(computation, "_compiler_options_kvs", None)
    if isinstance(options, tuple) and jax.default_backend() == "cpu":
        extra = RIGHT + (LEAST if is_little else QUICK) * quickly
        computation._compiler_options_kvs = options + extra
    return lowered.compile()


def with_weak_type(array: Array, weak: bool) -> Array:
    """Give an array the weak type that results at a Python number have, or not."""
    if jax.typeof(array).weak_type == weak:
        return array
    changed: Any = _lax._convert_element_type(array, array.dtype, weak_type=weak)
    return changed


def in_trace() -> bool:
    """Whether an outer transformation is tracing now."""
    return not _jax_core.trace_state_clean()


def goes_into_program(arrays: object) -> bool:
    """Whether what is computed of arrays now is traced, and not known at once.

    Outside of `jit` the value under a derivative is known, and `in_trace` there.
    """
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(arrays)):
        return True
    trace = _jax_core.trace_ctx.trace
    while not isinstance(trace, _partial_eval.DynamicJaxprTrace):
        trace = getattr(trace, "parent_trace", None)
        if trace is None:
            return False
    return True


def is_outermost() -> bool:
    """Whether the trace that is going on stands in no other one."""
    outside = getattr(_jax_core.trace_ctx.trace, "parent_trace", None)
    return outside is None or isinstance(outside, _jax_core.EvalTrace)


def signature_count(jitted: Any) -> int:
    """Return the number of signatures that a jitted function was called with.

    The method is not to be kept: Python's garbage collector cannot look into it, so an
    object that holds it beside the jitted function is never let go
    (`test_a_callback_of_a_prepared_function_is_called_each_time`).
    """
    return jitted._cache_size()


def jit_options(jitted: object) -> Hashable:
    """Return the options that a jitted function was made with, `None` if not known.

    Without the two that tell where it is defined. JAX has no public reader of them.
    """
    info = getattr(jitted, "_jit_info", None)
    inner = getattr(jitted, "__wrapped__", None)
    if info is None or inner is None or getattr(jitted, "_fun", None) is not inner:
        return None
    places = ("fun_sourceinfo", "fun_signature")
    # If JAX has changed this, a jitted function is walked as any other object.
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


def jit_like(jitted: Any, function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Jit a function with the options of a jitted function, with a cache of its own."""
    return _pjit._cpp_pjit(function, jitted._jit_info)


def inner_jaxprs(values: Iterable[object]) -> list[Jaxpr]:
    """Return the jaxprs among the parameters of an equation, in tuples as well."""
    found: list[Jaxpr] = []
    for value in values:
        if isinstance(value, ClosedJaxpr):
            found.append(value.jaxpr)
        elif isinstance(value, Jaxpr):
            found.append(value)
        elif isinstance(value, (tuple, list)) and value:
            found += inner_jaxprs(value)
    return found


def equations(jaxpr: Jaxpr) -> list[JaxprEqn]:
    """Return all equations of a jaxpr, each followed by those inside of it.

    A list: a first call asks for it several times, and nested generators are resumed
    once for each level and equation.
    """
    found: list[JaxprEqn] = []
    for equation in jaxpr.eqns:
        found.append(equation)
        for inner in inner_jaxprs(equation.params.values()):
            found += equations(inner)
    return found


CELL = re.compile(r"\S*/ipykernel_\d+/\d+\.py")


def source_line(equation: JaxprEqn) -> str:
    """Return `file:line (function)` of the user's code that made an equation."""
    try:
        line = _source.summarize(equation.source_info) or _definition(equation)
        return CELL.sub("notebook cell", line)
    except Exception:
        return "unknown place"


# A function that JAX defines, as most of `jax.numpy`, is no place of the user.
_FOLDER_OF_JAX = str(pathlib.Path(jax.__file__).parent)


def _definition(equation: JaxprEqn) -> str:
    """Return where a function inside an equation is defined, if there is one."""
    for jaxpr in inner_jaxprs(equation.params.values()):
        info = jaxpr.debug_info
        file = info.func_filename
        if file and info.func_lineno and not file.startswith(_FOLDER_OF_JAX):
            return f"{info.func_filename}:{info.func_lineno} ({info.func_name})"
    return ""


def is_type(a: object) -> bool:
    """Whether it is the type of an array, and not an array."""
    return isinstance(a, _jax_core.AbstractValue)


def shape_of(aval: AbstractValue) -> jax.ShapeDtypeStruct:
    """Return shape, dtype, weak type and explicit sharding of a type in a program."""
    a: Any = aval
    weak, sharding = getattr(a, "weak_type", False), getattr(a, "sharding", None)
    sharding = sharding if any(getattr(sharding, "spec", ())) else None
    return jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=weak, sharding=sharding)


def used_inputs(closed: ClosedJaxpr) -> list[bool]:
    """Return for each input of a program whether any output depends on it.

    JAX has the analysis, loops and inner functions included, but not in public.
    """
    outputs = [True] * len(closed.jaxpr.outvars)
    return list(_partial_eval.dce_jaxpr(closed.jaxpr, outputs)[1])


def needed_for(closed: ClosedJaxpr, outputs: Sequence[bool]) -> ClosedJaxpr:
    """Return a program for some of its outputs, without what they do not need.

    Args:
        closed: The program.
        outputs: For each of its outputs whether to keep it.
    """
    jaxpr, _ = _partial_eval.dce_jaxpr(closed.jaxpr, list(outputs), instantiate=True)
    return ClosedJaxpr(jaxpr, closed.consts)


def program_of_sparse(equation: JaxprEqn) -> ClosedJaxpr | None:
    """Return the program of an operation of `jax.experimental.sparse`, if it is one.

    Those that are linear have no program among their parameters. JAX compiles them from
    functions of their modules, which it calls by this name and does not export.
    """
    name = equation.primitive.name
    module = sys.modules.get(f"jax.experimental.sparse.{name.partition('_')[0]}")
    run = getattr(module, f"_{name}_impl", None)
    if run is None:
        return None
    types = [shape_of(v.aval) for v in equation.invars]
    return jax.make_jaxpr(lambda *a: run(*a, **equation.params))(*types)


@contextlib.contextmanager
def as_written(equation: JaxprEqn) -> Iterator[None]:
    """Set the line and the settings that an equation was traced under."""
    with (
        _source.user_context(equation.source_info.traceback),
        equation.ctx.manager,
    ):
        yield


def new_primitive(
    name: str,
    *,
    run: Callable[..., Sequence[Any]],
    types: Callable[..., Sequence[AbstractValue]],
    jvp: Callable[..., tuple[Sequence[Any], Sequence[Any]]],
    transpose: Callable[..., Sequence[Any]],
    batch: Callable[..., tuple[Sequence[Any], Sequence[int | None]]],
    lower: Callable[..., Sequence[Any]] | None = None,
) -> Primitive:
    """Make an operation of our own known to every transformation.

    Args:
        name: Its name in programs.
        run: From arrays and parameters to a list of arrays.
        types: The same for their types.
        jvp: From primals, tangents and parameters to both of the outputs.
        transpose: From cotangents, arrays and parameters to cotangents.
        batch: From arrays, their mapped axes and parameters to arrays and their axes.
        lower: What it compiles to; by default what `run` does.
    """
    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(run)
    primitive.def_abstract_eval(types)
    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose
    batching.primitive_batchers[primitive] = batch
    lower = mlir.lower_fun(run, multiple_results=True) if lower is None else lower
    mlir.register_lowering(primitive, lower)
    return primitive


def divided_alike(context: mlir.LoweringRuleContext, a: Any, like: Any) -> list[Any]:
    """Lower to the first of two arrays, which XLA divides among devices alike.

    `jax.experimental.shard_alike` does the same, up to jax 0.10. Its groups have the
    numbers of a global counter, so that a program differs in text from one process to
    the next and misses the persistent compilation cache; a channel has a number that is
    new in each module. Within `shard_map` nothing is asked: a group may not reach
    across its border, as one of a program that was traced outside would.
    """
    inside = getattr(context.module_context.axis_context, "manual_axes", ())
    if _config.use_shardy_partitioner.value and not inside:
        group = context.module_context.new_channel()
        _sdy.sharding_group(a, group)
        _sdy.sharding_group(like, group)
    return [a]
