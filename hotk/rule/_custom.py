"""`custom`: a function with derivative rules of its own, for each mode; `disabled`."""

import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar, overload

from jaxtyping import PyTree

from hotk._capture import CustomDerivative
from hotk._core import WITHOUT_RULES, describe, function_name
from hotk._mode import Forward, Reverse

from ._application import call_with_rules
from ._shape import Modes, Rule


_ALL = "all"


@contextlib.contextmanager
def disabled(*functions: Callable[..., PyTree]) -> Iterator[None]:
    """Differentiate functions as if they had no rules, within a `with` block.

    To find out whether a rule is right, or what it costs. A function of
    `hotk.rule.external` has no body that JAX can differentiate, and raises there.

    Args:
        *functions: Functions made by `hotk.rule`: `custom`, `external`, `root`,
            `minimum`, `fixed_point`; without any, all of them. Those of one `def` or
            `lambda` with other captured values count as one function.

    Returns:
        A context manager. What is traced inside of it has no rules, in this thread.

    Raises:
        TypeError: If one of them has no rules.

    Example:
        >>> f = hotk.rule.custom(lambda x: x**2)
        >>> _ = f.def_jvp(lambda primals, tangents: 100 * tangents[0])
        >>> jax.grad(f)(3.0).item()
        100.0
        >>> with hotk.rule.disabled(f):
        ...     jax.grad(f)(3.0).item()
        6.0
    """
    for function in functions:
        if not hasattr(function, "origin"):
            raise TypeError(
                f"`rule.disabled(...)`: `{function_name(function)}` has no rules of "
                "hotk; give what `hotk.rule.custom`, `root` or the like returned."
            )
    more = frozenset(map(_identity, functions)) or frozenset((_ALL,))
    with WITHOUT_RULES(WITHOUT_RULES.value | more):
        yield


def is_disabled(function: object) -> bool:
    """Whether a function is to be differentiated without its rules."""
    now = WITHOUT_RULES.value
    return bool(now) and (_ALL in now or _identity(function) in now)


def _identity(function: object) -> object:
    """Return what copies of a function have in common, those in a program as well."""
    # By its code: a prepared program holds a copy with tracers in its cells.
    origin = getattr(function, "origin", function)
    return getattr(origin, "__code__", origin)


GivenRule = TypeVar("GivenRule", bound=Rule)

_BOTH: Modes = (Forward, Reverse)
_EXTRAS = ("y", "built")


class Custom(CustomDerivative):
    """A function with rules for its derivatives; `hotk.rule.custom` makes one.

    Called like the function, it computes the same value. `def_jvp`, `def_vjp`,
    `def_hvp` and `def_taylor` give it rules and serve as decorators.

    Attributes:
        f: The function.
        origin: What the function was made of, by which `hotk.rule.disabled` knows it.
        build: What builds constants for the rules, if anything does.
        jvp: The forward rule, if there is one.
        vjp: The reverse rule, if there is one.
        hvp: The rule of second order, if there is one.
        taylor: The rule for Taylor series, if there is one.
        jvp_modes: Which modes the forward rule may serve.
        vjp_modes: Which modes the reverse rule may serve.
        notes: What `info` says of the rule of second order.
        transposable: Whether JAX can transpose the rules; those of the host it cannot.
    """

    def __init__(
        self, f: Callable[..., PyTree], build: Callable[..., PyTree] | None = None
    ) -> None:
        # Names and docstring of `f`, but not its `__dict__`: the attributes of another
        # function with rules would become this one's.
        functools.update_wrapper(self, f, updated=())
        self.f = f
        self.origin: object = f
        self.build = build
        self.jvp: Rule | None = None
        self.vjp: Rule | None = None
        self.hvp: Rule | None = None
        self.taylor: Rule | None = None
        self.jvp_modes = _BOTH
        self.vjp_modes = _BOTH
        self.notes: tuple[str, ...] = ()
        self.transposable = True

    @overload
    def def_jvp(self, rule: GivenRule, *, modes: Modes = _BOTH) -> GivenRule: ...

    @overload
    def def_jvp(
        self, rule: None = None, *, modes: Modes = _BOTH
    ) -> Callable[[GivenRule], GivenRule]: ...

    def def_jvp(self, rule: Rule | None = None, *, modes: Modes = _BOTH) -> PyTree:
        r"""Give the forward rule: $t \mapsto J(x)\,t$.

        Args:
            rule: `rule(primals, tangents)`, linear in the tangents, which returns the
                tangent of the output alone, never the value. Both are tuples with one
                entry for each argument; the tangent of an integer, and of anything else
                that is not a floating array, is `None`, that of an array held fixed
                is zero. With a keyword-only parameter `y` it gets the value of the
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

    @overload
    def def_vjp(self, rule: GivenRule, *, modes: Modes = _BOTH) -> GivenRule: ...

    @overload
    def def_vjp(
        self, rule: None = None, *, modes: Modes = _BOTH
    ) -> Callable[[GivenRule], GivenRule]: ...

    def def_vjp(self, rule: Rule | None = None, *, modes: Modes = _BOTH) -> PyTree:
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

    def def_hvp(self, rule: GivenRule) -> GivenRule:
        r"""Give the second-order rule: $t \mapsto \sum_k u_k \nabla^2 f_k(x)\,t$.

        Args:
            rule: `rule(primals, tangents, cotangent)`, which returns a tuple with one
                entry for each argument: the derivative of the reverse rule along the
                tangents, for a cotangent held fixed. `None` is zero. For `y` and
                `built` see `def_jvp`. As Hessians are symmetric it serves all nestings.

        Returns:
            The rule, so that this may decorate it.
        """
        self.hvp = rule
        return rule

    def def_taylor(self, rule: GivenRule) -> GivenRule:
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

    def __get__(
        self, instance: object, owner: type | None = None
    ) -> "Custom | types.MethodType":
        """Bind a method: the instance is the first argument."""
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: PyTree, **keywords: PyTree) -> PyTree:
        """Evaluate the function, so that its derivatives follow the rules."""
        args = _by_position(self.f, args, keywords)
        if is_disabled(self) or not self.rules():
            return self.f(*args)
        return call_with_rules(self, args)

    def rules(self) -> dict[str, Rule]:
        """Return the rules that were given, by name."""
        slots = {name: getattr(self, name) for name in ("jvp", "vjp", "hvp", "taylor")}
        return {name: rule for name, rule in slots.items() if rule is not None}

    def __repr__(self) -> str:
        """Show the function and its rules."""
        return f"<{function_name(self.f)} with rules: {', '.join(self.rules()) or '-'}>"


@overload
def custom(
    f: Callable[..., PyTree], *, build: Callable[..., PyTree] | None = None
) -> Custom: ...


@overload
def custom(
    f: None = None, *, build: Callable[..., PyTree] | None = None
) -> Callable[[Callable[..., PyTree]], Custom]: ...


def custom(
    f: Callable[..., PyTree] | None = None,
    *,
    build: Callable[..., PyTree] | None = None,
) -> Custom | Callable[[Callable[..., PyTree]], Custom]:
    r"""Give a function custom derivative rules: any of them, for each mode.

    The result computes what `f` computes. Rules are added to it by `def_jvp` (forward),
    `def_vjp` (reverse), `def_hvp` (second order) and `def_taylor`; a missing one is
    derived: the reverse rule by transposing the forward one, the forward one by
    transposing the reverse one, both from the body of `f` where there is neither, and
    all of higher order by differentiating the rules. So a function with one rule has
    derivatives to any order, in every nesting, under `jit`, `vmap`, `scan` and
    `checkpoint`. A rule returns tangents only: the value is always that of the
    function, so its rules apply at every order. Under `jax.jit` a call costs what `f`
    costs, and a derivative what its rule costs, transposed or not.

    Args:
        f: Function of positional arguments: pytrees of arrays and Python numbers.
            Python integers, strings, functions and `None` are static. It returns a
            pytree of arrays.
        build: `build(*shapes)`: what the rules need and what no derivative is taken of,
            from shapes and dtypes of the arguments (`jax.ShapeDtypeStruct`). It is
            called once for a signature, outside of all transformations; `f` and rules
            with a keyword-only parameter `built` get what it returned.

    Returns:
        A function with the methods `def_jvp`, `def_vjp`, `def_hvp` and `def_taylor`;
        a decorator for `f` without `f`.

    Raises:
        TypeError: If `f` is not a function.
        ModeError: When it is differentiated by an array that `f` or a rule captures:
            rules give derivatives by arguments only. Pass the array as an argument.
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


def _extras(rule: Rule) -> tuple[str, ...]:
    """Return which of the keywords `y` and `built` a rule takes."""
    try:
        parameters = inspect.signature(rule).parameters.values()
    except (TypeError, ValueError):
        return ()
    only = inspect.Parameter.KEYWORD_ONLY
    return tuple(p.name for p in parameters if p.kind is only and p.name in _EXTRAS)


def _checked(modes: Modes) -> Modes:
    given = modes if isinstance(modes, (tuple, list)) else (modes,)
    classes = tuple(m if isinstance(m, type) else type(m) for m in given)
    for mode in classes:
        if mode not in _BOTH:
            raise TypeError(
                f"`modes` holds hotk.Forward, hotk.Reverse or both, not {mode!r}."
            )
    return classes


def _by_position(
    f: Callable[..., PyTree], args: tuple[PyTree, ...], keywords: Mapping[str, PyTree]
) -> tuple[PyTree, ...]:
    """Return the arguments of a call by position, as rules get them."""
    try:
        signature = inspect.signature(f)
    except (TypeError, ValueError):  # of a builtin, which takes them by position
        return args
    only = inspect.Parameter.KEYWORD_ONLY
    positional = [p for p in signature.parameters.values() if p.kind is not only]
    named = {p.name for p in signature.parameters.values() if p.kind is only}
    for name in sorted(named & keywords.keys()):
        raise TypeError(
            f"`{function_name(f)}` has rules, which get arguments by position: make "
            f"`{name}` a positional parameter, or bind it with `functools.partial` "
            "before you give the rules."
        )
    bound = signature.replace(parameters=positional).bind(*args, **keywords)
    bound.apply_defaults()
    if bound.kwargs:
        raise TypeError(
            f"`{function_name(f)}` has rules: its arguments are given by position, so "
            f"it takes no `**{positional[-1].name}`."
        )
    return bound.args
