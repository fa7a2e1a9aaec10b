"""What captures an optimizer is walked: no compile for another number."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hotk


def test_a_captured_transformation_is_no_reason_to_compile():
    transform = hotk.optim.newton()
    ridge = lambda w, c: jnp.sum((w - 1.0) ** 2) + c * jnp.sum(w**2)
    solve = lambda w, c: hotk.optim.minimize(ridge, w, transform, args=(c,)).x
    fit = hotk.rule.minimum(ridge, solve)
    cubes = lambda c: jnp.sum(fit(jnp.zeros(3), c) ** 3)
    hotk.clear_cache()
    found = [hotk.gradient(cubes, jnp.array(c)) for c in (1.0, 2.0, 3.0)]
    # w = 1 / (1 + c) three times
    np.testing.assert_allclose(found, [-9 / (1 + c) ** 4 for c in (1, 2, 3)], rtol=1e-6)
    first = hotk.cache_info().compiles
    hotk.gradient(cubes, jnp.array(4.0))
    assert hotk.cache_info().compiles == first
    assert hotk.cache_info().hits == 3
    assert hotk.explain(cubes).opaque is None


@pytest.mark.exhaustive
def test_many_minima_show_as_counts():
    import jax

    f = lambda x, a: jnp.sum((x - a) ** 2)
    fit = lambda a: hotk.optim.minimize(f, jnp.zeros(2), hotk.optim.newton(), args=(a,))
    found = jax.jit(jax.vmap(fit))(jnp.arange(5.0))
    assert repr(found).startswith("Minimum(runs: 5, converged: 5, most steps: 2,")


@pytest.mark.usefixtures("as_user")
def test_errors_name_the_call_and_offer_only_what_it_takes():
    transform, x = hotk.optim.newton_cg(), jnp.ones(3)
    state = transform.init(x)
    with_aux = lambda x: (jnp.sum(x**2), x)
    with pytest.raises(hotk.OutputError) as caught:
        transform.update(x, state, x, value_fn=with_aux)
    assert str(caught.value).startswith("`newton_cg(...).update(")
    assert "has_aux" not in str(caught.value)
    with pytest.raises(hotk.OutputError, match=r"^`minimize\(f, x0, transform\)`"):
        hotk.optim.minimize(with_aux, x, transform)
    with pytest.raises(hotk.DtypeError, match=r"^`minimize\(f, x0, .*no leaf"):
        hotk.optim.minimize(lambda x: jnp.sum(x) * 1.0, jnp.arange(3), transform)


@pytest.mark.parametrize("make", [hotk.optim.newton_cg, lambda: optax.sgd(0.1)])
def test_where_nothing_can_move_nothing_is_left_to_do(make):
    found = hotk.optim.minimize(lambda x: 2.0, {}, make())
    assert found.converged
    assert (found.x, int(found.steps), float(found.value)) == ({}, 0, 2.0)


def test_a_constant_is_at_its_minimum():
    found = hotk.optim.minimize(lambda x: 3.0, jnp.ones(2), hotk.optim.newton_cg())
    assert found.converged
    assert found.value == 3


@pytest.mark.exhaustive
@pytest.mark.parametrize("make", [hotk.optim.newton, hotk.optim.newton_cg])
def test_a_captured_transformation_is_left_whole(make):
    """A copy of it was emptied, and stood in the table of options ever after."""
    transform, start = make(), jnp.zeros(3)
    loss = lambda w, c: jnp.sum((w - c) ** 2)

    def outer(c):
        found = hotk.optim.minimize(lambda w: loss(w, 1.0), start, transform)
        return loss(found.x, c)

    assert hotk.gradient(outer, 2.0) == pytest.approx(6.0)
    hotk.clear_cache()
    found = hotk.optim.minimize(lambda w: loss(w, 1.0), start, make())
    np.testing.assert_allclose(found.x, 1.0, rtol=1e-6)


def test_a_kept_transformation_of_optax_is_found_again():
    transform = optax.scale(-0.1)
    hotk.clear_cache()
    for c in (1.0, 2.0, 3.0):
        target = jnp.full(3, c)
        f = lambda w: jnp.sum((w - target) ** 2)  # noqa: B023
        hotk.optim.minimize(f, jnp.zeros(3), transform, max_steps=3)
    assert hotk.cache_info()[:2] == (2, 1)
