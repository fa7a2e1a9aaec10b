"""Operators and results show what they are, briefly."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import hotk


def energy(p):
    return jnp.sum(p["a"] ** 4) + p["b"] ** 2


@pytest.fixture
def operator():
    return hotk.HessianOperator(energy, {"a": jnp.arange(1.0, 4.0), "b": jnp.ones(())})


def test_arithmetic_shows_as_it_is_written(operator):
    one = repr(operator)
    assert one == "HessianOperator(energy, dict of f64[3], f64[], n=4)"
    assert repr(operator + 2.5 * hotk.Identity()) == f"{one} + 2.5 * (Identity())"
    assert repr(operator @ hotk.Identity()) == f"({one}) @ (Identity())"
    assert repr(hotk.Diagonal(jnp.ones(3))) == "Diagonal(f64[3], n=3)"


def test_a_number_that_is_traced_shows_as_its_type():
    shown = []

    def scaled(c):
        shown.append(repr(c * hotk.Identity()))
        return c

    jax.jit(scaled)(jnp.array(2.0))
    assert shown == ["f64[] (weak) * (Identity())"]


def test_an_operator_over_data_shows_how_many(operator):
    batches = [jnp.ones((3, 2)), jnp.ones((1, 2))]
    loss = lambda w, rows: jnp.mean((rows @ w) ** 2)
    over = hotk.HessianOperator.over(loss, jnp.ones(2), batches)
    assert repr(over) == "DataOperator(f64[2], n=2, 4 examples, value 4)"


def test_a_notebook_shows_shapes_by_path(operator):
    text = (operator + hotk.Identity())._repr_html_()
    assert "<td>a</td><td>0:3</td><td>f64[3]</td>" in text
    assert hotk.Identity()._repr_html_() == "<p><code>Identity()</code></p>"
    text = hotk.HessianOperator(lambda x: jnp.sum(x**2), jnp.ones(2))._repr_html_()
    assert "&lt;lambda&gt;" in text, "what is no markup is written as text"


@pytest.mark.exhaustive
def test_results_are_one_line_in_a_terminal_and_a_table_in_a_notebook(operator):
    solution = operator.solve(operator.gradient)
    assert repr(solution).startswith("Solution(method: conjugate gradients, stopped:")
    assert "\n" not in repr(solution)
    assert "<td>stopped</td>" in solution._repr_html_()
    found = hotk.optim.minimize(
        lambda x: jnp.sum(x**2), jnp.ones(3), hotk.optim.newton()
    )
    assert repr(found).startswith("Minimum(stopped: the gradient is below")
    assert repr(operator.eigh(1)).splitlines()[0].split() == [
        "eigenvalue",
        "residual",
        "converged",
    ]


def test_results_inside_of_a_transformation_show_as_trees(operator):
    shown = []

    def solve(H):
        shown.append(repr(H.solve(H.gradient)))
        return H.value

    jax.jit(solve)(operator)
    assert shown[0].startswith("Solution(\n  x=")


def test_errors_show_as_a_table_in_a_notebook(as_user):
    with pytest.raises(hotk.StructureError) as caught:
        hotk.hvp(lambda x: jnp.sum(x**2), jnp.ones(3), jnp.ones(4))
    text = caught.value._repr_html_()
    assert "<td>expected</td><td>f64[3]</td>" in text
    assert text.endswith("<p>Reshape it; hotk never broadcasts.</p>")
    prepared = hotk.hvp.prepare(lambda x: jnp.sum(x**2), jnp.ones(3), jnp.ones(3))
    with pytest.raises(hotk.PreparationError) as caught:
        prepared(jnp.ones(2), jnp.ones(3))
    text = caught.value._repr_html_()
    assert "<td>✗ x</td><td>prepared f64[3], called f64[2]</td>" in text
    assert "<td>✓ v</td><td>f64[3]</td>" in text


@pytest.mark.exhaustive
def test_nothing_that_shows_raises_inside_of_a_transformation(operator):
    shown = []

    def look(H):
        key = jax.random.key(0)
        f = lambda x: jnp.sum(x**2)
        found = (
            *(H, H + hotk.Identity(), H.linearize(), H.solve(H.gradient), H.eigh(1)),
            *(H.inertia(), hotk.linop.minres(H, H.gradient)),
            hotk.estimate.trace(H, key, samples=2),
            hotk.estimate.spectrum(H, key, samples=2, steps=2),
            hotk.optim.minimize(f, jnp.ones(2), hotk.optim.newton(), max_steps=2),
        )
        for one in found:
            shown.extend([repr(one), str(one), getattr(one, "_repr_html_", str)()])
        return H.value

    jax.jit(look)(operator)
    vectors = jax.tree.map(lambda a: jnp.stack([a, a]), operator.gradient)
    both = jax.vmap(lambda b: (operator.solve(b), operator.eigh(1)))(vectors)
    for one in both:
        shown.extend([repr(one), str(one), one._repr_html_()])
    made = jax.eval_shape(lambda x: hotk.HessianOperator(energy, x), operator.x)
    shown.extend([repr(made), str(made), made._repr_html_()])
    assert all(isinstance(text, str) for text in shown)


def test_a_state_of_an_optimizer_is_one_line_of_numbers_and_shapes():
    x = jnp.arange(1.0, 4.0)
    optimizer = hotk.optim.newton()
    state = optimizer.init(x)
    square = lambda x: jnp.sum(x**2)
    _, state = optimizer.update(2 * x, state, x, value_fn=square)
    assert repr(state[0]) == (
        "NewtonState(damping=0, attempts=1, newton_decrease=14, "
        "outcome=the step was taken, solver=from the whole matrix, scale=f64[3])"
    )
    assert repr(state[0].outcome) == "Outcome<the step was taken>"
    large = hotk.optim.sophia(0.1).init(jnp.ones((300, 4)))
    assert "moment=f64[300,4]" in repr(large)
    assert "\n" not in repr(large)
    shown = []
    jax.jit(lambda s: shown.append(repr(s)))(state)
    assert "damping=f64[]" in shown[0]


@pytest.mark.exhaustive
def test_the_table_of_a_curvature_fits_a_terminal_and_names_lines_of_the_user():
    key = jax.random.key(0)
    layers = [eqx.nn.Linear(3, 3, key=key) for _ in range(6)]
    tree = {"a_long_name_of_an_encoder": {"another_long_name": layers}}

    def model(tree, x):
        for layer in tree["a_long_name_of_an_encoder"]["another_long_name"]:
            x = jax.vmap(layer)(x)
        return x

    loss = hotk.curvature.SquaredError(jnp.zeros((2, 3)))
    K = hotk.KFACOperator(model, loss, tree, jnp.ones((2, 3)))
    lines = repr(K).splitlines()
    assert len(lines) == 9
    assert max(map(len, lines)) <= 100
    assert all(line.startswith("...") for line in lines[3:])
    assert "[5]: weight + bias" in lines[-1]
    assert all("test_display.py:" in line for line in lines[3:])
    assert all(" (model) " in line for line in lines[3:])
