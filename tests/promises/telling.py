"""Stories of a function whose state changes, and the two who listen: hotk and JAX.

A story is a generator. It yields a function, or a tuple `(f, x, *args)`, and changes
whatever it likes before it yields again. Each story is told twice, to hotk and to
uncached JAX, with a state of its own each time, so that effects of the function can
be compared too.

Not in any story, because no tool can see it, is what depends on

- a clock, a file, the network, another process;
- random numbers of hidden generators: `random.random`, `np.random.normal`;
- what a captured builtin holds that cannot be looked into: `iter(values).__next__`;
- what an installed library keeps: its functions, settings and constants, when they are
  bound anew while the program runs (`math.pi = 3.0`);
- whether, how often and from where it is traced: `isinstance(x, Tracer)`, a stack
  frame, the id of a fresh object, output printed or logged while Python runs.

Such a function is impure for hotk, as it is for `jax.jit`.
"""

import contextlib
import importlib
import pathlib
import sys
import tempfile
import textwrap
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np


X = jnp.array([0.5, -1.5, 2.0])


class Story(NamedTuple):
    """A generator of functions, and what may be expected of it.

    `changes`: the derivative is not the same at every step. `effects`: the function
    writes, so each call counts. `holds`: a `Prepared` may be made at the first step
    and used at the others. `loud`: hotk may raise where JAX does not.
    """

    tell: Callable[[], Iterator[Any]]
    changes: bool = True
    effects: bool = False
    holds: bool = True
    loud: bool = False

    def __str__(self):
        return self.tell.__name__

    def steps(self):
        """Yield `f, x, args`; close the story even when a listener raises."""
        with contextlib.closing(self.tell()) as steps:
            for step in steps:
                f, x, *args = step if isinstance(step, tuple) else (step, X)
                yield f, x, args


STORIES: list[Story] = []


def story(tell=None, **expected):
    """Add a generator to the stories."""
    if tell is None:
        return lambda tell: story(tell, **expected)
    STORIES.append(Story(tell, **expected))
    return tell


def cubic(c, x):
    """Return the sum of `c x^3`: its gradient is `3 c x^2`, its `H v` is `6 c x v`."""
    return jnp.sum(c * x**3)


def is_moving(leaf):
    """Whether a leaf of the point is differentiated."""
    return eqx.is_inexact_array(leaf) or isinstance(leaf, (float, complex))


def direction(x):
    """Make a direction at `x`, with `None` where nothing is differentiated."""
    moving = eqx.filter(x, is_moving)
    return jax.tree.map(lambda leaf: jnp.cos(jnp.array(leaf)), moving)


def uncached_gradient(f, x, *args):
    """Differentiate `f` as it is now, with plain JAX."""
    x = jax.tree.map(lambda a: a.copy() if isinstance(a, np.ndarray) else a, x)
    moving, fixed = eqx.partition(x, is_moving)
    return jax.grad(lambda moving: f(eqx.combine(moving, fixed), *args))(moving)


def uncached_hvp(f, x, v, *args):
    """Push `v` through the gradient of `f` as it is now, with plain JAX."""
    x = jax.tree.map(lambda a: a.copy() if isinstance(a, np.ndarray) else a, x)
    moving, fixed = eqx.partition(x, is_moving)
    gradient = jax.grad(lambda moving: f(eqx.combine(moving, fixed), *args))
    return jax.jvp(gradient, (moving,), (v,))[1]


def notebook(source, **names):
    """Run the cell of a notebook: its functions have no closure, they read globals."""
    names = {"__name__": "__main__", "jax": jax, "jnp": jnp, "np": np, **names}
    run_cell(source, names)
    return names


def run_cell(source, names):
    """Run one more cell."""
    exec(textwrap.dedent(source), names)


@contextlib.contextmanager
def user_module(name, source, *, path=None):
    """Put a module of the user into `sys.modules`; `path` makes it a package."""
    module = types.ModuleType(name)
    if path is not None:
        module.__path__ = path
    sys.modules[name] = module
    try:
        exec(textwrap.dedent(source), module.__dict__)
        yield module
    finally:
        sys.modules.pop(name, None)


@contextlib.contextmanager
def module_on_disk(name, source, *, folder="."):
    """Import a module from a file; `folder` may be `site-packages`."""
    with tempfile.TemporaryDirectory() as root:
        home = pathlib.Path(root, folder)
        home.mkdir(exist_ok=True)
        (home / f"{name}.py").write_text(textwrap.dedent(source))
        sys.path.insert(0, str(home))
        importlib.invalidate_caches()
        try:
            yield importlib.import_module(name)
        finally:
            sys.modules.pop(name, None)
            sys.path.remove(str(home))
