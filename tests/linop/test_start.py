"""First calls: how many programs are compiled, and how often the product is in them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk.linop import Method, _lanczos_host
from tests.counting import compiles


pytestmark = pytest.mark.usefixtures("as_user")

SMALL, LARGE = 5, 300
POWERS = itertools.count(3)


def make(power, n, scale=1.0):
    """Make the operator of a function whose code no other power has."""
    code = f"lambda x: scale * jnp.sum(jnp.cosh(x) * x**{power}) + jnp.sum(x) ** 2"
    f = eval(code, {"jnp": jnp, "scale": jnp.asarray(scale)})
    return hotk.HessianOperator(f, jnp.linspace(0.5, 1.5, n))


def products_in(run, *args):
    """Count how often a program has the function's `cosh` differentiated: its sinh."""
    closed = jax.make_jaxpr(run)(*args)

    def count(jaxpr):
        total = 0
        for equation in jaxpr.eqns:
            total += equation.primitive.name == "sinh"
            inner = jax.tree.leaves(
                list(equation.params.values()),
                is_leaf=lambda p: hasattr(p, "eqns") or hasattr(p, "jaxpr"),
            )
            for each in inner:
                if hasattr(each, "jaxpr") or hasattr(each, "eqns"):
                    total += count(getattr(each, "jaxpr", each))
        return total

    return count(closed.jaxpr)


B = jnp.linspace(-1.0, 1.0, LARGE)
ONCE = {
    "cg": lambda H: hotk.linop.cg(H, B),
    "cg from a start": lambda H: hotk.linop.cg(H, B, x0=B),
    "minres": lambda H: hotk.linop.minres(H, B),
    "minres from a start": lambda H: hotk.linop.minres(H, B, x0=B),
    "steihaug": lambda H: hotk.linop.steihaug(H, B, 1.0),
    "eigh": lambda H: H.eigh(3),
}


@pytest.mark.parametrize("solver", ONCE.values(), ids=ONCE)
def test_the_product_stands_in_a_solver_once(solver):
    H = make(next(POWERS), LARGE)
    of_product = products_in(lambda H: H @ B, H)
    assert of_product > 0
    assert products_in(solver, H) == of_product


# ----- A large product


def deep(leaves=False):
    """Make an indefinite operator whose product takes many equations."""
    n, s = 150, np.where(np.arange(150) % 7 == 0, -1.0, 1.0)

    def f(x):
        z = jnp.concatenate([x["a"].ravel(), x["b"]]) if leaves else x
        total = jnp.sum(s * jnp.cosh(z)) + jnp.sum(z) ** 2
        for i in range(12):
            total += jnp.sum(jnp.sin(z[i:] * z[: n - i])) / 20
        return total

    x = np.linspace(0.2, 1.2, n)
    x = {"a": x[:100].reshape(10, 10), "b": x[100:]} if leaves else x
    return hotk.HessianOperator(f, jax.tree.map(jnp.asarray, x))


STARTS = {
    "zero": {},
    "a start": {"x0": np.cos(np.arange(150))},
    "a preconditioner": {
        "preconditioner": hotk.Diagonal(jnp.linspace(0.5, 1.0, 150)),
    },
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", STARTS.values(), ids=STARTS)
@pytest.mark.parametrize("inside", [False, True], ids=["eager", "jit"])
def test_a_large_product_stands_in_an_indefinite_solve_once(options, inside):
    H, b = deep(), jnp.cos(jnp.arange(150.0))
    run = lambda H, b: H.solve(b, tol=1e-9, method="iterative", **options)
    assert products_in(run, H, b) == products_in(lambda H: H @ b, H)
    solution = (jax.jit(run) if inside else run)(H, b)
    a = np.asarray(H.matrix())
    assert np.linalg.eigvalsh(a)[0] < -1
    np.testing.assert_allclose(solution.x, np.linalg.solve(a, b), rtol=1e-6, atol=1e-8)
    assert (solution.method == Method.minres).item()
    assert solution.converged
    assert not solution.definite
    d = np.asarray(solution.direction)
    np.testing.assert_allclose(d @ a @ d / (d @ d), solution.curvature, rtol=1e-9)
    # the steps of the two, one after the other
    solution = H.solve(b, tol=1e-3, method="iterative", **options)
    by_cg = hotk.linop.cg(H, b, tol=1e-3, **options)
    rest = {name: a for name, a in options.items() if name != "x0"}
    by_minres = hotk.linop.minres(H, b, x0=by_cg.x, tol=1e-3, **rest)
    assert by_cg.reason == hotk.linop.Reason.negative_curvature
    assert solution.curvature == pytest.approx(by_cg.curvature)
    assert abs(solution.iterations - by_cg.iterations - by_minres.iterations) <= 1


@pytest.mark.exhaustive
def test_a_large_product_is_compiled_once():
    H, b = deep(leaves=True), np.cos(np.arange(150.0))
    tree = {"a": jnp.asarray(b[:100].reshape(10, 10)), "b": jnp.asarray(b[100:])}
    with compiles() as count:
        solution = H.solve(tree, tol=1e-9)
    assert count() == 1
    assert jax.tree.structure(solution.x) == jax.tree.structure(H.x)
    x = np.linalg.solve(H.matrix(), b)
    np.testing.assert_allclose(H.flat(solution.x), x, rtol=1e-6, atol=1e-8)


@pytest.mark.exhaustive
def test_a_definite_system_with_a_large_product_takes_the_steps_of_cg():
    H = deep() + 30.0 * hotk.Identity()
    b = jnp.cos(jnp.arange(150.0))
    by_cg, solution = hotk.linop.cg(H, b), H.solve(b, method="iterative")
    assert (solution.method == Method.cg).item()
    assert solution.iterations == by_cg.iterations
    np.testing.assert_allclose(solution.x, by_cg.x, rtol=1e-9)
    np.testing.assert_allclose(solution.curvature, by_cg.curvature, rtol=1e-9)
    few = deep().solve(b, max_steps=int(deep().solve(b).iterations) - 3)
    assert few.reason == hotk.linop.Reason.most_steps
    assert not few.definite


@pytest.mark.exhaustive
def test_several_systems_with_a_large_product():
    H, b = deep(), jnp.cos(jnp.arange(450.0)).reshape(3, 150)
    solutions = H.solve(b, batched=True, tol=1e-9)
    x = np.linalg.solve(np.asarray(H.matrix()), np.asarray(b).T).T
    np.testing.assert_allclose(solutions.x, x, rtol=1e-6, atol=1e-8)
    assert solutions.converged.all()
    zero = H.solve(jnp.zeros(150))
    assert zero.converged
    assert not zero.x.any()


# ----- Small spaces

FROM_MATRIX = {
    "eigh": lambda H: H.eigh(2).values,
    "all of eigh": lambda H: H.eigh(SMALL, "SA").vectors,
    "cholesky": lambda H: H.cholesky(1e3),
    "inertia": lambda H: H.inertia(),
    "spectrum": lambda H: hotk.estimate.spectrum(H, jax.random.key(0)).nodes,
    "logdet": lambda H: hotk.estimate.logdet(
        H + 1e3 * hotk.Identity(), jax.random.key(0)
    ),
}


@pytest.mark.thinned(5)
@pytest.mark.parametrize("ask", FROM_MATRIX.values(), ids=FROM_MATRIX)
def test_what_is_small_compiles_its_matrix_alone(ask):
    ask(make(next(POWERS), SMALL))  # what the shapes alone need, for all operators
    power = next(POWERS)
    H, other = make(power, SMALL), make(power, SMALL, 2.0)
    with compiles() as count:
        ask(H)
    assert count() == 1
    with compiles() as count:
        ask(other)
    assert count() == 0


def test_another_function_compiles_its_product_alone():
    make(next(POWERS), LARGE).eigh(3)
    H = make(next(POWERS), LARGE)
    with compiles() as count:
        H.eigh(3)
    assert count() == 1
    H = make(next(POWERS), LARGE)
    H @ B
    with compiles() as count:
        H.eigh(3)
    assert count() == 0  # the program of `H @ v`


def test_a_solver_outside_of_a_trace_is_one_program():
    make(next(POWERS), LARGE).solve(B)
    H = make(next(POWERS), LARGE)
    with compiles() as count:
        H.solve(B, max_steps=3)
    assert count() == 1


# ----- What is computed from the matrix


def known(dtype=np.float64):
    values = np.array([-3.0, -3.0, 0.0, 1.0, 2.0, 2.0, 2.0, 7.0])
    q, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(8, 8)))
    A = (q * values) @ q.T
    a = jnp.asarray(A, dtype)
    return values, A, hotk.HessianOperator(lambda x: x @ a @ x / 2, jnp.ones(8, dtype))


@pytest.mark.parametrize("which", ["LA", "SA", "LM", "BE"])
def test_the_matrix_says_what_it_did(which):
    _, A, H = known()
    for k in (1, 3, 8):
        pairs, iterated = H.eigh(k, which), H.eigh(k, which, window=8)
        assert (pairs.method == Method.direct).item()
        assert (iterated.method == Method.lanczos).item()
        assert pairs.complete
        assert pairs.converged.all()
        assert pairs.products == 8
        assert pairs.restarts == 0
        np.testing.assert_allclose(pairs.values, iterated.values, atol=1e-12)
        V = np.asarray(pairs.vectors)
        np.testing.assert_allclose(V @ A, pairs.values[:, None] * V, atol=1e-12)
        np.testing.assert_allclose(V @ V.T, np.eye(k), atol=1e-12)
        same = [(a.shape, a.dtype) for a in jax.tree.leaves(pairs)]
        assert same == [(a.shape, a.dtype) for a in jax.tree.leaves(iterated)]
    assert "LAPACK" in str(pairs)
    assert "Lanczos" in str(iterated)


def test_in_single_precision_the_residual_is_that_of_the_vector_returned():
    _, _, H = known(np.float32)
    pairs = H.eigh(3)
    V = np.asarray(pairs.vectors, float)
    a = np.asarray(H.matrix(), float)
    found = np.linalg.norm(V @ a - np.asarray(pairs.values, float)[:, None] * V, axis=1)
    np.testing.assert_allclose(pairs.residuals, found, rtol=0.5, atol=1e-7)
    assert pairs.converged.all()
    assert pairs.values.dtype == np.float32


def test_the_spectrum_of_a_small_operator_is_exact():
    values, _, H = known()
    key = jax.random.key(0)
    found = hotk.estimate.spectrum(H, key, samples=1)
    assert found.method == "exact"
    assert found.products == 8
    np.testing.assert_allclose(found.nodes[0], values, atol=1e-12)
    trace = found.integrate(lambda t: t)
    assert (trace.method, trace.error.item()) == ("exact", 0.0)
    np.testing.assert_allclose(trace.value, values.sum(), atol=1e-12)
    with pytest.raises(hotk.NotPositiveDefiniteError) as caught:
        hotk.estimate.logdet(H, key)
    assert caught.value.smallest == pytest.approx(-3.0)
    exact = hotk.estimate.logdet(H + 4.0 * hotk.Identity(), key)
    np.testing.assert_allclose(exact.value, np.log(values + 4).sum(), rtol=1e-12)
    assert exact.error == 0


@pytest.mark.exhaustive
def test_inside_of_a_transformation_it_iterates():
    values, _, H = known()
    pairs = jax.jit(lambda H: H.eigh(2, "SA"))(H)
    assert (pairs.method == Method.lanczos).item()
    np.testing.assert_allclose(pairs.values, values[:2], atol=1e-9)


# ----- Memory, and a start


def test_a_basis_is_filled_and_restarted_in_place():
    count, n = 26, 200_000
    basis, v = jnp.zeros((count, n), jnp.float32), jnp.zeros(n, jnp.float32)
    vector, whole = 4 * n, 4 * n * count
    zero, rows = np.float32(0), np.zeros((count, count), np.float32)
    grown = jax.jit(_lanczos_host._grown, donate_argnums=0).lower(basis, v, 1, zero)
    combined = jax.jit(_lanczos_host._combined, donate_argnums=0)
    for lowered, most in ((grown, 4), (combined.lower(basis, rows, 1), 10)):
        memory = lowered.compile().memory_analysis()
        assert memory.alias_size_in_bytes >= whole
        assert memory.temp_size_in_bytes <= most * vector


@pytest.mark.exhaustive
def test_as_few_vectors_as_are_asked_for(monkeypatch):
    counts = []
    begun = _lanczos_host._begun

    def counted(start, count):
        counts.append(count)
        return begun(start, count)

    monkeypatch.setattr(_lanczos_host, "_begun", counted)
    H = make(next(POWERS), LARGE)
    best = H.eigh(1)
    low = H.eigh(1, max_basis=4, max_restarts=3000)
    assert counts == [21, 4]
    assert low.converged.all()
    np.testing.assert_allclose(low.values, best.values, rtol=1e-4)
    with pytest.raises(ValueError, match="at least 4"):
        H.eigh(1, max_basis=3)


@pytest.mark.exhaustive
def test_an_eigenvector_of_a_near_operator_saves_products():
    d = jnp.linspace(1.0, 2.0, LARGE) ** 4
    near, H = (
        hotk.HessianOperator(lambda x, c=c: d @ x**2 + c * (B @ x) ** 2, B)
        for c in (0.0, 1e-3)
    )
    v0 = near.eigh(1).vectors[-1]
    exact = np.linalg.eigvalsh(H.matrix())[-1]
    run = lambda H, v: H.eigh(1, v0=v, window=3, max_restarts=0)
    warm, cold = run(H, v0), run(H, jnp.linspace(-1.0, 1.0, LARGE))
    assert warm.products == cold.products == 4
    np.testing.assert_allclose(warm.values[0], exact, rtol=1e-4)
    assert not np.allclose(cold.values[0], exact, rtol=1e-2)
    np.testing.assert_allclose(jax.jit(run)(H, v0).values, warm.values, rtol=1e-4)
    with pytest.raises(hotk.StructureError, match="v0"):
        H.eigh(1, v0=jnp.ones(3))


# ----- Many leaves


def leafy():
    """A definite operator on real, complex and half-precision leaves."""
    d = np.linspace(1.0, 4.0, 150)
    x = {
        "r": jnp.ones((10, 10)),
        "z": jnp.ones(20, jnp.complex128),
        "s": jnp.ones(30, jnp.float32),
    }

    def f(x):
        single = x["s"].astype(jnp.float64)
        pairs = jnp.sum(d[100:120] * (x["z"].real ** 2 + 2 * x["z"].imag ** 2))
        rest = jnp.sum(d[:100] * x["r"].ravel() ** 2) + jnp.sum(d[120:] * single**2)
        return (pairs + rest) / 2 + (jnp.sum(x["r"]) + jnp.sum(x["z"].imag)) ** 2

    return hotk.HessianOperator(f, x)


SYSTEMS = {
    "cg": lambda H, b: hotk.linop.cg(H, b, x0=b),
    "minres": lambda H, b: hotk.linop.minres(H, b),
    "steihaug": lambda H, b: hotk.linop.steihaug(H, b, 0.7),
    "preconditioned": lambda H, b: hotk.linop.cg(H, b, preconditioner=hotk.Identity()),
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize("run", SYSTEMS.values(), ids=SYSTEMS)
def test_flat_vectors_change_nothing(run):
    H = leafy()
    b = jax.tree.map(lambda a: jnp.cos(jnp.arange(a.size)).reshape(a.shape), H.like)
    b = jax.tree.map(lambda a, like: a.astype(like.dtype), b, H.like)
    flat, inside = run(H, b), jax.jit(run)(H, b)
    assert jax.tree.structure(flat.x) == jax.tree.structure(H.like)
    for a, c in zip(jax.tree.leaves(flat), jax.tree.leaves(inside), strict=True):
        assert (a.shape, a.dtype) == (c.shape, c.dtype)
    np.testing.assert_allclose(H.flat(flat.x), H.flat(inside.x), rtol=1e-2, atol=1e-4)
    assert flat.converged == inside.converged
    if flat.converged:
        exact = np.linalg.solve(H.matrix(), H.flat(b))
        np.testing.assert_allclose(H.flat(flat.x), exact, rtol=1e-3, atol=1e-4)


def test_eigenvectors_of_flat_vectors_are_trees():
    H = leafy()
    pairs = H.eigh(3, "SA")
    assert (pairs.method == Method.lanczos).item()
    a = np.asarray(H.matrix(), float)
    np.testing.assert_allclose(pairs.values, np.linalg.eigvalsh(a)[:3], rtol=1e-6)
    assert pairs.vectors["z"].shape == (3, 20)
    assert pairs.vectors["z"].dtype == jnp.complex128
    assert pairs.vectors["s"].dtype == jnp.float32
    for i in range(3):
        v = np.asarray(H.flat(jax.tree.map(lambda leaf, i=i: leaf[i], pairs.vectors)))
        np.testing.assert_allclose(a @ v, pairs.values[i] * v, atol=1e-5)


def test_another_function_on_the_same_leaves_compiles_its_product_alone():
    leafy().eigh(2, "SA")
    H = leafy()
    other = hotk.HessianOperator(
        lambda x: jnp.sum(x["r"] ** 2) + jnp.sum(jnp.abs(x["z"]) ** 4), H.x
    )
    with compiles() as count:
        other.eigh(2, "SA")
    assert count() == 1


@pytest.mark.exhaustive
def test_the_text_of_a_solver_grows_with_the_leaves_and_not_with_their_square():
    def size(count):
        x = [jnp.ones(3 + i, jnp.float32) for i in range(count)]
        H = hotk.HessianOperator(lambda x: sum(jnp.sum(a**4) for a in x), x)
        run = jax.jit(lambda H: hotk.linop.cg(H, H.x))
        return len(run.lower(H).compile().as_text())

    sizes = [size(count) for count in (4, 16, 32)]
    assert sizes[2] < 2.5 * sizes[1] < 2.5 * 5 * sizes[0]
