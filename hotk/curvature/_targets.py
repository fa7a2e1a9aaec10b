"""Outputs and targets of losses: of one shape, real, and possible."""

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Inexact, Shaped

from hotk._core import OutputError, StructureError, describe, is_known, message


Outputs: TypeAlias = Inexact[Array, "N *outputs"]
"""The outputs of a model, examples first."""

Targets: TypeAlias = Shaped[Array, "N ..."]
"""What they are compared with: as many numbers, or class numbers."""


def as_array(values: jax.typing.ArrayLike) -> Array:
    """Return targets as an array of JAX.

    Those of NumPy are copied, as the user may write to them.
    """
    return values if isinstance(values, jax.Array) else jnp.array(values)


def like_outputs(loss: object, targets: Targets, z: Outputs) -> Targets:
    """Return targets in the dtype of the outputs, of which there must be as many.

    Broadcast against each other, N targets and outputs of shape (N, 1) would be N times
    N: a loss, and a curvature, N times as large.

    Raises:
        StructureError: If they have another shape.
        OutputError: If one of them is complex.
    """
    refuse_complex(loss, z, targets)
    if targets.shape != z.shape:
        raise other_shape(loss, str(z.shape), targets)
    return targets.astype(z.dtype)


def refuse_complex(loss: object, *arrays: Array) -> None:
    """Refuse complex outputs and targets: no loss here is a real number of them.

    Args:
        loss: The loss, for the message.
        *arrays: The outputs, and the targets.

    Raises:
        OutputError: If one of them is complex.
    """
    for array in arrays:
        if jnp.iscomplexobj(array):
            raise OutputError(
                message(
                    f"{type(loss).__name__}(targets)(z)",
                    "outputs or targets are complex.",
                    expected="real numbers",
                    got=describe(array),
                    fix="Let the model return real and imaginary parts as two outputs, "
                    "`jnp.stack([z.real, z.imag], axis=-1)`, and split the targets "
                    "alike.",
                )
            )


def no_examples(loss: Any, what: str, shape: str, z: Array) -> StructureError:
    """Return the error for the outputs of one example, without an axis for it."""
    return StructureError(
        message(
            f"{type(loss).__name__}(targets)(z)",
            f"the {what} have no axis of examples.",
            expected=f"{what} of shape {shape}",
            got=str(z.shape),
            fix="Of one example: `z[None]`, and `targets[None]`.",
        )
    )


def impossible(loss: Any, low: float, high: float) -> ValueError:
    """Return the error for targets that are not from `low` to `high`."""
    return ValueError(
        message(
            f"{type(loss).__name__}(targets)",
            "some targets are impossible.",
            expected=f"numbers from {low:g} to {high:g}",
            got=f"{np.min(loss.targets)} to {np.max(loss.targets)}",
            fix="Classes count from 0. To leave out an example, give it the weight "
            "zero, by `example_weights=`.",
        )
    )


def other_shape(loss: object, expected: str, targets: Targets) -> StructureError:
    """Return the error for targets that do not fit the outputs."""
    name = type(loss).__name__
    return StructureError(
        message(
            f"{name}(targets)(z)",
            "the targets do not have the shape of the outputs.",
            expected=f"targets of shape {expected}",
            got=str(targets.shape),
            fix="Reshape the targets, or the outputs of the model; hotk never "
            "broadcasts them.",
        )
    )


def as_weights(values: jax.typing.ArrayLike | None) -> Float[Array, " N"] | None:
    """Return weights as floating numbers: integers and truth values become those."""
    if values is None:
        return None
    w = as_array(values)
    return w if jnp.issubdtype(w.dtype, jnp.floating) else w.astype(float)


def in_support(loss: Any) -> bool:
    """Whether the targets lie in the support, where they and the weights are known."""
    arrays = (
        (loss.targets,)
        if loss.example_weights is None
        else (loss.targets, loss.example_weights)
    )
    if not all(map(is_known, arrays)):
        return True
    targets, *weights = map(np.asarray, arrays)
    counted = targets[weights[0] != 0] if weights else targets
    low, high = loss.support
    slack = 4 * float(jnp.finfo(counted.dtype).eps) if counted.dtype.kind == "f" else 0
    return not np.any((counted < low) | (counted > high + slack))
