"""Keywords of SciPy and others: they get an error that names ours."""

import inspect

import jax
import jax.numpy as jnp
import pytest

import hotk
from hotk._core import _keywords


pytestmark = pytest.mark.usefixtures("as_user")

H = hotk.HessianOperator(lambda x: jnp.sum(x**4), jnp.array([1.0, 2.0]))
B, KEY = jnp.ones(2), jax.random.key(0)
NEWTON = hotk.optim.newton_cg()


def minimize(**named):
    return hotk.optim.minimize(lambda x: x @ x, B, NEWTON, **named)


CALLS = {
    "solve": (H.solve, (B,)),
    "cg": (hotk.linop.cg, (H, B)),
    "minres": (hotk.linop.minres, (H, B)),
    "steihaug": (hotk.linop.steihaug, (H, B, 1.0)),
    "eigh": (H.eigh, (1,)),
    "trace": (hotk.estimate.trace, (H, KEY)),
    "diagonal": (hotk.estimate.diagonal, (H, KEY)),
    "logdet": (hotk.estimate.logdet, (H, KEY)),
    "spectrum": (hotk.estimate.spectrum, (H, KEY)),
    "minimize": (minimize, ()),
}
# What a user of SciPy, lineax, matfree or optimistix writes, and what it is called.
OURS = [
    *(
        (name, "maxiter", "max_steps")
        for name in ("solve", "cg", "minres", "steihaug", "minimize")
    ),
    *((name, "rtol", "tol") for name in ("solve", "cg", "minres", "steihaug", "eigh")),
    *((name, "atol", "tol") for name in ("solve", "cg", "minimize")),
    *((name, "M", "preconditioner") for name in ("solve", "cg")),
    *((name, "num_samples", "samples") for name in ("trace", "diagonal", "spectrum")),
    ("eigh", "maxiter", "max_restarts"),
    ("eigh", "ncv", "max_basis"),
    ("eigh", "seed", "key"),
    ("logdet", "num_matvecs", "steps"),
    ("minimize", "ftol", "rtol"),
    ("minimize", "disp", "progress"),
    ("minimize", "method", "transform"),
    ("minimize", "options", "max_steps"),
]


@pytest.mark.thinned(8)
@pytest.mark.parametrize(("name", "theirs", "ours"), OURS)
def test_an_error_names_ours(name, theirs, ours):
    function, arguments = CALLS[name]
    with pytest.raises(TypeError) as error:
        function(*arguments, **{theirs: 1})
    text = str(error.value)
    assert text.startswith(f"`{name}(...)`: there is no keyword `{theirs}`.")
    assert f"Write `{ours}=`." in text


# Of optimizers, with the names of SciPy, optax, jaxopt and torch.
OF_OPTIMIZERS = [
    ("trust_region", "initial_trust_radius", "radius"),
    ("trust_region", "max_trust_radius", "max_radius"),
    ("scale_by_trust_region", "eta", "accept"),
    ("newton_cg", "eta", "max_tol"),
    ("newton_cg", "cg_maxiter", "max_steps"),
    ("newton", "ridge", "damping"),
    ("levenberg_marquardt", "init_damping", "damping"),
    ("scale_by_natural_gradient", "rng", "seed"),
    ("sophia", "lr", "learning_rate"),
    ("scale_by_sophia", "update_interval", "every"),
    ("scale_by_adahessian", "beta2", "b2"),
    ("scale_by_adahessian", "key", "seed"),
    ("cubic_newton", "lr", "learning_rate"),
    ("scale_by_line_search", "c1", "decrease"),
]


@pytest.mark.parametrize(("name", "theirs", "ours"), OF_OPTIMIZERS)
def test_optimizers_name_ours(name, theirs, ours):
    make = getattr(hotk.optim, name)
    with pytest.raises(TypeError) as error:
        make(**{theirs: 1})
    assert f"`{name}(...)`: there is no keyword `{theirs}`." in str(error.value)
    assert f"Write `{ours}=`." in str(error.value)
    make(**{ours: 0.5 if ours == "b2" else 1})


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("curvature_ema", "decay"), ("inverse_update_period", "inverses_every")],
)
def test_kfac_names_ours(theirs, ours):
    loss = hotk.curvature.SquaredError(jnp.zeros((3, 1)))
    K = hotk.KFACOperator(lambda w, x: x @ w, loss, jnp.ones((2, 1)), jnp.eye(3, 2))
    with pytest.raises(TypeError, match=f"Write `{ours}=`"):
        hotk.optim.kfac(K, **{theirs: 1})
    with pytest.raises(TypeError, match="`damping` is"):
        hotk.optim.kfac(K, damping="large")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("maxiter", "max_steps"), ("tol", "tol"), ("gtol", "tol"), ("disp", "progress")],
)
def test_optimizers_send_limits_of_a_minimization_to_it(theirs, ours):
    with pytest.raises(TypeError) as error:
        hotk.optim.newton_cg(**{theirs: 1})
    text = str(error.value)
    assert f"there is no keyword `{theirs}`: it belongs to `minimize`" in text
    assert f"hotk.optim.minimize(f, x0, hotk.optim.newton_cg(...), {ours}=...)" in text


def test_every_optimizer_knows_unknown_keywords():
    makers = [make for name, make in vars(hotk.optim).items() if name in _MAKERS]
    assert len(makers) == len(_MAKERS)
    for make in makers:
        with pytest.raises(TypeError, match=r"there is no keyword `sigma`"):
            make(sigma=1)


_NAMES = (
    *("newton_cg", "trust_region", "newton", "cubic_newton", "levenberg_marquardt"),
    *("natural_gradient", "sophia", "adahessian"),
)
_MAKERS = {*_NAMES, *(f"scale_by_{name}" for name in _NAMES), "scale_by_line_search"}


@pytest.mark.parametrize("name", CALLS)
def test_an_unknown_keyword_gets_the_list(name):
    function, arguments = CALLS[name]
    with pytest.raises(TypeError, match=r"there is no keyword `sigma`(.|\n)*There are"):
        function(*arguments, sigma=1)


@pytest.mark.parametrize(
    "call",
    [
        lambda **k: hotk.laplace_approximation(jnp.sum, jnp.ones(2), **k),
        lambda **k: hotk.statistics.profile_intervals(jnp.sum, jnp.ones(2), **k),
        lambda **k: hotk.interop.scipy_problem(jnp.sum, jnp.ones(2), **k),
        lambda **k: hotk.interop.scipy_residuals(jnp.sin, jnp.ones(2), **k),
    ],
)
def test_further_arguments_follow_by_position(call):
    with pytest.raises(TypeError, match=r"no keyword `args`(.|\n)*by position"):
        call(args=(1.0,))


def test_no_name_in_the_table_is_one_of_ours():
    """Else a function that has it, and one that calls it otherwise, would disagree."""
    both = {name for name, ours in _keywords._OURS.items() if name in ours}
    assert not both


@pytest.mark.parametrize("k", [2.0, "LA", True, None])
def test_the_number_of_eigenvalues_is_an_integer(k):
    with pytest.raises(TypeError, match="It is the number of eigenvalues"):
        H.eigh(k)


def test_a_damped_system_is_that_of_a_sum():
    H = hotk.HessianOperator(lambda x: jnp.sum(x**4), jnp.arange(1.0, 4.0))
    with pytest.raises(TypeError, match=r"\(H \+ damping \* hotk.Identity\(\)\)"):
        H.solve(jnp.ones(3), damping=2.0)
    solution = (H + 2.0 * hotk.Identity()).solve(jnp.ones(3)).x
    wanted = 1 / (12 * jnp.arange(1.0, 4.0) ** 2 + 2)
    assert jnp.allclose(solution, wanted, rtol=1e-5)


@pytest.mark.parametrize("name", ["solve", "eigh"])
def test_methods_show_the_keywords_and_defaults_of_their_functions(name):
    of = [getattr(hotk.linop.AbstractOperator, name), getattr(hotk.linop, name)]
    method, function = ([*inspect.signature(f).parameters.values()][1:] for f in of)
    assert [str(p) for p in method] == [str(p) for p in function]
