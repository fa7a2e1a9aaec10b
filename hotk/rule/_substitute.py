"""`substitute`: derivatives of a reference in place of those that a kernel lacks."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax

from hotk._core import StructureError, function_name, message
from hotk.capture import Opaque, Rebuild, Ruled, survey

from ._custom import Custom


class Substituted(Ruled):
    """A function in which some kernels have the derivatives of references."""

    def __init__(self, f: Callable[..., Any], kernels: tuple[Any, ...]) -> None:
        self.f = f
        self.kernels = kernels

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Evaluate the function, as it is now."""
        try:
            _, trail = survey(self.f)
        except (Opaque, RecursionError) as reason:
            raise _hidden(self.f, f"a function that is opaque: {reason}") from reason
        ruled = {}
        for kernel, reference in self.kernels:
            if id(kernel) not in trail.nodes and kernel is not self.f:
                raise _hidden(self.f, f"no `{function_name(kernel)}` that it captures")
            ruled[id(kernel)] = _with_reference(kernel, reference)
        _, left = survey(Rebuild(trail, dict.fromkeys(ruled, None))(self.f))
        for kernel, _ in self.kernels:
            if id(kernel) in left.nodes:
                raise _hidden(self.f, f"`{function_name(kernel)}` in a class's method")
        return Rebuild(trail, ruled)(self.f)(*args, **keywords)

    def __repr__(self) -> str:
        """Show the function and the kernels."""
        names = ", ".join(function_name(kernel) for kernel, _ in self.kernels)
        return f"<{function_name(self.f)} with references for: {names}>"


def substitute(
    kernels: Mapping[Callable[..., Any], Callable[..., Any]],
) -> Callable[[Callable[..., Any]], Substituted]:
    """Differentiate references in place of kernels that have no derivatives.

    The value is computed by the kernel, every derivative by the reference: a fused
    kernel (flash attention, Pallas) keeps its speed where nothing is differentiated,
    and has derivatives to any order in every mode.

    Args:
        kernels: From kernels to references: functions of the same arguments with
            results of the same structure. What is passed to a kernel by keyword is an
            option, passed on to its reference, and not differentiated. A kernel is
            found where the function captures it: as a global, in a closure, as a
            default or an attribute, but not inside of a function of `jax.jit`.

    Returns:
        A function that takes a function and returns it with its kernels substituted.

    Raises:
        StructureError: When the function is called, if a kernel is not found in it.

    Example:
        >>> fast_sine = jax.jit(lambda x: jax.pure_callback(np.sin, x, x))
        >>> loss = lambda x: jnp.sum(fast_sine(x) ** 2)
        >>> smooth = hotk.rule.substitute({fast_sine: jnp.sin})(loss)
        >>> print(f"{hotk.second_derivative(smooth, 0.5):.4f}")  # 2 cos(2 x)
        1.0806
    """
    pairs = tuple(kernels.items())
    return lambda f: Substituted(f, pairs)


def _with_reference(kernel: Any, reference: Any) -> Callable[..., Any]:
    """Return the kernel with the derivatives of the reference, options as they come."""

    def call(*args: Any, **options: Any) -> Any:
        if options:
            bind = lambda f: functools.partial(f, **options)
            return _ruled(bind(kernel), bind(reference))(*args)
        return ruled(*args)

    ruled = _ruled(kernel, reference)
    return call


def _ruled(kernel: Any, reference: Any) -> Custom:
    ruled = Custom(lambda *args: kernel(*args))
    ruled.origin = kernel

    def tangent(primals: Any, tangents: Any) -> Any:
        leaves, tree = jax.tree.flatten(primals)
        along = tree.flatten_up_to(tangents)
        moving = [t is not None for t in along]

        def moved(some: list[Any]) -> Any:
            rest = iter(some)
            pairs = zip(leaves, moving, strict=True)
            return reference(*tree.unflatten(next(rest) if m else a for a, m in pairs))

        point = [a for a, m in zip(leaves, moving, strict=True) if m]
        return jax.jvp(moved, (point,), ([t for t in along if t is not None],))[1]

    ruled.def_jvp(tangent)
    return ruled


def _hidden(f: Any, got: str) -> StructureError:
    return StructureError(
        message(
            "rule.substitute(kernels)(f)",
            f"the kernel is not found in `{function_name(f)}`.",
            expected="a kernel that the function captures",
            got=got,
            fix="Substitute before `jax.jit`, which hides what it holds, or give the "
            "kernel rules where it is defined, with `hotk.rule.custom`.",
        )
    )
