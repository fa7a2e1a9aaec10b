"""`custom`: a function with derivative rules of its own, any of them, for each mode."""

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

from hotk._core import describe, function_name
from hotk.capture import Ruled
from hotk.mode import Forward, Reverse

from ._application import call_with_rules
from ._disabled import is_disabled


Modes = tuple[type[Forward] | type[Reverse], ...]
_BOTH: Modes = (Forward, Reverse)
_EXTRAS = ("y", "built")


class Custom(Ruled):
    """A function with rules for its derivatives; `hotk.rule.custom` makes one."""

    def __init__(
        self, f: Callable[..., Any], build: Callable[..., Any] | None = None
    ) -> None:
        functools.update_wrapper(self, f, updated=())  # names, but not what it holds
        self.f = f
        self.origin = f  # what `disabled` tells it by
        self.build = build
        self.jvp: Callable[..., Any] | None = None
        self.vjp: Callable[..., Any] | None = None
        self.hvp: Callable[..., Any] | None = None
        self.taylor: Callable[..., Any] | None = None
        self.jvp_modes = _BOTH
        self.vjp_modes = _BOTH
        self.notes: tuple[str, ...] = ()
        self.transposable = True  # whether JAX can transpose the rules

    def def_jvp(
        self, rule: Callable[..., Any] | None = None, *, modes: Modes = _BOTH
    ) -> Any:
        r"""Give the forward rule: $t \mapsto J(x)\,t$.

        Args:
            rule: `rule(primals, tangents)`, linear in the tangents, which returns the
                tangent of the output alone, never the value. Both are tuples with one
                entry an argument; the tangent of an integer, and of anything else that
                is no floating-point array, is `None`, that of an array held fixed is
                zero. With a keyword-only parameter `y` it gets the value of the
                function, and with `built` what `build` returned.
            modes: Which modes it may serve. With `hotk.Reverse` among them it is
                transposed where there is no reverse rule.

        Returns:
            The rule, so that this may decorate it.
        """
        if rule is None:
            return functools.partial(self.def_jvp, modes=modes)
        self.jvp, self.jvp_modes = rule, _checked(modes)
        return rule

    def def_vjp(
        self, rule: Callable[..., Any] | None = None, *, modes: Modes = _BOTH
    ) -> Any:
        r"""Give the reverse rule: $u \mapsto J(x)^T u$.

        Args:
            rule: `rule(primals, cotangent)`, linear in the cotangent, which returns a
                tuple with the cotangent of each argument; `None` is zero. For `y` and
                `built` see `def_jvp`.
            modes: Which modes it may serve. With `hotk.Forward` among them it is
                transposed where there is no forward rule.

        Returns:
            The rule, so that this may decorate it.
        """
        if rule is None:
            return functools.partial(self.def_vjp, modes=modes)
        self.vjp, self.vjp_modes = rule, _checked(modes)
        return rule

    def def_hvp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        r"""Give the second-order rule: $t \mapsto \sum_k u_k \nabla^2 f_k(x)\,t$.

        Args:
            rule: `rule(primals, tangents, cotangent)`, which returns a tuple with one
                entry an argument: the derivative of the reverse rule along the
                tangents, for a cotangent held fixed. `None` is zero. For `y` and
                `built` see `def_jvp`. As Hessians are symmetric it serves all nestings.

        Returns:
            The rule, so that this may decorate it.
        """
        self.hvp = rule
        return rule

    def def_taylor(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        r"""Give the rule for truncated Taylor series.

        Args:
            rule: `rule(primals, series)`, where the series of an argument is a list of
                its coefficients 1 to K along a curve, $x_k = x^{(k)}(0)/k!$; it returns
                the list of the output's. Taylor mode takes it in place of what follows
                from the other rules. For `y` and `built` see `def_jvp`.

        Returns:
            The rule, so that this may decorate it.
        """
        self.taylor = rule
        return rule

    @property
    def extras(self) -> dict[str, tuple[str, ...]]:
        """For each rule which of the keywords `y` and `built` it takes."""
        return {name: _extras(rule) for name, rule in self.rules().items()}

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Bind a method: the instance is the first argument."""
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Evaluate the function, so that its derivatives follow the rules."""
        args = _by_position(self.f, args, keywords)
        if is_disabled(self) or not self.rules():
            return self.f(*args)
        return call_with_rules(self, args)

    def rules(self) -> dict[str, Callable[..., Any]]:
        """Return the rules that were given, by name."""
        found = {name: getattr(self, name) for name in ("jvp", "vjp", "hvp", "taylor")}
        return {name: rule for name, rule in found.items() if rule is not None}

    def __repr__(self) -> str:
        """Show the function and its rules."""
        return f"<{function_name(self.f)} with rules: {', '.join(self.rules()) or '-'}>"


def custom(
    f: Callable[..., Any] | None = None, *, build: Callable[..., Any] | None = None
) -> Any:
    r"""Give a function derivative rules of its own: any of them, for each mode.

    The result computes what `f` computes. Rules are added to it by `def_jvp` (forward),
    `def_vjp` (reverse), `def_hvp` (second order) and `def_taylor`; a missing one is
    derived: the reverse rule by transposing the forward one, the forward one by
    transposing the reverse one, both from the body of `f` where there is neither, and
    all of higher order by differentiating the rules. So a function with one rule has
    derivatives to any order, in every nesting, under `jit`, `vmap`, `scan` and
    `checkpoint`. A rule returns tangents only: the value is always that of the
    function, which is why its rules are there at every order.

    Args:
        f: Function of positional arguments: pytrees of arrays and Python numbers.
            Python integers, strings, functions and `None` are static. It returns a
            pytree of arrays.
        build: `build(*shapes)`: what the rules need and what no derivative is taken of,
            from arguments of shapes and dtypes (`jax.ShapeDtypeStruct`). It is called
            once for a signature, outside of all transformations; `f` and rules with a
            keyword-only parameter `built` get what it returned.

    Returns:
        A function with the methods `def_jvp`, `def_vjp`, `def_hvp` and `def_taylor`;
        a decorator for `f` without `f`.

    Raises:
        ModeError: When it is differentiated by an array that `f` or a rule has
            captured: no rule knows of it. Pass the array as an argument.
        StructureError: When a rule returns another structure or shape than it must.
        DtypeError: When a rule returns another dtype.

    Example:
        >>> @hotk.rule.custom
        ... def cube(x):
        ...     return x**3
        >>> @cube.def_vjp
        ... def _(primals, u):
        ...     (x,) = primals
        ...     return (3 * x**2 * u,)
        >>> hotk.second_derivative(cube, 2.0).item()
        12.0
        >>> mode = hotk.FORWARD_OVER_FORWARD
        >>> hotk.second_derivative(cube, 2.0, mode=mode).item()
        12.0

    References:
        White, Abbott, Zgubic, Revels et al. (2023). ChainRules.jl, for the idea of one
        set of rules for all modes. Griewank and Walther (2008). Evaluating
        Derivatives, 2nd ed., chapters 3 and 5. SIAM.
    """
    if f is None:
        return functools.partial(custom, build=build)
    if not callable(f):
        raise TypeError(f"`rule.custom(f)`: `f` must be a function, not {describe(f)}.")
    return Custom(f, build)


def _extras(rule: Callable[..., Any]) -> tuple[str, ...]:
    """Return which of the keywords `y` and `built` a rule takes."""
    try:
        parameters = inspect.signature(rule).parameters.values()
    except (TypeError, ValueError):
        return ()
    only = inspect.Parameter.KEYWORD_ONLY
    return tuple(p.name for p in parameters if p.kind is only and p.name in _EXTRAS)


def _checked(modes: Modes) -> Modes:
    given = modes if isinstance(modes, (tuple, list)) else (modes,)
    made = tuple(m if isinstance(m, type) else type(m) for m in given)
    for mode in made:
        if mode not in _BOTH:
            raise TypeError(
                f"`modes` holds hotk.Forward, hotk.Reverse or both, not {mode!r}."
            )
    return made


def _by_position(f: Any, args: Any, keywords: Any) -> tuple[Any, ...]:
    try:
        signature = inspect.signature(f)
    except (TypeError, ValueError):  # of a builtin, which takes them by position
        return args
    only = inspect.Parameter.KEYWORD_ONLY
    kept = [p for p in signature.parameters.values() if p.kind is not only]
    named = {p.name for p in signature.parameters.values() if p.kind is only}
    for name in sorted(named & keywords.keys()):
        raise TypeError(
            f"`{function_name(f)}` has rules, which know arguments by position: make "
            f"`{name}` a positional parameter, or bind it with `functools.partial` "
            "before the rules are given."
        )
    bound = signature.replace(parameters=kept).bind(*args, **keywords)
    bound.apply_defaults()
    if bound.kwargs:
        raise TypeError(
            f"`{function_name(f)}` has rules: its arguments are given by position, so "
            f"it takes no `**{kept[-1].name}`."
        )
    return bound.args
