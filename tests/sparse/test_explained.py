"""`sparsity(..., explain=True)`: the lines that make rows dense."""

import inspect

import jax
import jax.numpy as jnp
import pytest

import hotk


def _energy(p):
    u, w = p["u"], p["w"]
    mean = jnp.mean(u)  # meets all of `u`
    chain = jnp.sum((u[1:] - u[:-1]) ** 4)
    return chain + mean**2 + jnp.sum(w**3)


P = {"u": jnp.arange(50.0), "w": jnp.arange(20.0)}


def _line_of(text, f):
    lines, first = inspect.getsourcelines(f)
    return first + next(k for k, line in enumerate(lines) if text in line)


def test_the_line_that_makes_a_block_dense():
    found = hotk.sparsity(_energy, P, explain=True)
    [cause] = found.causes
    assert f"{__file__}:{_line_of('jnp.mean', _energy)}" in cause.line
    assert (cause.operation, cause.numbers) == ("reduce_sum", 1)
    assert (cause.leaf, cause.most, cause.size) == ("x['u']", 50, 50)
    assert found.dense_blocks == (("u", "u", 1.0),)
    assert found.pattern == hotk.sparsity(_energy, P)
    assert "reduce_sum" in str(found)
    assert "(x['u'], x['u']) 100 %" in str(found)


def test_nothing_to_explain():
    found = hotk.sparsity(lambda x: jnp.sum(x**3), jnp.ones(9), explain=True)
    assert not found.causes
    assert not found.dense_blocks
    assert "No single operation" in str(found)


def test_an_index_that_is_not_known():
    f = lambda x: x[jnp.argsort(x)] ** 2
    found = hotk.sparsity(f, jnp.ones(30), of="jacobian", explain=True)
    [cause] = found.causes
    assert (cause.operation, cause.numbers, cause.most) == ("gather", 30, 30)
    assert found.dense_blocks == (("", "", 1.0),)


def test_the_operation_that_the_algebra_gives_up_with(monkeypatch):
    from hotk.sparse import _stages

    monkeypatch.setattr(_stages, "most_entries", lambda: 500)
    hotk.clear_cache()
    f = lambda x: jnp.sum(jnp.sin(jnp.outer(x, x)))
    found = hotk.sparsity(f, jnp.ones(40), explain=True)
    assert found.pattern.density == 1
    assert any("test_explained.py" in cause.line for cause in found.causes)
    hotk.clear_cache()


def test_options_are_those_of_a_pattern():
    f = lambda x, k: (jnp.sum(x[k] ** 2), k)
    found = hotk.sparsity(f, jnp.ones(9), jnp.arange(3), has_aux=True, explain=True)
    assert found.pattern.nnz == 3
    with pytest.raises(ValueError, match="must be"):
        hotk.sparsity(f, jnp.ones(9), of="gradient", explain=True)


def test_a_loop_that_adds_up_is_named():
    def f(x):
        total, _ = jax.lax.scan(lambda c, a: (0.5 * c + jnp.sin(a), None), 0.0, x)
        return total**2

    found = hotk.sparsity(f, jnp.ones(100), explain=True)
    [cause] = found.causes
    assert (cause.operation, cause.most, cause.size) == ("scan", 100, 100)
    assert "test_explained.py" in cause.line
    assert "Dense blocks" in str(found)


@pytest.mark.parametrize("name", ["var", "median", "cumsum"])
def test_functions_of_jax_that_are_jitted_have_the_line_of_the_call(name):
    f = lambda x: jnp.sum(getattr(jnp, name)(x) ** 2)
    found = hotk.sparsity(f, jnp.arange(30.0), explain=True)
    assert found.causes
    assert all("test_explained.py" in cause.line for cause in found.causes)


@pytest.mark.exhaustive
def test_a_block_that_no_single_operation_makes_dense_is_told():
    def heat(x):
        for _ in range(40):
            x = x + (jnp.roll(x, 1) - x) / 10 + x**2
        return jnp.sum(x**3)

    found = hotk.sparsity(heat, jnp.ones(40), explain=True)
    assert found.dense_blocks
    assert "No block is dense" not in str(found)


def test_blocks_are_named_by_what_they_belong_to():
    whole = lambda x: jnp.sum(x) ** 3
    assert "(x, x) 100 %" in str(hotk.sparsity(whole, jnp.ones(9), explain=True))
    p = {"a": jnp.ones(9), "b": jnp.ones(10)}
    coupled = lambda p: jnp.sum(p["a"]) * jnp.sum(p["b"])
    found = str(hotk.sparsity(coupled, p, explain=True))
    assert "(x['a'], x['b']) 100 %, (x['b'], x['a']) 100 %" in found
    sums = lambda p: {"s": jnp.sum(p["a"]) * p["b"]}
    found = str(hotk.sparsity(sums, p, of="jacobian", explain=True))
    assert "(y['s'], x['a']) 100 %" in found
