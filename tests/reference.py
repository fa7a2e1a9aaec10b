"""What the operators mean, in JAX alone: uncached, unjitted, one line each."""

import equinox as eqx
import jax
import jax.numpy as jnp


def jvp(f, x, v):
    return jax.jvp(f, (x,), (v,))[1]


def vjp(f, x, u):
    return jax.vjp(f, x)[1](u)[0]


def derivative(f, x):
    return jax.jacfwd(f)(x)


def gradient(f, x):
    return jax.grad(f)(x)


def jacobian(f, x):
    return jax.jacrev(f)(x)


def forward_over_reverse(f, x, v):
    return jvp(jax.grad(f), x, v)


def reverse_over_reverse(f, x, v):
    return vjp(jax.grad(f), x, v)  # the Hessian is symmetric, for complex x too


def reverse_over_forward(f, x, v):
    return jax.grad(lambda x: jvp(f, x, v))(x)


def forward_over_forward(f, x, v):
    return jax.jacfwd(lambda x: jvp(f, x, v))(x)


hvp = forward_over_reverse


def quadratic_form(f, x, v):
    return jvp(lambda x: jvp(f, x, v), x, v)


def second_derivative(f, x):
    return jax.jacfwd(jax.jacfwd(f))(x)


def hessian(f, x):
    if not jax.tree.leaves(x):  # JAX looks for a dtype
        return x
    return jax.jacfwd(jax.jacrev(f))(x)


def hessian_diagonal(f, x):
    rows = hessian(f, x)
    leaves, tree = jax.tree.flatten(x)
    row = tree.flatten_up_to(rows)
    blocks = [tree.flatten_up_to(r)[i] for i, r in enumerate(row)]
    return tree.unflatten(
        jnp.diag(b.reshape(leaf.size, leaf.size)).reshape(leaf.shape)
        for b, leaf in zip(blocks, leaves, strict=True)
    )


NESTINGS = {
    "FORWARD_OVER_REVERSE": forward_over_reverse,
    "REVERSE_OVER_REVERSE": reverse_over_reverse,
    "REVERSE_OVER_FORWARD": reverse_over_forward,
    "FORWARD_OVER_FORWARD": forward_over_forward,
}


def differentiable_part(f, x, args=()):
    """Return f as a function of the real and complex leaves of x, and those leaves.

    The other leaves are held fixed and stand as `None`, in results too.
    """
    moving, fixed = eqx.partition(x, eqx.is_inexact_array_like)
    moving = jax.tree.map(jnp.asarray, moving)
    return lambda moving: f(eqx.combine(moving, fixed), *args), moving
