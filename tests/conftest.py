"""Settings and fixtures of every test.

hotk is not imported here at the top: the type-checking hook below must stand before.
"""

import gc
import itertools
from pathlib import Path

import jax
import jaxtyping
import pytest

from tests import compilation, thinning, type_checker, verifying
from tests.counting import settings


pytest.register_assert_rewrite("tests.helpers")
compilation.use()

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# From here on every function of these floors checks its annotations, shapes included,
# when it is called; `as_user` switches that off. Below them are no shapes to check, and
# so many calls that a fifth of the time went there.
FLOORS = [
    "_primitive",
    "_dense",
    "_mode",
    "_first",
    "_second",
    "curvature",
    "linop",
    "estimate",
    "interop",
]
assert all((Path(__file__).parents[1] / "hotk" / floor).is_dir() for floor in FLOORS)
jaxtyping.install_import_hook(
    [f"hotk.{floor}" for floor in FLOORS], f"{type_checker.__name__}.check"
)

FINISHED = itertools.count(1)
MAPPINGS = Path("/proc/self/maps")
LEFT_OUT = []  # what a run was without, for `tests/mutation/test_flaws.py`


def pytest_addoption(parser):
    parser.addoption("--part", metavar="I/N", help="run the I-th of N parts")


def pytest_report_header():
    """Say whether programs compiled by earlier runs are there."""
    folder = jax.config.jax_compilation_cache_dir
    count = sum(1 for _ in Path(folder).glob("*-cache")) if folder else 0
    return f"compiled programs: {count} of earlier runs in {folder or 'no folder'}"


def pytest_xdist_auto_num_workers(config):
    """Start no processes for single tests: each needs seconds before its first one."""
    named = all("::" in name for name in config.args)
    return 0 if config.option.collectonly or named else None


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config, items):
    """Refuse names with an address in them: no two processes would agree on them."""
    unstable = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if unstable:
        raise pytest.UsageError("give `ids=` to " + ", ".join(unstable))
    thinning.mark_exhaustive(items)
    if verifying.is_on():
        config.hook.pytest_deselected(items=list(filter(verifying.counts, items)))
        items[:] = [item for item in items if not verifying.counts(item)]
    if part := config.option.part:
        others = [item for item in items if not thinning.in_part(item, part)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if thinning.in_part(item, part)]


def pytest_collection_finish():
    """Look for cycles less often, and not among what is there for the whole run.

    A tenth of the time went there: each search reads all tests and modules.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 20)


def pytest_deselected(items):
    LEFT_OUT.extend(item.nodeid for item in items)


@pytest.fixture
def left_out():
    """Return the ids that this run was told to leave out."""
    return LEFT_OUT


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
def compiled_as_for_users():
    """Let XLA optimize, where rounding decides how an iteration goes."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
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
