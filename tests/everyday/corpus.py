"""The registry of everyday functions.

A module of this folder is data: functions that make functions, each entered by
`@everyday`. `plain_*.py` needs the `test` extra only, `with_<library>.py` and
`with_<library>_<part>.py` need that library, of the extra `everyday`.

A maker gets a seed and returns `(f, x, args)`: a new function over new data of the same
structure, as the loop of a user would make it, and where to take the derivative.
"""

import contextlib
import importlib
import importlib.util
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


Maker = Callable[[int], tuple[Callable[..., jax.Array], Any, tuple[Any, ...]]]

LIBRARIES = (
    "attrs",
    "blackjax",
    "brax",
    "chex",
    "diffrax",
    "distrax",
    "e3nn_jax",
    "flax",
    "haiku",
    "jax_md",
    "jaxopt",
    "jraph",
    "ml_collections",
    "numpyro",
    "omegaconf",
    "pydantic",
    "tensorflow_probability",
    "tinygp",
)


class Entry(NamedTuple):
    """One function of the corpus.

    Attributes:
        name: What it is, in a few words.
        maker: Makes it, from a seed.
        library: The library it needs beyond the `test` extra; empty if none.
        slow: Why it cannot be on the fast path, and the way to write it; else empty.
        traces: The most traces of a call that still count as fast: one where a Python
            number of the program changes from call to call.
        x64: Whether it is computed in 64 bits.
        reference: Makes what JAX alone differentiates instead, from the same seed,
            where it cannot differentiate this function twice.
    """

    name: str
    maker: Maker
    library: str = ""
    slow: str = ""
    traces: int = 0
    x64: bool = False
    reference: Maker | None = None

    def settings(self) -> contextlib.AbstractContextManager[Any]:
        """Return the precision it is computed in, as a context."""
        return jax.enable_x64(self.x64)


ENTRIES: dict[str, Entry] = {}


def everyday(
    name: str,
    *,
    library: str = "",
    slow: str = "",
    traces: int = 0,
    x64: bool = False,
    reference: Maker | None = None,
) -> Callable[[Maker], Maker]:
    """Enter a maker into the corpus. The arguments are the fields of `Entry`."""
    assert not library or library in LIBRARIES, library

    def enter(maker: Maker) -> Maker:
        assert name not in ENTRIES, f"two entries are called {name!r}"
        ENTRIES[name] = Entry(name, maker, library, slow, traces, x64, reference)
        return maker

    return enter


def is_there(library: str) -> bool:
    """Return whether a library can be imported."""
    return importlib.util.find_spec(library) is not None


def library_of(stem: str) -> str:
    """Return the library that a module of the corpus needs, from its name."""
    if not stem.startswith("with_"):
        return ""
    rest = stem.removeprefix("with_") + "_"
    [library] = [each for each in LIBRARIES if rest.startswith(f"{each}_")]
    return library


@contextlib.contextmanager
def as_users_do() -> Iterator[None]:
    """Compute as users do who have set nothing, whatever the tests have set.

    The modules are imported like this too: what they keep in globals has its dtype.
    """
    with (
        jax.enable_x64(False),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        yield


def load() -> list[Entry]:
    """Import every module whose library is there; return the entries, sorted."""
    with as_users_do(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # libraries warn of what they themselves import
        for path in sorted(Path(__file__).parent.glob("*.py")):
            if path.stem.startswith(("plain_", "with_")):
                library = library_of(path.stem)
                if not library or is_there(library):
                    importlib.import_module(f"tests.everyday.{path.stem}")
    return sorted(ENTRIES.values(), key=lambda entry: (entry.library, entry.name))


def direction(x: Any, seed: int) -> Any:
    """Return a tree like `x` of normal numbers."""
    rng = np.random.default_rng([seed, 1])
    draw = lambda leaf: jnp.asarray(rng.normal(size=jnp.shape(leaf)), leaf.dtype)
    return jax.tree.map(lambda leaf: draw(jnp.asarray(leaf)), x)


def by_jax(f: Callable[..., jax.Array], x: Any, v: Any, *args: Any) -> Any:
    """Return the Hessian-vector product by JAX alone.

    Functions with a reverse rule only are differentiated in reverse twice.
    """
    gradient = jax.grad(lambda x: f(x, *args))
    try:
        return jax.jvp(gradient, (x,), (v,))[1]
    except TypeError as error:
        if "custom_vjp" not in str(error):
            raise
    return by_reverse(f, x, v, *args)


def by_reverse(f: Callable[..., jax.Array], x: Any, v: Any, *args: Any) -> Any:
    """Return the Hessian-vector product in reverse twice."""
    gradient = jax.grad(lambda x: f(x, *args))

    def slope(x: Any) -> jax.Array:
        products = jax.tree.map(jnp.vdot, gradient(x), v)
        return jax.tree.reduce(jnp.add, products)

    return jax.grad(slope)(x)
