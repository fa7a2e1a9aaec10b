"""The first NaN is traced to its operation, its line and its pass."""

import jax
import jax.numpy as jnp
import pytest

import hotk


def test_a_root_at_zero():
    f = lambda x: jnp.exp(-jnp.sqrt(jnp.sum(x**2)))
    found = hotk.locate_nan(hotk.gradient, f, jnp.zeros(2))
    assert (found.primitive, found.part, found.order) == ("mul", "backward", 1)
    assert "infinity" in found.inputs
    assert "test_locate_nan.py" in found.line
    assert found.finite == ()
    assert "backward pass" in str(found)


def test_inside_of_a_library_it_is_the_line_of_the_call():
    f = lambda x: jnp.exp(-(jnp.linalg.norm(x) ** 2))
    found = hotk.locate_nan(hotk.hvp, f, jnp.zeros(2), jnp.ones(2))
    assert "test_locate_nan.py" in found.line
    assert found.mode == "forward over reverse"
    assert found.order == 2


def test_a_nesting_that_is_finite_is_named():
    f = lambda x: jnp.sum(jnp.where(x > 0, jnp.log(x), 0.0))
    found = hotk.locate_nan(hotk.hvp, f, jnp.zeros(2), jnp.ones(2))
    assert found.primitive == "div"
    assert found.finite == ("forward over forward",)


def test_nan_of_the_value_itself_and_no_nan_at_all():
    found = hotk.locate_nan(hotk.gradient, lambda x: jnp.log(x), -1.0)
    assert (found.primitive, found.part, found.order) == ("log", "forward", 1)
    assert hotk.locate_nan(hotk.gradient, jnp.sin, 1.0).primitive is None
    assert "none" in str(hotk.locate_nan(hotk.gradient, jnp.sin, 1.0))


ROOTS = lambda x: jnp.sum(jnp.sqrt(x))


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    ("operator", "rest", "named"),
    [
        (hotk.partial, ((2, 0),), {}),
        (hotk.tvp, (jnp.ones(2), jnp.ones(2)), {}),
        (hotk.derivative_tensor, (), {"order": 3}),
        (hotk.differential_operator({(2, 0): 1.0, (0, 1): -0.5}), (), {}),
        (hotk.laplacian, (), {}),
    ],
    ids=["partial", "tvp", "derivative_tensor", "differential_operator", "laplacian"],
)
def test_operators_of_higher_order(operator, rest, named):
    """The root of zero is zero; its derivatives divide by it."""
    found = hotk.locate_nan(operator, ROOTS, jnp.zeros(2), *rest, **named)
    assert "test_locate_nan.py" in found.line
    assert (found.part, found.mode, found.finite) == ("series", "taylor", ())
    assert "Taylor coefficients" in str(found)
    found = hotk.locate_nan(operator, ROOTS, jnp.ones(2), *rest, **named)
    assert found.primitive is None
    # Here it is the value itself that is none.
    bad = lambda x: ROOTS(x) + jnp.sum(jnp.log(x - 2))
    found = hotk.locate_nan(operator, bad, jnp.ones(2), *rest, **named)
    assert (found.part, found.primitive) == ("value", "log")


@pytest.mark.parametrize("reverse", [False, True])
def test_inside_of_a_scan_it_is_the_operation_in_its_body(reverse):
    def f(x):
        def body(carry, row):
            return carry + jnp.sqrt(row * x), row / (x + 1)

        rows = jnp.array([2.0, 1.0, 0.0])
        carry, ratios = jax.lax.scan(body, x, rows, reverse=reverse)
        return carry + jnp.sum(ratios)

    found = hotk.locate_nan(hotk.gradient, f, 1.0)
    assert found.primitive is not None
    assert found.primitive != "scan"
    assert (found.order, found.inputs) == (1, "zero, infinity")
    with open(__file__) as lines:
        expected = 1 + next(i for i, line in enumerate(lines) if "jnp.sqrt(row" in line)
    assert f"test_locate_nan.py:{expected}:" in found.line


def looped(x):
    step = lambda c: (c[0] + 1, c[1] + jnp.sqrt(c[1] * 0))  # of a loop
    return jax.lax.while_loop(lambda c: c[0] < 3, step, (0, x))[1]


def branched(x):
    return jax.lax.cond(
        x > 0,
        lambda x: jnp.sqrt(x * 0) + x,  # of a branch
        lambda x: x,
        x,
    )


def looped_in_a_branch(x):
    return jax.lax.cond(x > 0, looped, lambda x: x, x)


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    ("f", "line"),
    [(looped, "loop"), (branched, "branch"), (looped_in_a_branch, "loop")],
)
def test_inside_of_loops_and_branches_it_is_the_operation(f, line):
    with open(__file__) as lines:
        text = f"# of a {line}"
        expected = 1 + next(
            i for i, row in enumerate(lines) if row.endswith(text + "\n")
        )
    operators = [hotk.derivative] if "looped" in f.__name__ else []
    for operator in [*operators, hotk.second_derivative]:
        found = hotk.locate_nan(operator, f, 1.0)
        assert found.primitive not in ("while", "cond", None)
        assert f"test_locate_nan.py:{expected}:" in found.line
