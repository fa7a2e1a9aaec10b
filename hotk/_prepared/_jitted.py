"""`jitted`: `jax.jit` for functions of hotk, whose compilations are counted."""

import functools
import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal

import jax
from jaxtyping import PyTree

from hotk._capture import Closure, Opaque, key_and_arrays
from hotk._core import Options, compiler_options, is_outermost, unkeyed_setting

from ._log import FIRST_CALLS
from ._program import SMALL
from ._store import STORE
from ._watch import WATCH


_MOST_PROGRAMS = 256


def jitted(
    function: Callable[..., PyTree] | None = None,
    *,
    quickly: Literal["if small", "always"] | None = None,
    **options: Any,
) -> Callable[..., Any]:
    """Jit a function of hotk; `hotk.cache_info` counts what is compiled.

    Its body runs when JAX traces it, which is before it is compiled, or inside of
    another program, which takes it in. An operator among its arguments may read the
    class of a model, or draw random numbers. `jax.jit` knows neither the attributes of
    classes nor the default generator, and would give the program of one to another:
    so each has a jitted function of its own.

    Args:
        function: The function; without it, a decorator is returned.
        quickly: When to compile it in half the time, outside of a trace: with few
            numbers, as elementwise operations on many may take longer then, or always.
        **options: Keywords of `jax.jit`.
    """
    if function is None:
        return functools.partial(jitted, quickly=quickly, **options)

    @functools.lru_cache(_MOST_PROGRAMS)
    def jitted_for(settings: tuple[Hashable, ...], compiler: Options) -> Any:
        del settings
        compiled = itertools.count(1)

        # `jax.jit` shares the trace of a function, so this one is made for each as well
        @functools.wraps(function)
        def body(*args: PyTree, **keywords: PyTree) -> PyTree:
            if is_outermost():
                STORE.compiled()
                FIRST_CALLS.begin(function)
                # JAX itself keeps a program for each of thousands of shapes.
                if next(compiled) % _MOST_PROGRAMS == 0:
                    result.clear_cache()
            return function(*args, **keywords)

        result: Any = jax.jit(body, compiler_options=dict(compiler), **options)
        return result

    def find(*given: PyTree) -> Any:
        compiler = compiler_options(quickly is not None)
        if compiler and quickly == "if small" and _size(given) > SMALL:
            compiler = compiler_options(False)
        return jitted_for((unkeyed_setting(), *_classes(given)), compiler)

    @functools.wraps(function)
    def call(*args: PyTree, **keywords: PyTree) -> PyTree:
        run = find(args, keywords)
        count = len(FIRST_CALLS.begun)
        try:
            if WATCH.by is None:
                return run(*args, **keywords)
            return WATCH.by.function(function, run, args, keywords, options)
        finally:
            if len(FIRST_CALLS.begun) > count:
                FIRST_CALLS.end(count)

    @functools.wraps(function)
    def eval_shape(*args: PyTree, **keywords: PyTree) -> PyTree:
        return find(args, keywords).eval_shape(*args, **keywords)

    result: Any = call
    result.eval_shape = eval_shape
    return result


def _size(tree: PyTree) -> int:
    """Count the numbers of the arrays in a tree, which may hold anything."""
    return sum(getattr(leaf, "size", 1) for leaf in jax.tree.leaves(tree))


def _classes(tree: PyTree) -> Sequence[Hashable]:
    """Return what the held functions in a tree read of classes, as those are now."""
    # not `isinstance`: the classes of Equinox answer that slowly, here for each node
    found = jax.tree.leaves(tree, is_leaf=lambda node: type(node) is Closure)
    closures = [node for node in found if type(node) is Closure]
    try:
        return [
            tuple(key_and_arrays(f)[0]) for f in closures if f.skeleton.user_classes
        ]
    except Opaque:  # one cannot be followed any more: its trace will say so
        return []
