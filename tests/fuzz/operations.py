"""What a random program is made of: templates that map a vector `h` to a vector `h`.

`{V}` and its kin stand for captured values; `CAPTURES` says which, as source text, so
that a failing program can be printed as it ran.
"""

import re
from typing import NamedTuple

import numpy as np


class Capture(NamedTuple):
    """A captured value: its name and its source text in two states."""

    name: str
    now: str
    later: str


def _vector(rng, n):
    return np.round(rng.uniform(-1.2, 1.2, n), 3).tolist()


def _matrix(rng, n):
    return np.round(rng.normal(size=(n, n)) / np.sqrt(n), 3).tolist()


def _rows(rng, n):
    return np.round(rng.uniform(-1, 1, (3, n)), 3).tolist()


def _number(rng, n):
    return round(float(rng.uniform(0.2, 1.5)), 3)


def _often_same(source):
    """Let the later state repeat a static value half of the time."""

    def both(rng, n):
        now, later = source(rng, n), source(rng, n)
        return (now, now) if rng.random() < 0.5 else (now, later)

    return both


def _always_new(source):
    return lambda rng, n: (source(rng, n), source(rng, n))


CAPTURES = {
    "V": _always_new(lambda rng, n: f"jnp.array({_vector(rng, n)})"),
    "P": _always_new(lambda rng, n: f"np.array({_vector(rng, n)})"),
    "O": _always_new(lambda rng, n: f"shifted({rng.integers(2)}, {_vector(rng, n)})"),
    "M": _always_new(lambda rng, n: f"jnp.array({_matrix(rng, n)})"),
    "Q": _always_new(lambda rng, n: f"np.array({_matrix(rng, n)}, order='F')"),
    "R": _always_new(lambda rng, n: f"jnp.array({_rows(rng, n)})"),
    "D": _always_new(lambda rng, n: f"jnp.array({_number(rng, n)})"),
    "C": _always_new(lambda rng, n: f"jnp.array({rng.choice([-1.0, 1.0])})"),
    "S": _often_same(lambda rng, n: f"{_number(rng, n)}"),
    "N": _often_same(lambda rng, n: f"np.float64({_number(rng, n)})"),
    "K": _often_same(lambda rng, n: f"{rng.integers(1, 4)}"),
    "I": _always_new(lambda rng, n: f"np.array({rng.integers(0, n, n).tolist()})"),
    "J": _always_new(lambda rng, n: f"jnp.array({rng.integers(0, n, n).tolist()})"),
    "B": _always_new(lambda rng, n: f"np.array({(rng.random(n) < 0.5).tolist()})"),
    "L": _always_new(
        lambda rng, n: f"[jnp.array({_vector(rng, n)}), {{'s': {_number(rng, n)}}}]"
    ),
    "E": _always_new(
        lambda rng, n: (
            f"Affine(jnp.array({_matrix(rng, n)}), jnp.array({_vector(rng, n)}), 2)"
        )
    ),
    "T": _always_new(lambda rng, n: f"Spring(jnp.array({_vector(rng, n)})).force"),
    "F": _always_new(lambda rng, n: f"scaled(jnp.array({_vector(rng, n)}))"),
    "G": _always_new(
        lambda rng, n: f"nested(np.array({_vector(rng, n)}), {_number(rng, n)})"
    ),
    "H": _always_new(
        lambda rng, n: f"functools.partial(weighted, a=jnp.array({_vector(rng, n)}))"
    ),
    "X": _always_new(lambda rng, n: f"forward_ruled(jnp.array({_vector(rng, n)}))"),
    "Y": _always_new(lambda rng, n: f"reverse_ruled(jnp.array({_vector(rng, n)}))"),
    # Functions of JAX in a cell, as they are and applied before.
    "VIA": _often_same(
        lambda rng, n: str(rng.choice(["vmap", "checkpoint", "jit", "jax.vmap"]))
    ),
    "MADE": _always_new(
        lambda rng, n: str(
            rng.choice(
                [
                    f"vmap(scaled({_number(rng, n)}))",
                    f"checkpoint(scaled(jnp.array({_vector(rng, n)})))",
                    f"jit(scaled(jnp.array({_vector(rng, n)})))",
                    f"jit(scaled({_number(rng, n)}))",
                    f"functools.partial(fori_loop, 0, 2, lambda i, t: jnp.sin(t) * "
                    f"{_number(rng, n)})",
                ]
            )
        )
    ),
    # Objects of libraries, and of classes as people write them.
    "NET": _always_new(
        lambda rng, n: (
            f"eqx.nn.MLP({n}, {n}, 4, 1, activation=jnp.tanh, "
            f"key=jax.random.key({rng.integers(9)}))"
        )
    ),
    "CFG": _often_same(
        lambda rng, n: f"Config({_number(rng, n)}, {str(rng.choice(['sin', 'cos']))!r})"
    ),
    "ROW": _always_new(
        lambda rng, n: f"Row(jnp.array({_vector(rng, n)}), {_number(rng, n)})"
    ),
    "RATE": _often_same(lambda rng, n: f"decay({_number(rng, n)})"),
    "OBJ": _often_same(lambda rng, n: f"Weighted({rng.integers(1, 4)})"),
    "BAG": _often_same(lambda rng, n: f"counted({_number(rng, n)})"),
    "SPACE": _often_same(
        lambda rng, n: f"types.SimpleNamespace(rate={_number(rng, n)})"
    ),
    "TEXT": _often_same(
        lambda rng, n: f"re.compile({str(rng.choice(['a+', 'b', 'ccc']))!r})"
    ),
    "FILLS": _always_new(
        lambda rng, n: f"{rng.choice(FILLERS)}(jnp.array({_number(rng, n)}))"
    ),
}
FILLERS = [
    *("Lazy", "Property", "memoized", "tabulated", "class_cached", "module_cached"),
]

# In raw JAX `while` forbids reverse mode, and `custom_vjp` forbids forward mode below
# another derivative.
OPERATIONS = {
    "elementwise": [
        "h = jnp.sin(h)",
        "h = jnp.tanh(h) ** 3",
        "h = jnp.exp(-h * h)",
        "h = jnp.log1p(h * h)",
        "h = jnp.sqrt(1.0 + h * h)",
        "h = 1.0 / (1.0 + h * h)",
        "h = jax.nn.sigmoid(h)",
        "h = jnp.logaddexp(h, 0.5)",
        "h = jax.scipy.special.erf(h)",
        "h = jnp.arctan2(h, 1.5)",
        "h = jnp.abs(h)",
        "h = h * {V} + start",
        "h = h * {P} - {S}",
        "h = {D} * h / (1.0 + {V} ** 2)",
        "h = (1.0 + h * h) ** {S}",
        "h = h ** {K} * 0.5",
        "h = h * {O} + {N}",
        "h = h * {L}[0] + {L}[1]['s']",
        "h = jnp.sinc(h)",
        "h = jnp.square(h) * start",
    ],
    "matmul": [
        "h = {M} @ h",
        "h = {Q} @ jnp.sin(h)",
        "h = jnp.einsum('i,ij,j->i', h, {M}, start)",
        "h = jnp.outer(h, h) @ {V}",
        "h = jnp.linalg.solve(3.0 * jnp.eye(h.size) + jnp.outer(jnp.sin(h), {V}), h)",
        "h = jnp.dot(h, start) * {V}",
        "h = jnp.convolve(h, {V}, mode='same')",
    ],
    "gather": [
        "h = h[{I}]",
        "h = h[{J}] * start",
        "h = jnp.take(h, {J}, mode='clip')",
        "h = h[::-1] * h",
        "h = jnp.roll(h, 1) * h",
        "h = lax.dynamic_slice(jnp.concatenate([h, h]), ({K},), h.shape)",
        "h = lax.dynamic_index_in_dim(jnp.outer(h, h), {K} - 1, keepdims=False)",
    ],
    "scatter": [
        "h = jnp.sin(h).at[{I}].add({V} * h)",
        "h = h.at[{J}[0]].set({S})",
        "h = h.at[{J}[0]].multiply(1.5, unique_indices=True) * h",
        "h = h.at[0].set(h[-1] ** 2)",
        "h = lax.dynamic_update_slice(jnp.sin(h), h[:1] * 2.0, ({K},))",
        "h = jax.ops.segment_sum(h * h, {J}, h.size)",
    ],
    "cumulative": [
        "h = jnp.cumsum(h)",
        "h = jnp.cumprod(1.0 + 0.3 * h)",
        "h = lax.cummax(h) * h",
        "h = lax.cumlogsumexp(h)",
        "h = lax.associative_scan(lambda a, b: a * b + 0.1 * a, jnp.sin(h))",
    ],
    "sort": [
        "h = jnp.sort(h) * {V}",
        "h = h[jnp.argsort(start)]",
        "h = lax.top_k(h, h.size)[0] * {P}",
        "h = h * jnp.max(h)",
        "h = h * jnp.median(h)",
    ],
    "reduce": [
        "h = jax.nn.softmax(h)",
        "h = h / jnp.sqrt(1.0 + h @ h)",
        "h = h * jax.nn.logsumexp(h)",
        "h = h - jnp.mean(h) + jnp.var(h)",
        "h = h * jnp.prod(1.0 + 0.2 * h)",
    ],
    "where": [
        "h = jnp.where(h > {S}, jnp.sin(h), h * h)",
        "h = jnp.where({B}, h * {V}, jnp.cos(h))",
        "h = jnp.maximum(h, {V})",
        "h = jnp.clip(h, -{S}, {S}) + h",
        "h = lax.select_n(h > start, h, h * start)",
        "h = jax.nn.relu(h) + h * h",
    ],
    "scan": [
        "h, _ = lax.scan(lambda c, r: (jnp.sin(c) * r + {V}, None), h, {R})",
        "_, h = lax.scan(lambda c, t: (c + t * t, c * t), {D}, h)",
        "_, h = lax.scan(lambda c, t: (jnp.sin(c) + t, c), {D}, h, reverse=True)",
        "h, _ = lax.scan(lambda c, _: ({M} @ jnp.tanh(c), None), h, length={K})",
        "h = lax.map(lambda t: jnp.sin(t) * t, h)",
    ],
    "cond": [
        "h = lax.cond(h[0] > {S}, lambda t: t * {V}, lambda t: jnp.sin(t), h)",
        "h = lax.cond({C} > 0, jnp.sin, jnp.cos, h)",
        "h = lax.cond(jnp.sum(h) > 0, lambda: h * h, lambda: {V} * h)",
    ],
    "switch": [
        "h = lax.switch({J}[0], [jnp.sin, jnp.cos, lambda t: t * {V}, jnp.tanh], h)",
        "h = lax.switch((h[0] > 0).astype(int), [lambda t: t * t, jnp.sin], h)",
    ],
    "fori": [
        "h = lax.fori_loop(0, {K}, lambda i, t: jnp.sin(t) * {V}, h)",
        "h = lax.fori_loop(0, 3, lambda i, t: jnp.tanh(t * {R}[i]) + t, h)",
    ],
    "while": [
        "h = lax.while_loop(lambda c: c[0] < {J}[0] + 1,"
        " lambda c: (c[0] + 1, jnp.sin(c[1]) * {V}), (0, h))[1]",
        "h = lax.while_loop(lambda t: t @ t > {S},"
        " lambda t: 0.7 * t - 0.1 * t**3 / (1 + t * t), h)",
        "h = lax.fori_loop(0, {J}[0] + 1, lambda i, t: jnp.cos(t) + {V}, h)",
    ],
    "custom_jvp": [
        "h = wave(h)",
        "h = {X}(h) * start",
        "h = jax.vmap(wave)(h) * {V}",
    ],
    "custom_vjp": [
        "h = bump(h)",
        "h = {Y}(h) + h",
        "h = root_of_square({S}, h)",
        "h = jax.vmap(bump)(h) * {V}",
    ],
    "checkpoint": [
        "h = jax.checkpoint(lambda t: jnp.sin({M} @ t))(h)",
        "h = jax.checkpoint(wave)(h * {V})",
        "h = jax.checkpoint({F})(jnp.sin(h))",
    ],
    "jit": [
        "h = jax.jit(lambda t: jnp.sin(t) * {V})(h)",
        "h = jitted(h)",
        "h = jax.jit({G})(h)",
        "h = jax.jit(lambda t, k: t**k, static_argnums=1)(h, {K})",
    ],
    "convert": [
        "h = h + (h > {S}).astype(h.dtype)",
        "h = lax.convert_element_type(jnp.sin(h), jnp.complex128).real * h",
        "h = h * lax.convert_element_type({J}, jnp.float64)",
        "h = jnp.abs(lax.complex(h, jnp.cos(h))) + h",
    ],
    "single": ["h = jnp.sin(h.astype(jnp.float32)).astype(jnp.float64) + h"],
    "stop_gradient": [
        "h = h * lax.stop_gradient(jnp.sin(h))",
        "h = h * h + lax.stop_gradient(h) * start",
    ],
    "function": [
        "h = {F}(h) * h",
        "h = {G}(h)",
        "h = {H}(h) + h",
        "h = {E}(h)",
        "h = {T}(h) * start",
        "h = jax.vmap({F}, in_axes=None, out_axes=0, axis_size=2)(h)[0] * h",
    ],
    "python": [
        "for _ in range({K}):\n    h = jnp.sin(h) + start",
        "h = h * h if {C} > 0 else jnp.sin(h)",
        "h = h * float({D}) + jnp.cos(h)",
        "h = h * np.sin({P}) + h * h",
        "h = jnp.sin(h) * (2.0 if isinstance({S}, float) else 3.0)",
    ],
    "nested": [
        "h = D.gradient(lambda q: jnp.sum(jnp.sin(q) * {V} * q), h)",
        "h = D.jvp(lambda q: jnp.sin(q) * {V}, h, start)",
        "h = D.hvp(lambda q: jnp.sum(q**3 * {V}), h, start)",
        "h = jax.grad(lambda q: jnp.sum(jnp.cos(q * {V})))(h)",
        "h = D.gradient(lambda q, s: jnp.sum(jnp.tanh(q) * s), h, start)",
        "h = jax.vmap(lambda t: D.gradient(lambda q: q * jnp.sin(q), t))(h)",
    ],
    "by_name": [
        "h = vmap(lambda t: jnp.sin(t) * {D})(h)",
        "h = {VIA}(jnp.sin)(h) * start",
        "h = (lambda t, over=vmap: over(jnp.tanh)(t))(h) * {V}",
        "h = {MADE}(h) + start",
        "h, _ = scan(lambda c, r: (jnp.sin(c) * r + {V}, None), h, {R})",
        "h = cond(jnp.sum(h) > 0, lambda t: t * {V}, jnp.sin, h)",
        "h = fori_loop(0, 2, lambda i, t: jnp.sin(t) * {V} + {S}, h)",
        "h = checkpoint(lambda t: jnp.sin({M} @ t))(h)",
        "h = jit(lambda t: jnp.cos(t) * {P})(h)",
        "h = grad(lambda q: jnp.sum(jnp.cos(q * {V})))(h)",
        "h = h * value_and_grad(lambda q: jnp.sum(q**2 * {V}))(h)[0]",
        "h = associative_scan(jnp.multiply, 1.0 + 0.1 * jnp.sin(h))",
    ],
    "library": [
        "h = {NET}(h) + start",
        "h = vmap({NET})(jnp.stack([h, start]))[0]",
        "h = {CFG}(h) + h",
        "h = h * {ROW}.weight + {ROW}.shift",
        "h = h * {RATE}(3)",
        "h = {OBJ}(h) * start",
        "h = jnp.sin(h) * {BAG}['s'] + h * {SPACE}.rate",
        "h = h ** len({TEXT}.pattern)",
    ],
    "cached": ["h = {FILLS}(h)", "h = {FILLS}(h) * start + h"],
    "order": [
        "h = (h * {V} + {P}) if {K} > 1 else (h * {P} + {V})",
        "h = ({V}, {M}, jnp.sin(h) * {P})[2]",
        "h = h * {V}[{K} % 2] + {S} * start",
        "h = {S} * h + {N} * start + {K}",
    ],
}

TAILS = [
    "jnp.sum(h)",
    "h @ h",
    "jnp.sum(jnp.tanh(h))",
    "jax.nn.logsumexp(h)",
    "jnp.sum(h * h * {V})",
    "h[0] * h[-1]",
    "jnp.mean(jnp.cos(h))",
]

# How the point becomes the first `h`: vector, matrix, trees, scalar.
HEADS = {
    "vector": "h = x",
    "matrix": "h = x.ravel()",
    "dict": "h = jnp.append(x['a'], x['b'])",
    "tuple": "h = jnp.concatenate([x[0], jnp.sin(x[1][0]).ravel()])",
    "mixed": "h = jnp.append(x['a'], jnp.asarray(x['w']) * x['n'])",
    "scalar": "h = jnp.stack([jnp.sin(x), x, x * x])",
}


def fill(template: str, label: str, rng, n: int) -> tuple[str, list[Capture]]:
    """Replace the placeholders of a template by names; return its captures too."""
    captures = {}
    for letter in re.findall(r"\{([A-Z]+)\}", template):
        if letter not in captures:
            now, later = CAPTURES[letter](rng, n)
            captures[letter] = Capture(f"{letter.lower()}{label}", now, later)
    for letter, capture in captures.items():
        template = template.replace(f"{{{letter}}}", capture.name)
    return template, list(captures.values())
