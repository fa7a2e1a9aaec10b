"""Settings and fixtures of every test.

hotk is not imported here at the top: the type-checking hook below must stand before.
"""

import gc
import itertools
from pathlib import Path

import jax
import jaxtyping
import pytest

from tests import type_checker
from tests.counting import settings


pytest.register_assert_rewrite("tests.helpers")

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# From here on every function of these floors checks its annotations, shapes included,
# when it is called; `as_user` switches that off. Below them are no shapes to check, and
# so many calls that a fifth of the time went there.
FLOORS = [
    "primitive",
    "dense",
    "mode",
    "first",
    "second",
    "curvature",
    "linop",
    "estimate",
    "interop",
]
jaxtyping.install_import_hook(
    [f"hotk.{floor}" for floor in FLOORS], f"{type_checker.__name__}.check"
)

FINISHED = itertools.count(1)
MAPPINGS = Path("/proc/self/maps")


def pytest_addoption(parser):
    parser.addoption("--every", type=int, default=1, help="run each n-th test only")


def pytest_collection_modifyitems(config, items):
    """Refuse names with an address in them: no two processes would agree on them."""
    every = config.getoption("--every")
    config.hook.pytest_deselected(
        items=[item for i, item in enumerate(items) if i % every]
    )
    items[:] = items[::every]
    unstable = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if unstable:
        raise pytest.UsageError("give `ids=` to " + ", ".join(unstable))


def pytest_runtest_setup(item):
    """Skip what needs a GPU where there is none."""
    if item.get_closest_marker("gpu") and jax.default_backend() != "gpu":
        pytest.skip("no GPU")


def pytest_runtest_logfinish():
    """Let go of compiled programs before the system has no more room for them.

    XLA maps each one into memory by itself, and Linux allows 65 530 mappings to a
    process: ten thousand tests in two processes come near, and what then fails is a
    crash. Counting them takes milliseconds, so it is done now and then.
    """
    if next(FINISHED) % 100 == 0 and MAPPINGS.exists():
        with MAPPINGS.open() as lines:
            count = sum(1 for _ in lines)
        if count > 20_000:
            import hotk

            hotk.clear_cache()
            jax.clear_caches()
            gc.collect()


@pytest.fixture
def as_user():
    """Switch the type checker off, as it is for users, to see hotk's own errors."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def default_settings(as_user):
    """Compute as users do who have set nothing: 32 bits, and NumPy's promotions."""
    with (
        jax.enable_x64(False),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        yield


@pytest.fixture
def compiled_fast():
    """Let XLA optimize little, where nearly all of the time is compiling."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture
def no_leaks():
    """Let JAX raise when a tracer outlives its trace. Nothing is cached meanwhile."""
    with jax.check_tracer_leaks(True):
        yield


@pytest.fixture(autouse=True)
def settings_left_as_found():
    """hotk may change no setting of JAX; a test that does must put it back.

    A part of JAX that is imported meanwhile may bring settings of its own.
    """
    before = settings()
    yield
    after = settings()
    assert {k: v for k, v in after.items() if v != before.get(k, v)} == {}
