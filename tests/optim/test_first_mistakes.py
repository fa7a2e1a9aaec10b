"""What users of SciPy write first: it works, or an error says what to write."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk.curvature import LeastSquares, PerExample
from hotk.optim import (
    levenberg_marquardt,
    minimize,
    natural_gradient,
    newton_cg,
    trust_region,
)
from tests.helpers import close


X0 = jnp.array([-1.2, 1.0])


def residuals(x):
    return jnp.array([10 * (x[1] - x[0] ** 2), 1 - x[0]])


def rosenbrock(x):
    return jnp.sum(residuals(x) ** 2)


def test_without_a_transformation_it_is_a_trust_region():
    found = minimize(rosenbrock, X0, tol=1e-10)
    assert bool(found.converged)
    close(found.x, np.ones(2), rtol=1e-8)
    given = minimize(rosenbrock, X0, trust_region(), tol=1e-10)
    assert int(found.steps) == int(given.steps)


@pytest.mark.parametrize("transform", [levenberg_marquardt, newton_cg])
def test_residuals_in_place_of_a_number(transform, as_user):
    with pytest.raises(hotk.OutputError, match="one real number") as caught:
        minimize(residuals, X0, transform())
    assert "minimize(hotk.curvature.LeastSquares(r), x0" in str(caught.value)
    assert "levenberg_marquardt()" in str(caught.value)
    found = minimize(LeastSquares(residuals), X0, levenberg_marquardt(), tol=1e-8)
    close(found.x, np.ones(2), rtol=1e-6)


@pytest.mark.parametrize("given", ["BFGS", trust_region, rosenbrock])
def test_what_is_no_transformation(given, as_user):
    with pytest.raises(TypeError, match=r"hotk\.optim\.trust_region\(\)"):
        minimize(rosenbrock, X0, given)


E = {"a": jnp.ones((5, 2)), "y": jnp.zeros(5)}


def of_all(x, e):
    """Return the residuals of all examples at once."""
    return jax.vmap(lambda a, y: a @ x - y)(e["a"], e["y"])


@pytest.mark.parametrize("made", [PerExample, LeastSquares])
def test_a_function_of_all_examples_where_one_of_a_single_one_belongs(made, as_user):
    with pytest.raises(hotk.StructureError, match="of all examples") as caught:
        made(of_all, E)(X0)
    assert "one example at a time" in str(caught.value)
    assert "f64[2]" in str(caught.value)


def test_another_error_in_a_function_of_an_example_says_what_it_was_given(as_user):
    with pytest.raises(KeyError) as caught:
        LeastSquares(lambda x, e: e["b"] @ x, E)(X0)
    assert any("one example at a time" in note for note in caught.value.__notes__)


LOSS = hotk.curvature.SquaredError(jnp.zeros((5, 3)))
POINT = {"w": jnp.ones((3, 2))}


@pytest.mark.parametrize(
    "model",
    [
        lambda p, x: p["w"] @ x,
        lambda p, x: jnp.dot(p["w"], x.reshape(2)),
        lambda p, x: jnp.tanh(p["w"] @ x[:2]),
    ],
)
def test_a_model_of_one_example_for_kfac(model, as_user):
    with pytest.raises(ValueError, match="of a single example") as caught:
        hotk.KFACOperator(model, LOSS, POINT, E["a"])
    assert "jax.vmap(model, in_axes=(None, 0))" in str(caught.value)
    vmapped = jax.vmap(model, in_axes=(None, 0))
    assert hotk.KFACOperator(vmapped, LOSS, POINT, E["a"]).size == 6


def test_a_model_that_drops_the_axis_of_examples_for_kfac(as_user):
    dropped = lambda p, x: jnp.tanh(x @ p["w"].T)[0]
    with pytest.raises(hotk.OutputError, match="first axis"):
        hotk.KFACOperator(dropped, LOSS, POINT, E["a"])


def test_an_error_of_a_model_says_what_it_was_called_with(as_user):
    with pytest.raises(KeyError) as caught:
        hotk.KFACOperator(lambda p, x: p["v"] @ x, LOSS, POINT, E["a"])
    assert any("one row" in note for note in caught.value.__notes__)


def test_explicit_axes_for_kfac(as_user):
    """A mesh of one device has types of arrays as one of many has."""
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    x = jax.device_put(E["a"], rows)
    with jax.set_mesh(mesh), pytest.raises(hotk.ModeError, match=r"AxisType\.Auto"):
        hotk.KFACOperator(lambda p, x: x @ p["w"].T, LOSS, POINT, x)


@pytest.mark.parametrize(
    ("keyword", "fix"),
    [
        ("lower", r"Bounds are `bounds=\(lower, upper\)`"),
        ("constraints", r"hotk\.interop\.ipopt_problem\(f, x0, constraints=g\)"),
        ("jac", r"Leave it out: derivatives are computed"),
        ("hess", r"Leave it out: derivatives are computed"),
        ("method", r"`transform=`.*scipy_problem\(f, x0\)\.minimize\(method\)"),
        ("options", r"`max_steps=`\. Options are keywords of their own"),
        ("ftol", r"`rtol=`"),
        ("fun", r"`f=`"),
        ("y0", r"`x0=`"),
        ("has_aux", r"lambda x: f\(x\)\[0\]"),
        ("throw", r"`found\.converged`"),
        ("adjoint", "the derivatives of the minimum"),
        ("implicit_diff", "the derivatives of the minimum"),
        ("linesearch", r"hotk\.optim\.scale_by_line_search"),
        ("jit", r"Leave it out: the loop is compiled"),
    ],
)
def test_keywords_of_other_minimizers_name_what_does_it(keyword, fix):
    with pytest.raises(TypeError, match=fix):
        hotk.optim.minimize(lambda x: x @ x, jnp.ones(2), **{keyword: None})


def test_a_method_of_scipy_in_the_place_of_a_transformation():
    with pytest.raises(TypeError, match=r"scipy_problem\(f, x0\)\.minimize\(method\)"):
        hotk.optim.minimize(lambda x: x @ x, jnp.ones(2), "BFGS")


def test_residuals_in_a_tuple_name_least_squares():
    with pytest.raises(hotk.OutputError, match="LeastSquares") as raised:
        hotk.optim.minimize(lambda x: (x[0], x[1] - 1), jnp.ones(2))
    assert "f64[]" in str(raised.value)


def test_a_second_derivative_of_an_array_names_the_hessian():
    with pytest.raises(hotk.StructureError, match=r"hotk\.hessian_diagonal"):
        hotk.second_derivative(lambda x: x @ x, jnp.ones(2))


@pytest.mark.parametrize("make", [natural_gradient, newton_cg])
def test_residuals_in_an_update_that_takes_none_name_least_squares(make, as_user):
    transform = make(1.0)
    state, g = transform.init(X0), jax.grad(rosenbrock)(X0) / 2
    with pytest.raises(TypeError, match="Only `levenberg_marquardt`") as caught:
        transform.update(g, state, X0, residual_fn=residuals)
    assert "value_fn=hotk.curvature.LeastSquares(residual_fn)" in str(caught.value)
    step, _ = transform.update(g, state, X0, value_fn=LeastSquares(residuals))
    assert float(g @ step) < 0


def test_the_point_in_place_of_the_function(as_user):
    with pytest.raises(
        TypeError, match="first argument must be the function"
    ) as caught:
        minimize(X0, rosenbrock)
    assert "`minimize(f, x0, transform)`" in str(caught.value)


@pytest.mark.parametrize("p0", [[2.0, 1.0], np.array([2.0, 1.0]), (2.0, 1.0)])
def test_a_model_of_curve_fit(p0, as_user):
    """It is called as `f(x, a, b)` there."""
    x = np.linspace(0, 1, 9)
    f = lambda x, a, b: a * jnp.exp(-b * x)
    y = 2.5 * np.exp(-1.3 * x)
    with pytest.raises(TypeError) as caught:
        hotk.statistics.fit(f, x, y, p0)
    [note] = caught.value.__notes__
    assert "`fit(lambda p, x: f(x, *p), ...)`" in note
    found = hotk.statistics.fit(lambda p, x: f(x, *p), x, y, p0)
    close(jnp.stack([*found.x]), np.array([2.5, 1.3]), rtol=1e-6)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("fun", "value"),
        ("success", "converged"),
        ("nit", "steps"),
        ("message", "reason"),
    ],
)
def test_attributes_of_scipy(theirs, ours):
    found = minimize(rosenbrock, X0)
    with pytest.raises(
        AttributeError, match=rf"no attribute '{theirs}'. Write `.{ours}`"
    ):
        getattr(found, theirs)
    assert getattr(found, ours) is not None
    assert not hasattr(found, "nothing_like_it")


@pytest.mark.parametrize(
    ("theirs", "ours"), [("popt", "x"), ("pcov", "covariance"), ("resid", "residuals")]
)
def test_attributes_of_other_fits(theirs, ours):
    x = jnp.linspace(0, 1, 9)
    y = 2 * x + jnp.cos(9 * x) / 10
    found = hotk.statistics.fit(lambda p, x: p * x, x, y, 1.0)
    with pytest.raises(AttributeError, match=rf"Write `.{ours}`"):
        getattr(found, theirs)
    assert getattr(found, ours) is not None
    again = pickle.loads(pickle.dumps(found.minimum))
    close(again.x, found.x)


def test_names_of_other_packages():
    with pytest.raises(AttributeError, match=r"Write `hotk\.gradient`"):
        hotk.grad(rosenbrock)
    with pytest.raises(AttributeError, match=r"Write `hotk\.statistics\.fit`"):
        hotk.curve_fit(rosenbrock)
    with pytest.raises(AttributeError, match=r"'nothing'$"):
        hotk.nothing()


def test_what_is_out_of_order_says_the_order(as_user):
    with pytest.raises(TypeError, match="`v` follows the point"):
        hotk.hvp(rosenbrock, X0)
    with pytest.raises(hotk.DtypeError, match="function first, then the point"):
        hotk.HessianOperator(lambda x: x, rosenbrock)
    with pytest.raises(TypeError, match=r"Write one argument as `args=\(a,\)`"):
        minimize(lambda x, a: a * rosenbrock(x), X0, args=2.0)
    with pytest.raises(TypeError, match=r"Further arguments .* `args=\(a, b\)`"):
        minimize(lambda x, a: a * rosenbrock(x), X0, 2.0)
    x = jnp.linspace(0, 1, 9)
    found = hotk.statistics.fit(lambda p, x: p["a"] * x, x, jnp.cos(x), {"a": 1.0})
    with pytest.raises(TypeError, match=r"Write `profile\(part='a'\)`"):
        found.profile("a")
