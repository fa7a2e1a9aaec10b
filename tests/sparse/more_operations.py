"""Further operations of random programs: what people write around indices."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def _rows(rng, a):
    """Return an array of two axes."""
    flat = a.reshape(-1)
    rows = [k for k in (1, 2, 3, 4) if flat.size % k == 0]
    return flat.reshape(rows[rng.integers(len(rows))], -1)


def _indices(rng, count, size):
    """Return indices that are computed, some of them outside or repeated."""
    kind = rng.integers(5)
    i = jnp.arange(count)
    if kind == 0:
        return jnp.clip(3 * i - 4, 0, size - 1)
    if kind == 1:
        return (5 * i + int(rng.integers(9))) % size
    if kind == 2:
        return i - count // 2
    if kind == 3:
        return jnp.asarray(rng.integers(-size - 3, size + 3, count))
    return jnp.where(i % 2 == 0, i // 2, size - 1 - i // 2)


def padded_and_cut(rng, a):
    margins = []
    for length in a.shape:
        low, high = (int(k) for k in rng.integers(-2, 3, 2))
        inner = int(rng.integers(3))
        whole = low + high + length + max(length - 1, 0) * inner
        margins.append((low, high, inner) if whole > 0 else (0, 0, inner))
    return lax.pad(a, jnp.zeros((), a.dtype), margins)


def gathered_in_modes(rng, a):
    flat = a.reshape(-1)
    mode = ["clip", "fill", "promise_in_bounds", None][rng.integers(4)]
    at = _indices(rng, 7, flat.size)
    if mode in ("promise_in_bounds", None):
        at = at % flat.size
    return flat.at[at].get(mode=mode, fill_value=0.5)


def gathered_rows(rng, a):
    a = _rows(rng, a)
    at = _indices(rng, 3, a.shape[0]) % a.shape[0]
    if rng.random() < 0.5:
        return a[at, : max(a.shape[1] // 2, 1)]
    return a[at][:, _indices(rng, 3, a.shape[1]) % a.shape[1]]


def along_an_axis(rng, a):
    a = _rows(rng, a)
    axis = int(rng.integers(2))
    shape = list(a.shape)
    shape[axis] = 3
    at = jnp.asarray(rng.integers(0, a.shape[axis], shape))
    return jnp.take_along_axis(a, at, axis)


def scattered_in_modes(rng, a):
    flat = a.reshape(-1)[:8]
    target = jnp.cos(jnp.arange(7.0)) + flat[:1] * (rng.random() < 0.7)
    at = _indices(rng, flat.size, 7)
    mode = ["drop", "clip", None][rng.integers(3)]
    kind = ["add", "multiply", "min", "max", "set", "subtract"][rng.integers(6)]
    if kind in ("set", "multiply"):
        at = jnp.asarray(rng.permutation(9)[: flat.size])  # once each
    update = getattr(target.at[at], kind)
    unique = kind in ("set", "multiply")
    if unique and mode == "clip":
        mode = "drop"  # clipped, two indices may become one
    return update(flat, mode=mode, unique_indices=unique)


def scattered_rows(rng, a):
    a = _rows(rng, a)[:, :4]
    at = jnp.asarray(rng.integers(-1, 4, a.shape[0]))
    target = jnp.ones((4, a.shape[1]))
    return (
        target.at[at].add(a)
        if rng.random() < 0.5
        else target.at[at, ::2].add(a[:, ::2])
    )


def sorted_(rng, a):
    flat = a.reshape(-1)
    kind = rng.integers(5)
    if kind == 0:
        return jnp.sort(_rows(rng, a), int(rng.integers(2)))
    if kind == 1:
        return flat[jnp.argsort(flat)] * flat
    if kind == 2:
        return lax.top_k(flat, min(3, flat.size))[0]
    if kind == 3:
        return jnp.sort(flat)[::-1][:4] * flat[jnp.argmax(flat)]
    return lax.sort((flat, flat**2), num_keys=1)[1]


def cumulated(rng, a):
    a, axis, back = _rows(rng, a), int(rng.integers(2)), bool(rng.integers(2))
    kinds = [lax.cumprod, lax.cummax, lax.cummin, lax.cumlogsumexp, lax.cumsum]
    return kinds[rng.integers(5)](a, axis, reverse=back)


def segments(rng, a):
    flat = a.reshape(-1)
    ids = jnp.asarray(rng.integers(-1, 4, flat.size))
    kind = [jax.ops.segment_sum, jax.ops.segment_max, jax.ops.segment_sum]
    total = kind[rng.integers(3)](flat, ids, 4)
    return jnp.where(jnp.isfinite(total), total, 0.0)


def looped(rng, a):
    flat = a.reshape(-1)[:9]
    size, kind = flat.size, rng.integers(5)
    steps = int(rng.integers(1, 5))
    if kind == 0:
        step = lambda i, y: y.at[i % size].add(y[(2 * i + 1) % size] ** 2)
    elif kind == 1:
        step = lambda i, y: lax.dynamic_update_slice(y, jnp.sin(y[:1]), (i,))
    elif kind == 2:
        step = lambda i, y: jnp.where(jnp.arange(size) == i, y**2, y)
    elif kind == 3:
        step = lambda i, y: lax.cond(
            i % 2 == 0, lambda y: y[::-1], lambda y: y.at[0].mul(y[-1]), y
        )
    else:
        step = lambda i, y: lax.fori_loop(
            0, 2, lambda j, z: z.at[j].set(z[i % size]), y
        )
    return lax.fori_loop(0, steps, step, flat)


def scanned_by_index(rng, a):
    flat = a.reshape(-1)
    at = jnp.asarray(rng.integers(0, flat.size, 6))
    places = jnp.asarray(rng.integers(0, 3, 6))

    def step(c, row):
        i, k = row
        c = c.at[k].set(c[k] * 0.5 + flat[i]) if kind else c.at[k].set(flat[i] ** 2)
        return c, c[(k + 1) % 3] * flat[i]

    kind = rng.integers(2)
    carry, rows = lax.scan(
        step, jnp.ones(3), (at, places), reverse=bool(rng.integers(2))
    )
    return jnp.concatenate([carry, rows])


def register(rng, a):
    """A carry of several numbers, each step moves them on and adds to them."""
    flat, k = a.reshape(-1), int(rng.integers(2, 6))
    mixing = jnp.asarray(np.tril(rng.integers(0, 2, (k, k)), -1).astype(float))
    first = flat[:1]

    def step(c, u):
        return mixing @ c * u + u * first * jnp.arange(1.0, k + 1), jnp.sum(c) * u

    rows = scan_rows = lax.scan(
        step, jnp.zeros(k), flat[:8], reverse=bool(rng.integers(2))
    )
    return jnp.concatenate([rows[0], scan_rows[1]])


def register_of_parts(rng, a):
    flat, x0 = a.reshape(-1), a.reshape(-1)[0]

    def step(c, u):
        p, q, r = c
        return (q + u * x0, r * u + x0, u * x0), p * q + r

    carry, rows = lax.scan(step, (x0, x0**2, 1.0 + 0 * x0), flat[:7])
    return jnp.concatenate([rows, jnp.stack(carry)])


def nested(rng, a):
    a = _rows(rng, a)

    def outer(c, row):
        inner = lambda d, u: (d + u, d * u)
        d, ys = lax.scan(inner, row[0], row)
        return c * 0.5 + d, jnp.sum(ys) * c

    carry, rows = lax.scan(outer, jnp.ones(()), a, reverse=bool(rng.integers(2)))
    return jnp.append(rows, carry)


def chosen(rng, a):
    flat = a.reshape(-1)
    branches = [lambda y: y**2, lambda y: y[::-1], lambda y: 0 * y + 1.0]
    if rng.random() < 0.5:
        at = jnp.asarray(rng.integers(0, 3, flat.size))
        one = lambda i, u: lax.switch(i, branches, u[None])[0]
        return jax.vmap(one)(at, flat)
    return lax.switch(jnp.sum(flat > 0) % 3, branches, flat)


def convolved(rng, a):
    a = a.reshape(-1)[: a.size // 4 * 4]
    if a.size < 4:
        return a.reshape(-1)
    groups = int(rng.integers(3))
    kernel_shape = {0: (3, 2, 2), 1: (2, 1, 2), 2: (2, 2, 2)}[groups]
    kernel = jnp.asarray(rng.normal(size=kernel_shape))
    image = a.reshape((2, 2, -1))
    return lax.conv_general_dilated(
        image,
        kernel,
        (int(rng.integers(1, 3)),),
        [tuple(int(k) for k in rng.integers(0, 3, 2))],
        lhs_dilation=(int(rng.integers(1, 3)),),
        rhs_dilation=(int(rng.integers(1, 3)),),
        feature_group_count=2 if groups == 1 else 1,
        batch_group_count=2 if groups == 2 else 1,
    )


def convolved_with_itself(rng, a):
    flat = a.reshape(-1)
    return jnp.convolve(flat, flat[:3], "same")


def products(rng, a):
    flat = a.reshape(-1)
    k = flat.size // 4
    if not k:
        return flat
    b = flat[: 4 * k].reshape(k, 2, 2)
    c = jnp.asarray(rng.normal(size=(k, 2, 3)) * (rng.random((k, 2, 3)) < 0.6))
    kind = rng.integers(4)
    if kind == 0:
        return jnp.einsum("bij,bjk->ikb", b, c)
    if kind == 1:
        return jnp.einsum("bij,bkj->bik", b, b)
    if kind == 2:
        return lax.dot_general(b, c, (((1,), (1,)), ((0,), (0,))))
    return jnp.einsum("bij,cjk->bcik", b, c)[:, :2]


def transformed(rng, a):
    flat = a.reshape(-1)
    kind = rng.integers(4)
    if kind == 0:
        return jnp.abs(jnp.fft.fft(flat)) ** 2
    if kind == 1:
        return jnp.real(jnp.fft.rfft(_rows(rng, a), axis=1))
    if kind == 2:
        return jnp.fft.irfft(jnp.fft.rfft(flat) * 1.0j, flat.size)
    z = lax.complex(flat, flat[::-1]) * (1.0 + 2.0j)
    return jnp.real(z * jnp.conj(jnp.roll(z, 1))) + jnp.imag(z)


def windows(rng, a):
    flat = a.reshape(-1)
    k = min(3, flat.size)
    stride, dilation = (int(i) for i in rng.integers(1, 3, 2))
    kind = rng.integers(3)
    if kind == 0:
        return lax.reduce_window(
            flat, 0.0, lax.add, (k,), (stride,), [(1, 2)], (dilation,), (dilation,)
        )
    if kind == 1:
        return lax.reduce_window(flat, -jnp.inf, lax.max, (k,), (stride,), "VALID")
    return lax.reduce_window(flat**2, 0.0, lax.add, (k,), (stride,), "SAME")


def sliced_at(rng, a):
    flat = a.reshape(-1)
    k = min(3, flat.size)
    traced = jnp.argmax(flat) if rng.random() < 0.5 else jnp.asarray(4) * 2 - 5
    part = lax.dynamic_slice(flat, (traced,), (k,))
    if rng.random() < 0.5:
        return part * flat[:k]
    return lax.dynamic_update_slice(flat, part**2, (traced - 1,))


def stretched(rng, a):
    flat = a.reshape(-1)[:5]
    kind = rng.integers(3)
    if kind == 0:
        return flat[:, None] * flat[None, :3]
    if kind == 1:
        return flat[None, :1] + jnp.sin(flat)[:, None]
    return jnp.outer(flat, flat) * jnp.tri(flat.size)


def solved(rng, a):
    flat = a.reshape(-1)
    matrix = 3 * jnp.eye(2) + jnp.tanh(jnp.resize(flat[:4], (2, 2)))
    b = jnp.resize(flat, (2, 3))
    kind = rng.integers(5)
    if kind == 0:
        return jnp.linalg.solve(matrix, b)
    if kind == 1:
        lower = jnp.asarray(np.tril(rng.normal(size=(2, 2))) + 3 * np.eye(2))
        return jax.scipy.linalg.solve_triangular(lower, b, lower=True)
    if kind == 2:
        return jnp.linalg.inv(matrix)
    if kind == 3:
        return jnp.linalg.cholesky(matrix @ matrix.T)
    return jnp.linalg.det(matrix)[None] * flat


def mixed(rng, a):
    flat = a.reshape(-1)
    kind = rng.integers(8)
    if kind == 0:
        one_hot = jax.nn.one_hot(jnp.asarray(rng.integers(0, flat.size, 4)), flat.size)
        return one_hot @ flat
    if kind == 1:
        return jnp.interp(flat, jnp.linspace(-1, 1, 5), jnp.resize(flat, 5) ** 2)
    if kind == 2:
        safe = jnp.where(flat > 0, flat, 1.0)
        return jnp.where(flat > 0, jnp.log(safe), flat)
    if kind == 3:
        return jnp.prod(_rows(rng, a), int(rng.integers(2)))
    if kind == 4:
        return jax.checkpoint(lambda y: jnp.sin(y) * jnp.roll(y, 1))(flat)
    if kind == 5:
        return jnp.roll(flat, jnp.argmin(flat))
    if kind == 6:
        return jax.nn.softmax(_rows(rng, a), 1)
    noise = jax.random.normal(jax.random.key(int(rng.integers(9))), flat.shape)
    return jnp.where(noise > 0, flat * noise, flat**2)


def checkpointed(rng, a):
    """Indices that are computed in the program of the derivative."""
    flat = a.reshape(-1)
    factor, first, turned = (int(k) for k in rng.integers(1, 5, 3))

    def f(y):
        i = jnp.arange(6)
        at = (factor * i + first) % y.size
        table = jnp.ravel(at.reshape(2, 3), order="F" if turned % 2 else "C")
        return y[at] * jnp.where(table > first, y[table], 1.0)

    return jax.checkpoint(f)(flat)


def mapped(rng, a):
    a = _rows(rng, a)
    at = jnp.asarray(rng.integers(0, a.shape[1], (a.shape[0], 2)))
    kind = rng.integers(4)
    if kind == 0:
        return jax.vmap(lambda row, i: row[i])(a, at)
    if kind == 1:
        return jax.vmap(lambda row, i: row.at[i].add(row[:1] ** 2))(a, at)
    if kind == 2:
        return jax.vmap(lambda row, i: lax.dynamic_slice(row, (i[0],), (1,)))(a, at)
    return jax.vmap(lambda row: jnp.sort(row), in_axes=1, out_axes=1)(a)


MORE = (
    *(padded_and_cut, gathered_in_modes, gathered_rows, along_an_axis),
    *(scattered_in_modes, scattered_rows, sorted_, cumulated, segments, looped),
    *(scanned_by_index, register, register_of_parts, nested, chosen, convolved),
    *(convolved_with_itself, products, transformed, windows, sliced_at, stretched),
    *(solved, mixed, checkpointed, mapped),
)
