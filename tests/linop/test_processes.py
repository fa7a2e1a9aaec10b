"""Data sets of several processes: the same numbers as one process with all rows."""

import re

import pytest

from tests.processes import all_fine, run_in_processes


SETUP = """
import jax.numpy as jnp, numpy as np, hotk
random = np.random.default_rng(0)
n, sizes = 6, (34, 41, 28)
X = random.normal(size=(sum(sizes), n))
y = np.sign(random.normal(size=sum(sizes)))
ends = np.cumsum([0, *sizes])
w = jnp.asarray(random.normal(size=n)) / 3
v = jnp.asarray(random.normal(size=n))
loss = lambda w, batch: jnp.mean(jnp.log1p(jnp.exp(-batch[1] * (batch[0] @ w)))) + w @ w

def rows(index, size):
    own = range(ends[index], ends[index + 1], size)
    cut = lambda i: slice(i, min(i + size, ends[index + 1]))
    return [(X[cut(i)], y[cut(i)]) for i in own]
"""

# The Hessian of all rows, by hand.
EXACT = """
p = 1 / (1 + np.exp(-(X @ np.asarray(w)) * y))
A = (X.T * (p * (1 - p))) @ X / len(X) + 2 * np.eye(n)
g = X.T @ (-y * (1 - p)) / len(X) + 2 * np.asarray(w)

def near(got, expected, tol=1e-12):
    np.testing.assert_allclose(got, expected, rtol=tol, atol=tol)
"""

NUMBERS = (
    SETUP
    + EXACT
    + """
# Other numbers of batches of other sizes on each process: 5, 3 and 2 batches.
batches = rows(INDEX, (7, 16, 27)[INDEX])
if INDEX == 1:
    own = batches
    batches = lambda: iter(own)
H = hotk.HessianOperator.over(loss, w, batches, processes=True)
assert H.examples == len(X)
near(H.value, np.mean(np.log1p(np.exp(-y * (X @ np.asarray(w))))) + w @ w)
near(H.gradient, g)
near(H @ v, A @ v)
near(H.many(jnp.stack([v, w])), np.stack([A @ v, A @ w]))
near(H.matrix(), A)
near(H.diagonal(), np.diag(A))
b = jnp.asarray(A @ np.asarray(v))
near(H.solve(b, tol=1e-13).x, v, 1e-11)
values, vectors = np.linalg.eigh(A)
near(H.eigh(2).values, values[-2:])
near(H.at(v).value, jnp.mean(jnp.log1p(jnp.exp(-y * (X @ v)))) + v @ v)

total = lambda w, batch: jnp.sum(jnp.log1p(jnp.exp(-batch[1] * (batch[0] @ w))))
S = hotk.HessianOperator.over(total, w, batches, reduction="sum", processes=True)
near(S @ v, len(X) * (A - 2 * np.eye(n)) @ v)
G = hotk.GGNOperator.over(
    lambda w, batch: batch[0] @ w,
    lambda z, batch: jnp.mean(jnp.log1p(jnp.exp(-batch[1] * z))),
    w, batches, processes=True,
)
near(G.matrix(), A - 2 * np.eye(n))

# One all-reduce a pass, of one array.
from hotk.linop import _processes
calls, reduce = [], _processes._reduce
_processes._reduce = lambda mesh: lambda a: calls.append(a.shape) or reduce(mesh)(a)
H @ v
assert calls == [(3, 1 + 3 + 6 + n + 1)], calls
H.matrix()
assert len(calls) == 2, calls
row = jax.ShapeDtypeStruct((3, 17), float)
mesh = H.source.processes.mesh
text = reduce(mesh).lower(row).compile().as_text()
assert len([l for l in text.splitlines() if " all-reduce(" in l]) == 1, text
print("fine")
"""
)


@pytest.mark.exhaustive
def test_three_processes_are_one():
    all_fine(NUMBERS, 3)


ESTIMATES = """
H = hotk.HessianOperator.over(loss, w, rows(INDEX, 10), processes=True)
key = jax.random.key(0)
alone = hotk.HessianOperator.over(loss, w, [(X, y)])
for estimate in (
    lambda H: hotk.estimate.trace(H, key, samples=4).value,
    lambda H: hotk.estimate.spectrum(H, key, steps=4),
    lambda H: hotk.estimate.logdet(H, key, steps=4).value,
):
    for got, expected in zip(*(jax.tree.leaves(estimate(o)) for o in (H, alone))):
        near(got, expected)
print("fine")
"""


@pytest.mark.exhaustive
def test_estimates_of_three_processes_are_those_of_one():
    all_fine(SETUP + EXACT + ESTIMATES, 3)


FAILURES = {
    "a batch": (
        """
def batches():
    for i, batch in enumerate(rows(INDEX, 10)):
        if INDEX == 1 and armed and i == 2:
            raise OSError("disk is gone")
        yield batch

armed = False
H = hotk.HessianOperator.over(loss, w, batches, processes=True)
armed = True
H @ v
""",
        "OSError: disk is gone",
    ),
    "a batch of a matrix": (
        """
def batches():
    for i, batch in enumerate(rows(INDEX, 10)):
        if INDEX == 1 and armed and i == 0:
            raise OSError("disk is gone")
        yield batch

armed = False
H = hotk.HessianOperator.over(loss, w, batches, processes=True)
armed = True
H.matrix()
""",
        "OSError: disk is gone",
    ),
    "no batch": (
        """
own = [] if INDEX == 1 else rows(INDEX, 10)
hotk.HessianOperator.over(loss, w, own, processes=True)
""",
        "ValueError: `over(loss, x, batches)`: there is no batch",
    ),
    "first pass": (
        """
def batches():
    for i, batch in enumerate(rows(INDEX, 10)):
        if INDEX == 1 and i == 2:
            raise OSError("disk is gone")
        yield batch

hotk.HessianOperator.over(loss, w, batches, processes=True)
""",
        "OSError: disk is gone",
    ),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FAILURES)
def test_a_process_that_fails_ends_the_others_with_its_message(name):
    code, text = FAILURES[name]
    ended = run_in_processes(SETUP + code, 3)
    for index, (status, _, errors) in enumerate(ended):
        assert status == 1, (index, errors[-3000:])
        if index == 1:
            assert text in errors
            continue
        assert "RuntimeError: `over(..., processes=True)`: another process" in errors
        assert re.search(rf"process 1: {re.escape(text)}", errors), errors[-3000:]


DIFFERENT = """
def refused(call):
    try:
        call()
    except ValueError as error:
        assert "do not have the same point, or vector" in str(error)
        return True

H = hotk.HessianOperator.over(loss, w, rows(INDEX, 10), processes=True)
other = v.at[2].add(0.1 * (INDEX == 2))
assert refused(lambda: H @ other)
assert refused(lambda: H.at(other))
wide = jnp.ones(n + (INDEX == 1))
constant = lambda w, batch: jnp.mean(batch[1]) + w @ w
over = hotk.HessianOperator.over
assert refused(lambda: over(constant, wide, rows(INDEX, 10), processes=True))
H @ v  # the processes still agree
print("fine")
"""


@pytest.mark.exhaustive
def test_another_point_or_vector_is_refused_on_every_process():
    all_fine(SETUP + DIFFERENT, 3)


def test_a_process_alone_is_refused(as_user):
    import jax.numpy as jnp

    import hotk

    loss = lambda w, rows: jnp.mean(rows @ w)
    over = hotk.HessianOperator.over
    with pytest.raises(ValueError, match=r"jax\.distributed\.initialize"):
        over(loss, jnp.ones(2), [jnp.ones((3, 2))], processes=True)
