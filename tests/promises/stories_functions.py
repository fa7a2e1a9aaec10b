"""Stories of what a function is made of: names it reads, defaults, code, wrappers."""

import array
import builtins
import collections
import contextlib
import functools
import operator
import threading
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from tests.promises.telling import X, cubic, notebook, run_cell, story


# ----- Globals


@story
def a_global_is_bound_again():
    cell = notebook("c = 2.0\ndef f(x): return jnp.sum(c * x**3)")
    yield cell["f"]
    cell["c"] = 3.0
    yield cell["f"]
    cell["c"] = jnp.full(3, 4.0)
    yield cell["f"]
    cell["c"] = jnp.full(3, 5.0)
    yield cell["f"]


@story
def a_lambda_of_a_notebook_is_made_anew_over_a_new_global():
    cell = notebook("c = jnp.full(3, 2.0)")
    yield eval("lambda x: jnp.sum(c * x**3)", cell)
    run_cell("c = jnp.full(3, 3.0)", cell)
    yield eval("lambda x: jnp.sum(c * x**3)", cell)
    run_cell("c = [3.0]", cell)
    yield eval("lambda x: jnp.sum(c[0] * x**4)", cell)
    run_cell("c[0] = 5.0", cell)
    yield eval("lambda x: jnp.sum(c[0] * x**4)", cell)


@story
def a_global_is_read_three_calls_down():
    cell = notebook(
        """
        c = 2.0
        def third(x): return c * x
        def second(x): return third(x) ** 3
        def first(x): return second(x)
        def f(x): return jnp.sum(first(x))
        """
    )
    yield cell["f"]
    cell["c"] = 3.0
    yield cell["f"]
    run_cell("def third(x): return c * x**2", cell)
    yield cell["f"]
    run_cell("second = jnp.sin", cell)
    yield cell["f"]


@story
def the_cell_that_defines_the_function_is_run_again():
    source = "def f(x): return jnp.sum(c * x**3)"
    cell = notebook(source, c=2.0)
    yield cell["f"]
    run_cell(source, cell)
    cell["c"] = 3.0
    yield cell["f"]
    run_cell(source.replace("**3", "**4"), cell)
    yield cell["f"]


@story
def a_global_is_read_inside_an_inner_scope():
    cell = notebook(
        """
        c = 2.0
        def in_a_lambda(x): return jnp.sum((lambda y: c * y**3)(x))
        def in_a_function(x):
            def inner(y, *, power=3):
                return c * y**power
            return jnp.sum(inner(x))
        def in_a_comprehension(x): return sum([c * jnp.sum(x**k) for k in (2, 3)])
        def in_a_generator(x): return sum(c * jnp.sum(x**k) for k in (2, 3))
        def in_a_dict_comprehension(x):
            return sum({k: c * jnp.sum(x**k) for k in (2, 3)}.values())
        def in_a_default(x):
            def inner(y, c=c):
                return c * y**3
            return jnp.sum(inner(x))
        def in_a_class(x):
            class Scale:
                value = c
                def __call__(self, y): return self.value * c * y**3
            return jnp.sum(Scale()(x))
        def in_a_decorator(x):
            def scaled(by): return lambda g: lambda y: by * g(y)
            @scaled(c)
            def inner(y): return y**3
            return jnp.sum(inner(x))
        def in_a_format(x): return jnp.sum(x**3) * float(f"{c:.3f}")
        def in_a_match(x):
            match c:
                case 2.0: return jnp.sum(x**3)
                case _: return jnp.sum(x**4)
        def in_a_walrus(x): return (d := c) * jnp.sum(x**3) + d
        def in_a_nested_comprehension(x):
            return sum([sum([c for _ in range(k)]) * jnp.sum(x**k) for k in (2, 3)])
        """
    )
    names = [name for name in cell if name.startswith("in_a_")]
    for name in names:
        cell["c"] = 2.0
        yield cell[name]
        cell["c"] = 3.0
        yield cell[name]


@story
def a_global_is_read_in_a_helper_that_yields():
    cell = notebook(
        """
        c = 2.0
        def terms(x):
            yield c * x**3
            yield from (c * x**4 for _ in range(2))
        def f(x): return jnp.sum(sum(terms(x)))
        """
    )
    yield cell["f"]
    cell["c"] = 3.0
    yield cell["f"]


@story
def a_global_is_deleted():
    cell = notebook(
        """
        def f(x):
            try:
                return c * jnp.sum(x**3)
            except NameError:
                return jnp.sum(x**4)
        """,
        c=2.0,
    )
    yield cell["f"]
    del cell["c"]
    yield cell["f"]
    cell["c"] = 3.0
    yield cell["f"]


@story
def a_missing_global_raises_until_it_is_there():
    cell = notebook("def f(x): return c * jnp.sum(x**3)")
    yield cell["f"]
    cell["c"] = 3.0
    yield cell["f"]
    del cell["c"]
    yield cell["f"]


@story
def a_builtin_is_shadowed_by_a_global():
    cell = notebook("def f(x): return jnp.sum(abs(x) ** 3) * len((1, 2))")
    yield cell["f"]
    cell["abs"] = jnp.sin
    yield cell["f"]
    cell["len"] = lambda _: 5.0
    yield cell["f"]
    del cell["abs"]
    yield cell["f"]


@story
def a_name_is_added_to_the_builtins():
    cell = notebook("def f(x): return jnp.sum(the_scale * x**3)")
    try:
        builtins.the_scale = 2.0
        yield cell["f"]
        builtins.the_scale = 3.0
        yield cell["f"]
    finally:
        del builtins.the_scale


@story
def a_builtin_itself_is_replaced():
    cell = notebook("def f(x): return jnp.sum(x**3) * len(ascii('a'))")
    original = builtins.ascii
    yield cell["f"]
    try:
        builtins.ascii = lambda _: "a longer text"
        yield cell["f"]
    finally:
        builtins.ascii = original


@story
def what_was_added_to_the_builtins_is_mutated():
    cell = notebook("def f(x): return jnp.sum(x**3) * len(repr(the_scale))")
    try:
        for value in (1, True, 1.0, 0.0, -0.0):
            builtins.the_scale = value
            yield cell["f"]
        builtins.the_scale = [1.0]
        yield cell["f"]
        builtins.the_scale.append(2.0)
        yield cell["f"]
        cell = notebook("def f(x): return jnp.sum(the_scale * x**3)")
        for value in (2.0, 3.0):
            builtins.the_scale = jnp.full(3, value)
            yield cell["f"]
    finally:
        del builtins.the_scale


@story
def a_namespace_has_builtins_of_its_own():
    source = "def f(x): return jnp.sum(scale(x) ** 3)"
    yield notebook(source, __builtins__={"scale": jnp.sin})["f"]
    yield notebook(source, __builtins__={"scale": jnp.cos})["f"]
    space = notebook(source, __builtins__={"scale": jnp.sin})
    yield space["f"]
    space["__builtins__"]["scale"] = jnp.tanh
    yield space["f"]


@story
def a_namespace_has_no_name():
    space: dict = {"jnp": jnp, "c": 2.0}
    exec("def f(x): return jnp.sum(c * x**3)", space)
    yield space["f"]
    space["c"] = 3.0
    yield space["f"]


@story
def the_same_code_has_other_globals():
    def body(x):
        return cubic(c, x)

    code = body.__code__
    yield types.FunctionType(code, {"cubic": cubic, "c": 2.0})
    yield types.FunctionType(code, {"cubic": cubic, "c": 3.0})
    yield types.FunctionType(
        code, {"cubic": lambda c, x: jnp.sum(jnp.sin(c * x)), "c": 3.0}
    )


@story
def the_same_text_is_compiled_with_other_constants():
    text = "lambda x: jnp.sum(x**3) * len(repr({})) + jnp.sum(x**2) * {}"
    for number in ("1", "True", "1.0", "0.0", "-0.0", "10", "1e1"):
        yield eval(text.format(number, number), {"jnp": jnp})


@story
def two_lambdas_differ_in_one_name_only():
    yield lambda x: jnp.sum(jnp.sin(x))
    yield lambda x: jnp.sum(jnp.cos(x))
    yield lambda x: jnp.sum(x * x - x)
    yield lambda x: jnp.sum(x * x + x)
    yield lambda x: jnp.sum(x[:2] ** 3)
    yield lambda x: jnp.sum(x[1:] ** 3)


@story
def a_global_is_read_by_a_computed_name():
    cell = notebook(
        """
        c, name = 2.0, "c"
        class Settings: pass
        settings = Settings()
        settings.c = 2.0
        def by_globals(x): return globals()[name] * jnp.sum(x**3)
        def by_eval(x): return eval("c") * jnp.sum(x**3)
        def by_getattr(x): return getattr(settings, name) * jnp.sum(x**3)
        def by_vars(x): return vars(settings)["c"] * jnp.sum(x**3)
        def by_dict(x): return settings.__dict__["c"] * jnp.sum(x**3)
        def by_own_globals(x): return by_own_globals.__globals__["c"] * jnp.sum(x**3)
        def by_exec(x):
            space = {}
            exec("d = c", globals(), space)
            return space["d"] * jnp.sum(x**3)
        def by_locals(x):
            c = globals()["c"]
            return locals()["c"] * jnp.sum(x**3)
        def by_alias(x):
            look = globals
            return look()["c"] * jnp.sum(x**3)
        def helper(): return globals()
        def by_helper(x): return helper()["c"] * jnp.sum(x**3)
        """
    )
    for name in [name for name in cell if name.startswith("by_")]:
        cell["c"] = cell["settings"].c = 2.0
        yield cell[name]
        cell["c"] = cell["settings"].c = 3.0
        yield cell[name]


@story
def the_name_to_read_is_computed_from_another_global():
    cell = notebook(
        "def f(x): return getattr(jnp, name)(x).sum() * globals()[which]",
        name="sin",
        which="a",
        a=2.0,
        b=3.0,
    )
    yield cell["f"]
    cell["name"] = "cos"
    yield cell["f"]
    cell["which"] = "b"
    yield cell["f"]
    cell["b"] = 5.0
    yield cell["f"]


# ----- Parts of a function object


@story
def a_default_argument_is_mutated_or_replaced():
    def f(x, scales=[2.0]):  # noqa: B006
        return cubic(scales[0], x)

    yield f
    f.__defaults__[0][0] = 3.0
    yield f
    f.__defaults__ = ([5.0],)
    yield f
    f.__defaults__ = (jnp.full(1, 7.0),)
    yield f


@story
def a_keyword_default_is_mutated_or_replaced():
    def f(x, *, scales=(2.0,), table={"c": 1.0}):  # noqa: B006
        return cubic(scales[0] * table["c"], x)

    yield f
    f.__kwdefaults__["table"]["c"] = 3.0
    yield f
    f.__kwdefaults__["scales"] = (5.0,)
    yield f
    f.__kwdefaults__ = {"scales": (7.0,), "table": {"c": 1.0}}
    yield f


@story
def a_default_of_a_helper_is_replaced():
    def helper(x, c=2.0, *, d=1.0):
        return c * d * x**3

    def f(x):
        return jnp.sum(helper(x))

    yield f
    helper.__defaults__ = (3.0,)
    yield f
    helper.__kwdefaults__ = {"d": 5.0}
    yield f


@story
def a_default_is_dropped_and_the_call_fails():
    def f(x, c=2.0):
        return cubic(c, x)

    yield f
    f.__defaults__ = None
    yield f
    f.__defaults__ = (3.0,)
    yield f


@story
def the_code_is_replaced():
    def f(x):
        return jnp.sum(x**3)

    def other(x):
        return jnp.sum(jnp.sin(x))

    def g(x):
        return f(x) + 1.0

    yield f
    yield g
    f.__code__ = other.__code__
    yield f
    yield g


@story
def a_function_reads_its_own_attribute():
    def f(x):
        return cubic(f.scale, x)

    f.scale = 2.0
    yield f
    f.scale = 3.0
    yield f
    f.scale = jnp.full(3, 4.0)
    yield f
    f.__dict__ = {"scale": 5.0}
    yield f


@story
def a_global_function_reads_its_own_attribute():
    cell = notebook("def f(x): return jnp.sum(f.scale * x**3)\nf.scale = 2.0")
    yield cell["f"]
    cell["f"].scale = 3.0
    yield cell["f"]


@story
def the_attribute_of_a_helper_is_read():
    def helper(x):
        return x**3

    helper.table = {"scale": 2.0}

    def f(x):
        return jnp.sum(helper.table["scale"] * helper(x))

    yield f
    helper.table["scale"] = 3.0
    yield f


@story
def a_decorator_reads_the_name_of_what_it_wraps():
    def make(name, power):
        def inner(x):
            return jnp.sum(x**power)

        inner.__name__ = name

        @functools.wraps(inner)
        def outer(x):
            return inner(x) * len(inner.__name__)

        return outer

    yield make("short", 3)
    yield make("much_longer", 3)
    yield make("much_longer", 4)


@story
def what_a_filter_jit_captures_changes():
    def make(scale, power):
        table = {"power": power}

        @eqx.filter_jit
        def f(x):
            return jnp.sum(scale * x ** table["power"])

        return f

    yield make(jnp.array([1.0, 2.0, 3.0]), 3)
    yield make(jnp.array([3.0, 1.0, 2.0]), 3)
    yield make(jnp.array([3.0, 1.0, 2.0]), 4)


@story
def the_name_of_a_function_is_read():
    def helper(x):
        return x**3

    def f(x):
        return jnp.sum(helper(x)) * len(helper.__name__) * len(helper.__doc__ or "a")

    yield f
    helper.__name__ = "a_longer_name"
    yield f
    helper.__doc__ = "What it does."
    yield f


# ----- Wrappers


@story
def a_partial_holds_another_array():
    def body(c, x):
        return cubic(c, x)

    yield functools.partial(body, jnp.full(3, 2.0))
    yield functools.partial(body, jnp.full(3, 3.0))
    yield functools.partial(body, 2.0)
    yield functools.partial(functools.partial(body), 3.0)


@story
def a_partial_holds_keywords():
    def body(x, *, c, power=3):
        return jnp.sum(c * x**power)

    f = functools.partial(body, c=jnp.full(3, 2.0))
    yield f
    f.keywords["c"] = jnp.full(3, 3.0)
    yield f
    f.keywords["power"] = 4
    yield f
    yield functools.partial(f, power=2)


@story
def the_list_inside_a_partial_is_mutated():
    def body(scales, x):
        return cubic(scales[0], x)

    scales = [2.0]
    f = functools.partial(body, scales)
    yield f
    scales[0] = 3.0
    yield f


@story
def a_partial_is_given_another_state():
    f = functools.partial(cubic, 2.0)
    yield f
    f.__setstate__((cubic, (3.0,), {}, {}))
    yield f


@story
def partials_of_jax_and_equinox_hold_another_array():
    yield jax.tree_util.Partial(cubic, jnp.full(3, 2.0))
    yield jax.tree_util.Partial(cubic, jnp.full(3, 3.0))
    yield jax.tree_util.Partial(lambda c, x: jnp.sum(c * x**4), jnp.full(3, 3.0))
    yield eqx.Partial(cubic, jnp.full(3, 2.0))
    yield eqx.Partial(cubic, jnp.full(3, 3.0))


@story
def a_decorator_with_wraps_closes_over_something_that_changes():
    scale = {"c": 2.0}

    def scaled(g):
        @functools.wraps(g)
        def wrapper(*args, **kwargs):
            return scale["c"] * g(*args, **kwargs)

        return wrapper

    power = 3

    @scaled
    def f(x):
        return jnp.sum(x**power)

    yield f
    scale["c"] = 3.0
    yield f
    power = 4
    yield f


@story
def a_decorator_is_a_class():
    class Scaled:
        def __init__(self, g):
            functools.update_wrapper(self, g)
            self.g, self.scale = g, 2.0

        def __call__(self, x):
            return self.scale * self.g(x)

    power = 3

    @Scaled
    def f(x):
        return jnp.sum(x**power)

    yield f
    f.scale = 3.0
    yield f
    power = 4
    yield f
    f.g = lambda x: jnp.sum(jnp.sin(x))
    yield f


@story
def a_cached_helper_is_cleared():
    base = 2.0

    @functools.lru_cache
    def helper(power):
        return base**power

    def f(x):
        return cubic(helper(2), x)

    yield f
    base = 3.0
    yield f  # the user's cache still answers with the old value
    helper.cache_clear()
    yield f


@story
def another_implementation_is_registered():
    @functools.singledispatch
    def scale(kind):
        return 2.0

    def f(x):
        return cubic(scale("a"), x)

    yield f
    scale.register(str, lambda kind: 3.0)
    yield f
    scale.register(str, lambda kind: 5.0)
    yield f


@story
def another_implementation_of_a_method_is_registered():
    class Model:
        @functools.singledispatchmethod
        def scale(self, kind):
            return 2.0

        def loss(self, x):
            return cubic(self.scale("a"), x)

    model = Model()
    yield model.loss
    Model.__dict__["scale"].register(str, lambda self, kind: 3.0)
    yield model.loss


@story
def a_function_under_a_transformation_captures_another_array():
    def through(wrap):
        for c in (2.0, 3.0):
            yield wrap(jnp.array(c), c)

    yield from through(
        lambda a, n: lambda x: jnp.sum(jax.vmap(lambda y: a * n * y**3)(x))
    )
    yield from through(lambda a, n: jax.checkpoint(lambda x: cubic(a * n, x)))
    yield from through(lambda a, n: jax.jit(lambda x: cubic(a * n, x)))
    yield from through(lambda a, n: eqx.filter_jit(lambda x: cubic(a * n, x)))
    yield from through(lambda a, n: eqx.filter_checkpoint(lambda x: cubic(a * n, x)))
    yield from through(lambda a, n: jax.named_call(lambda x: cubic(a * n, x), name="f"))
    yield from through(
        lambda a, n: lambda x: jnp.sum(jax.grad(lambda y: cubic(a * n, y))(x))
    )
    yield from through(
        lambda a, n: lambda x: jax.jvp(lambda y: cubic(a * n, y), (x,), (x,))[1]
    )
    yield from through(
        lambda a, n: lambda x: jnp.sum(jax.vjp(lambda y: cubic(a * n, y), x)[1](a)[0])
    )
    yield from through(
        lambda a, n: lambda x: jnp.sum(jnp.vectorize(lambda y: a * n * y**3)(x))
    )
    yield from through(
        lambda a, n: lambda x: jax.value_and_grad(lambda y: cubic(a * n, y))(x)[0]
    )
    yield from through(
        lambda a, n: (
            lambda x: jax.lax.scan(
                lambda carry, y: (carry + a * n * y**3, None), 0.0 * a, x
            )[0]
        )
    )
    yield from through(
        lambda a, n: (
            lambda x: jax.lax.cond(
                n > 2.5, lambda y: cubic(a * n, y), lambda y: jnp.sum(a * jnp.sin(y)), x
            )
        )
    )


@story
def a_transformed_function_outside_captures_another_array():
    def make(c):
        inner = jax.vmap(lambda y: c * y**3)
        return lambda x: jnp.sum(inner(x))

    yield make(jnp.array(2.0))
    yield make(jnp.array(3.0))
    yield make(2.0)
    yield make(5.0)


@story
def a_transformed_function_reads_a_list_that_is_mutated():
    scales = [2.0]
    inner = jax.vmap(lambda y: scales[0] * y**3)

    def f(x):
        return jnp.sum(inner(x))

    yield f
    scales[0] = 3.0
    yield f


@story
def a_linear_map_is_linearized_at_another_point():
    def make(point):
        tangent_map = jax.linearize(lambda y: y**3, point)[1]
        return lambda x: jnp.sum(jnp.sin(tangent_map(x)))

    yield make(jnp.full(3, 1.0))
    yield make(jnp.full(3, 2.0))


@story
def a_pullback_is_taken_at_another_point():
    def make(point):
        pullback = jax.vjp(lambda y: y**3, point)[1]
        return lambda x: jnp.sum(jnp.sin(pullback(x)[0]))

    yield make(jnp.full(3, 1.0))
    yield make(jnp.full(3, 2.0))


@story
def a_custom_jvp_and_its_rule_read_something_that_changes():
    scale, rule_scale = 2.0, [1.0]

    @jax.custom_jvp
    def g(x):
        return scale * x**3

    @g.defjvp
    def rule(primals, tangents):
        (x,), (t,) = primals, tangents
        return g(x), rule_scale[0] * 3.0 * scale * x**2 * t

    def f(x):
        return jnp.sum(g(x))

    yield f
    scale = 3.0
    yield f
    rule_scale[0] = 5.0
    yield f
    g.defjvp(lambda primals, tangents: (g(*primals), jnp.sin(primals[0]) * tangents[0]))
    yield f


@story
def a_custom_vjp_and_its_rule_read_something_that_changes():
    scale, rule_scale = 2.0, [1.0]

    @jax.custom_vjp
    def g(x):
        return scale * x**3

    def forward(x):
        return scale * x**3, x

    def backward(x, u):
        return (rule_scale[0] * 3.0 * scale * x**2 * u,)

    g.defvjp(forward, backward)

    def f(x):
        return jnp.sum(g(x))

    yield f
    scale = 3.0
    yield f
    rule_scale[0] = 5.0
    yield f
    g.defvjp(forward, lambda x, u: (jnp.sin(x) * u,))
    yield f


@story
def a_custom_rule_is_made_anew_each_time():
    def make(c):
        @jax.custom_jvp
        def g(x):
            return jnp.sum(x**3)

        @g.defjvp
        def rule(primals, tangents):
            return g(*primals), jnp.vdot(c * primals[0] ** 2, tangents[0])

        return g

    yield make(2.0)
    yield make(3.0)
    yield make(jnp.full(3, 2.0))
    yield make(jnp.full(3, 3.0))


# ----- Functions that know themselves


@story
def a_recursive_function_reads_what_changes():
    scale = 2.0

    def power(x, n):
        return scale if n == 0 else x * power(x, n - 1)

    def f(x):
        return jnp.sum(power(x, 3))

    yield f
    scale = 3.0
    yield f


@story
def two_functions_call_each_other():
    cell = notebook(
        """
        c = 2.0
        def even(x, n): return c if n == 0 else x * odd(x, n - 1)
        def odd(x, n): return 1.0 if n == 0 else jnp.sin(x) * even(x, n - 1)
        def f(x): return jnp.sum(even(x, 4))
        """
    )
    yield cell["f"]
    cell["c"] = 3.0
    yield cell["f"]
    run_cell("def odd(x, n): return jnp.cos(x) * even(x, n - 1)", cell)
    yield cell["f"]


@story
def a_closure_captures_itself():
    def make(c):
        def f(x, n=2):
            return cubic(c, x) if n == 0 else 2.0 * f(x, n - 1)

        return f

    yield make(2.0)
    yield make(3.0)
    yield make(jnp.array(2.0))
    yield make(jnp.array(3.0))


@story
def recursion_without_a_name():
    def fix(g):
        return (lambda h: h(h))(lambda h: g(lambda *args: h(h)(*args)))

    c = 2.0
    f = fix(
        lambda self: lambda x, n=3: c * jnp.sum(x) if n == 0 else self(x * x, n - 1)
    )
    yield f
    c = 3.0
    yield f


@story
def a_function_is_composed_of_many():
    layers = [jnp.sin, lambda y: 2.0 * y, jnp.tanh]
    composed = functools.reduce(lambda g, h: lambda x: h(g(x)), layers)

    def f(x):
        return jnp.sum(composed(x))

    yield f
    layers[1] = lambda y: 3.0 * y
    yield f  # composed before: nothing changes
    composed = functools.reduce(lambda g, h: lambda x: h(g(x)), layers)
    yield f


# ----- Callables written in C


@story
def the_getter_of_a_dict_is_captured():
    table = {"c": 2.0}
    get, item = table.get, table.__getitem__

    def f(x):
        return cubic(get("c"), x)

    def g(x):
        return cubic(item("c"), x)

    yield f
    yield g
    table["c"] = 3.0
    yield f
    yield g


@story
def the_getter_of_another_dict_is_captured():
    def make(get):
        return lambda x: cubic(get("c"), x)

    for c in (2.0, 3.0, 4.0, 5.0):
        yield make({"c": c}.get)


@story
def methods_written_in_c_are_captured_with_their_object():
    table, numbers = {"c": 2.0}, [2.0]
    space, local = types.SimpleNamespace(c=2.0), threading.local()
    local.c = 2.0
    queue, raw = collections.deque(numbers), array.array("d", numbers)
    getters = [
        (types.MappingProxyType(table).get, "c"),
        (collections.OrderedDict(table).get, "c"),
        (space.__getattribute__, "c"),
        (local.__getattribute__, "c"),
        (numbers.__getitem__, 0),
        (queue.__getitem__, 0),
        (raw.__getitem__, 0),
        (numbers.count, 3.0),
        (queue.count, 3.0),
    ]

    def make(get, name):
        return lambda x: cubic(1.0 + float(get(name)), x)

    for get, name in getters:
        yield make(get, name)
    table["c"] = numbers[0] = queue[0] = raw[0] = space.c = local.c = 3.0
    for get, name in getters:
        yield make(get, name)


@story
def a_context_manager_made_of_a_generator_reads_a_global():
    cell = notebook(
        """
        import contextlib
        c = 2.0
        @contextlib.contextmanager
        def scaled():
            yield c
        def f(x):
            with scaled() as by:
                return by * jnp.sum(x**3)
        """
    )
    yield cell["f"]
    cell["c"] = 3.0
    yield cell["f"]


@story(holds=False)  # the host runs it when the program does, as it then is
def a_host_function_reads_what_changes():
    box = [2.0]
    scalar = jax.ShapeDtypeStruct((), jnp.float64)

    def f(x):
        return cubic(jax.pure_callback(lambda: np.float64(box[0]), scalar), x)

    def make(c):
        return lambda x: cubic(jax.pure_callback(lambda: np.asarray(c), scalar), x)

    yield f
    yield make(np.float64(2.0))
    yield make(np.array(2.0))
    yield make([np.array(2.0)][0])
    box[0] = 3.0
    yield f
    yield make(np.float64(3.0))
    yield make(np.array(3.0))


@story
def getters_of_the_operator_module_are_captured():
    settings = types.SimpleNamespace(c=2.0, table={"d": 2.0})

    def make(read, of):
        return lambda x: cubic(read(of), x)

    yield make(operator.attrgetter("c"), settings)
    yield make(operator.itemgetter("d"), settings.table)
    yield make(operator.methodcaller("get", "d"), settings.table)
    settings.c = settings.table["d"] = 3.0
    yield make(operator.attrgetter("c"), settings)
    yield make(operator.itemgetter("d"), settings.table)
    yield make(operator.methodcaller("get", "d"), settings.table)


@story
def getters_of_the_operator_module_read_something_else():
    settings = types.SimpleNamespace(a=2.0, b=3.0)

    def make(read):
        return lambda x: cubic(read(settings), x)

    yield make(operator.attrgetter("a"))
    yield make(operator.attrgetter("b"))


@story
def builtins_take_each_others_place():
    def make(reduce_, combine):
        return lambda x: jnp.sum(combine(x, x)) * reduce_((2.0, 3.0))

    yield make(sum, operator.mul)
    yield make(max, operator.mul)
    yield make(max, operator.truediv)
    yield make(min, operator.pow)


@story
def mapped_functions_of_the_user_change():
    scale = 2.0

    def f(x):
        return jnp.sum(sum(map(lambda y: scale * y**3, [x, 2.0 * x])))  # noqa: C417

    yield f
    scale = 3.0
    yield f


@story
def the_key_of_a_sort_changes():
    order = {"a": 1, "b": 2}
    layers = {"a": jnp.sin, "b": jnp.exp}

    def f(x):
        for name in sorted(layers, key=order.get):
            x = layers[name](x)
        return jnp.sum(x)

    yield f
    order["a"] = 3
    yield f


@story
def a_static_method_is_called_without_its_class():
    scale = 2.0

    def body(x):
        return cubic(scale, x)

    f = staticmethod(body)
    yield f
    scale = 3.0
    yield f


@story
def a_method_is_bound_by_hand():
    scales = {"a": 2.0}

    def body(table, x):
        return cubic(table["a"], x)

    f = types.MethodType(body, scales)
    yield f
    scales["a"] = 3.0
    yield f
    yield types.MethodType(body, {"a": jnp.array(5.0)})


# ----- Failures


@story
def a_function_raises_and_then_works():
    broken = True

    def f(x):
        if broken:
            raise ValueError("not yet")
        return jnp.sum(x**3)

    yield f
    broken = False
    yield f
    broken = True
    yield f


@story
def a_function_is_interrupted_and_then_works():
    errors: list[type[BaseException]] = [KeyboardInterrupt, GeneratorExit, SystemExit]

    def f(x):
        y = jnp.sin(x)
        if errors:
            raise errors[-1]
        return jnp.sum(y)

    while errors:
        yield f
        errors.pop()
    yield f


@story
def a_function_catches_its_own_error():
    table = {"c": 2.0}

    def f(x):
        with contextlib.suppress(KeyError):
            return cubic(table["c"], x)
        return jnp.sum(jnp.sin(x))

    yield f
    del table["c"]
    yield f


@story
def a_function_returns_truth_values_and_then_a_scalar():
    total = False

    def f(x):
        return jnp.sum(x**3) if total else x**3 > 0

    yield f
    total = True
    yield f
    total = False
    yield f


@story
def a_function_refuses_an_operation_that_it_allowed():
    c = jnp.ones(3)

    def f(x):
        return jnp.sum(c * x**3)

    yield f
    c = jnp.ones(4)
    yield f
    c = jnp.ones((1, 3))[0]
    yield f


@story
def the_number_of_arguments_changes():
    def f(x, *args, **kwargs):
        return jnp.sum(x**3) * (1.0 + len(args)) + sum(args)

    yield f
    yield f, X, 2.0
    yield f, X, 2.0, 3.0
    yield f


@story
def a_partial_is_made_of_one_that_was_seen():
    def scaled(c, w, x, k=1.0):
        return c * k * jnp.sum(w * x**3)

    inner = functools.partial(scaled, 2.0, jnp.array([2.0, -1.0, 3.0]), k=1.5)

    def f(x):
        return inner(x)

    for c in (3.0, 4.0, 5.0):
        yield f
        inner = functools.partial(inner, k=c)
        yield f
        inner = functools.partial(inner.func, c, *inner.args[1:], **inner.keywords)
    yield f
