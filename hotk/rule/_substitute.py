"""`substitute`: derivatives of a reference in place of those that a kernel lacks."""

import functools
from collections.abc import Callable, Mapping

import jax
from jaxtyping import Array, PyTree

from hotk._capture import CustomDerivative, Opaque, Rebuild, survey
from hotk._core import Function, StructureError, function_name, message

from ._custom import Custom


class Substituted(CustomDerivative):
    """A function in which some kernels have the derivatives of references.

    `hotk.rule.substitute` makes one. It is called like the function.

    Attributes:
        f: The function.
        kernels: Pairs of a kernel and its reference.
    """

    def __init__(
        self, f: Function, kernels: tuple[tuple[Function, Function], ...]
    ) -> None:
        self.f = f
        self.kernels = kernels

    def __call__(self, *args: PyTree, **keywords: PyTree) -> PyTree:
        """Evaluate the function, as it is now."""
        try:
            _, trail = survey(self.f)
        except (Opaque, RecursionError) as reason:
            raise _hidden(self.f, f"a function that is opaque: {reason}") from reason
        replacements = {}
        for kernel, reference in self.kernels:
            if id(kernel) not in trail.nodes and kernel is not self.f:
                name = function_name(kernel)
                raise _hidden(self.f, f"no `{name}` outside of a class's method")
            replacements[id(kernel)] = _with_reference(kernel, reference)
        # Classes are not copied, so a kernel that a method reads stays where it is. It
        # would silently lack its derivatives: look whether any is left.
        _, left = survey(Rebuild(trail, dict.fromkeys(replacements, None))(self.f))
        for kernel, _ in self.kernels:
            if id(kernel) in left.nodes:
                raise _hidden(self.f, f"`{function_name(kernel)}` in a class's method")
        return Rebuild(trail, replacements)(self.f)(*args, **keywords)

    def __repr__(self) -> str:
        """Show the function and the kernels."""
        names = ", ".join(function_name(kernel) for kernel, _ in self.kernels)
        return f"<{function_name(self.f)} with references for: {names}>"


def substitute(
    kernels: Mapping[Function, Function],
) -> Callable[[Function], Substituted]:
    """Give kernels without derivatives those of reference functions.

    The value is computed by the kernel, every derivative by the reference: a fused
    kernel (flash attention, Pallas) keeps its speed where nothing is differentiated,
    and has derivatives to any order in every mode. The function is copied at each call,
    with other functions in place of the kernels, so call it in `jax.jit` or through an
    operator of hotk.

    Args:
        kernels: From kernels to references: functions of the same arguments with
            results of the same structure. What is passed to a kernel by keyword is an
            option, passed on to its reference, and not differentiated. A kernel is
            found where the function captures it: as a global, in a closure, as a
            default or an attribute, but not inside of a function of `jax.jit`.

    Returns:
        A function from a function to one with its kernels substituted.

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


def _with_reference(kernel: Function, reference: Function) -> Function:
    """Return the kernel with the derivatives of the reference, options as they come."""

    def call(*args: PyTree, **options: PyTree) -> PyTree:
        if options:
            bind = lambda f: functools.partial(f, **options)
            return _with_rule(bind(kernel), bind(reference))(*args)
        return without_options(*args)

    without_options = _with_rule(kernel, reference)
    return call


def _with_rule(kernel: Function, reference: Function) -> Custom:
    # A lambda: `Custom` would read the signature of the kernel, and refuse some.
    function = Custom(lambda *args: kernel(*args))
    function.origin = kernel

    def tangent(primals: PyTree, tangents: PyTree) -> PyTree:
        leaves, tree = jax.tree.flatten(primals)
        along = tree.flatten_up_to(tangents)
        moving = [t is not None for t in along]

        def moved(some: list[Array]) -> PyTree:
            rest = iter(some)
            pairs = zip(leaves, moving, strict=True)
            return reference(*tree.unflatten(next(rest) if m else a for a, m in pairs))

        point = [a for a, m in zip(leaves, moving, strict=True) if m]
        return jax.jvp(moved, (point,), ([t for t in along if t is not None],))[1]

    function.def_jvp(tangent)
    return function


def _hidden(f: Function, got: str) -> StructureError:
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
