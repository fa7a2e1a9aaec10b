"""What rules need and no derivative is taken of: built once for a signature."""

import collections
import threading
from collections.abc import Callable, Hashable

import jax
from jaxtyping import PyTree

from hotk._core import trace_context
from hotk.capture import Closure
from hotk.prepared import STORE


_LIMIT = 128
_LOCK = threading.Lock()
# What was built, with the closure whose arrays the key knows by `id`: while it lives,
# no other array can get one of these.
_BUILT: collections.OrderedDict[Hashable, tuple[PyTree, Closure]]
_BUILT = collections.OrderedDict()
STORE.others.append(_BUILT)


def built_for(build: Callable[..., PyTree] | None, args: PyTree) -> PyTree:
    """Return what `build` makes of the shapes of these arguments.

    It is built once for a signature, outside of all transformations: no tracer reaches
    it, so it is never differentiated, and a program traced again gets the same object.
    """
    if build is None:
        return None
    closure = Closure.of(build)
    shapes = jax.tree.map(_shape, args)
    leaves, tree = jax.tree.flatten(shapes)
    captured = tuple(map(id, closure.leaves))
    key = (closure.skeleton, captured, tree, tuple(map(_key, leaves)), trace_context())
    with _LOCK:
        if key in _BUILT:
            _BUILT.move_to_end(key)
            return _BUILT[key][0]
    # Outside of the lock, as it is code of the user. Two threads may both build; then
    # the first result is taken, so that all programs hold one object.
    with jax.ensure_compile_time_eval():
        built = build(*shapes)
    with _LOCK:
        built, _ = _BUILT.setdefault(key, (built, closure))
        while len(_BUILT) > _LIMIT:
            _BUILT.popitem(last=False)
    return built


def _shape(leaf: object) -> object:
    if not hasattr(leaf, "dtype") and not isinstance(leaf, (float, complex)):
        return leaf
    aval = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def _key(leaf: Hashable) -> Hashable:
    # with its type, as 1 and 1.0 are equal and may build different things
    return leaf if isinstance(leaf, jax.ShapeDtypeStruct) else (type(leaf), leaf)
