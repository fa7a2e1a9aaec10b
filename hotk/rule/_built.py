"""What rules need and no derivative is taken of: built once for a signature."""

import collections
import threading
from typing import Any

import jax

from hotk._core import trace_context
from hotk.capture import Closure
from hotk.prepared import STORE


_LIMIT = 128
_LOCK = threading.Lock()
# What was built, and what its key holds by identity.
_BUILT: collections.OrderedDict[Any, tuple[Any, Any]] = collections.OrderedDict()
STORE.others.append(_BUILT)


def built_for(build: Any, args: Any) -> Any:
    """Return what `build` makes of the shapes of these arguments.

    It is built once for a signature, outside of all transformations: no tracer reaches
    it, so it is never differentiated, and a program traced again gets the same object.
    """
    if build is None:
        return None
    closure = Closure.of(build)
    shapes = jax.tree.map(_shape, args)
    leaves, tree = jax.tree.flatten(shapes)
    held = tuple(map(id, closure.leaves))
    key = (closure.skeleton, held, tree, tuple(map(_key, leaves)), trace_context())
    with _LOCK:
        if key in _BUILT:
            _BUILT.move_to_end(key)
            return _BUILT[key][0]
    with jax.ensure_compile_time_eval():
        built = build(*shapes)
    with _LOCK:
        built, _ = _BUILT.setdefault(key, (built, closure))
        while len(_BUILT) > _LIMIT:
            _BUILT.popitem(last=False)
    return built


def _shape(leaf: Any) -> Any:
    if not hasattr(leaf, "dtype") and not isinstance(leaf, (float, complex)):
        return leaf
    aval = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def _key(leaf: Any) -> Any:
    return leaf if isinstance(leaf, jax.ShapeDtypeStruct) else (type(leaf), leaf)
