"""Programs that XLA is known to compute wrongly, run where one is."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from hotk._core import FUSIONS_FLAG, names_ours


class Backend(NamedTuple):
    """What `hotk.testing.check_backend` returns; it prints as a table.

    Attributes:
        errors: For each program the largest error of all runs, over the largest entry.
        flag: The flag of XLA with which all of them are right.
    """

    errors: dict[str, float]
    flag: str

    @property
    def passed(self) -> bool:
        """Whether all programs are right, up to rounding in single precision."""
        return max(self.errors.values()) < 1e-5

    def __str__(self) -> str:
        """Write one line a program, and the flag to set if one is wrong."""
        lines = [
            f"{name:<24} {error:.1e} {'ok' if error < 1e-5 else 'WRONG'}"
            for name, error in self.errors.items()
        ]
        if not self.passed:
            lines.append(f"set XLA_FLAGS={self.flag} before JAX is imported")
        return "\n".join(lines)


def _one_number(x: Array) -> Array:
    product = x @ jnp.ones((32, 10), x.dtype)
    return (product[None] + jnp.eye(10, dtype=x.dtype)[:, None]).sum(-1)


def _mapped(x: Array) -> Array:
    eye = jnp.eye(3, dtype=x.dtype)
    return jax.vmap(lambda row: jnp.sum((eye @ row) ** 2))(x)


# Each with the shape of an argument whose row k is k everywhere, and what it returns.
_WRONG_BEFORE = (
    ("product with one number", _one_number, (100, 32), lambda k: 320 * k + 1),
    ("mapped product", _mapped, (32_769, 3), lambda k: 3 * k * k),
)


@names_ours
def check_backend(times: int = 3) -> Backend:
    """Run programs that XLA is known to compute wrongly, and compare by hand.

    They are compiled as `jax.jit` compiles your own programs, with the backend and the
    flags that are set. jaxlib 0.10.2 to 0.12 on CPUs fuse a product of matrices with a
    sum into a kernel that reads beyond an operand that is one number, broadcast; the
    one of 0.10.2 is wrong beyond 16384 rows as well. Programs that hotk compiles itself
    are compiled without such fusions; those of your own `jax.jit` are not.

    Args:
        times: How often each program is compiled and run.

    Returns:
        The errors, and the flag to set if one of them is large. Nothing is raised.

    Example:
        >>> import hotk.testing
        >>> found = hotk.testing.check_backend()
        >>> list(found.errors)
        ['product with one number', 'mapped product']
        >>> found.flag
        '--xla_cpu_experimental_ynn_fusion_type=-reduce'
    """
    errors = {}
    for name, f, shape, right in _WRONG_BEFORE:
        numbers = np.arange(shape[0], dtype=np.float32)
        x, expected = np.repeat(numbers[:, None], shape[1], axis=1), right(numbers)
        values = [np.asarray(jax.jit(lambda x, f=f: f(x))(x)) for _ in range(times)]
        off = [np.nan_to_num(abs(v - expected), nan=np.inf).max() for v in values]
        errors[name] = float(max(off) / expected.max())
    return Backend(errors, f"--{FUSIONS_FLAG}=-reduce")
