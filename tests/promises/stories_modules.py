"""Stories of modules: the user's own, packages, and installed libraries."""

import importlib
import os
import sys
import types

import jax
import jax.numpy as jnp

from tests.promises.telling import (
    X,
    cubic,
    module_on_disk,
    notebook,
    story,
    user_module,
)


SOURCE = """
import jax.numpy as jnp
scale = 2.0
table = {"c": 1.0}
class Config:
    power = 3
def layer(x):
    return scale * table["c"] * x**Config.power
"""

READERS = """
import importlib, operator, sys
import the_module
import the_module as alias
from the_module import layer
modules = [the_module]
class Holder:
    module = the_module
holder = Holder()
name = "scale"
read = operator.attrgetter("scale")

def by_attribute(x): return the_module.scale * jnp.sum(x**3)
def by_alias(x): return alias.scale * jnp.sum(x**3)
def by_function(x): return jnp.sum(the_module.layer(x))
def by_imported_function(x): return jnp.sum(layer(x))
def by_import_inside(x):
    from the_module import scale
    return scale * jnp.sum(x**3)
def by_module_import_inside(x):
    import the_module as inside
    return inside.scale * jnp.sum(x**3)
def by_import_call(x): return __import__("the_module").scale * jnp.sum(x**3)
def by_import_module(x):
    return importlib.import_module("the_module").scale * jnp.sum(x**3)
def by_sys_modules(x): return sys.modules["the_module"].scale * jnp.sum(x**3)
def by_getattr(x): return getattr(the_module, name) * jnp.sum(x**3)
def by_vars(x): return vars(the_module)["scale"] * jnp.sum(x**3)
def by_dict(x): return the_module.__dict__["scale"] * jnp.sum(x**3)
def by_list(x): return modules[0].scale * jnp.sum(x**3)
def by_holder(x): return holder.module.scale * jnp.sum(x**3)
def by_default(x, module=the_module): return module.scale * jnp.sum(x**3)
def by_attrgetter(x): return read(the_module) * jnp.sum(x**3)
def pass_on(module): return module.scale
def by_passing_on(x): return pass_on(the_module) * jnp.sum(x**3)
def by_local(x):
    module = the_module
    return module.scale * jnp.sum(x**3)
def by_choice(x):
    module = the_module if x.shape == (3,) else None
    return module.scale * jnp.sum(x**3)
def by_lambda(x): return (lambda: the_module.scale)() * jnp.sum(x**3)
"""


@story
def the_attribute_of_a_module_is_bound_again():
    with user_module("the_module", SOURCE) as module:
        cell = notebook(READERS)
        for name in [name for name in cell if name.startswith("by_")]:
            module.scale = 2.0
            yield cell[name]
            module.scale = 3.0
            yield cell[name]


@story
def the_function_of_a_module_is_defined_again():
    with user_module("the_module", SOURCE) as module:
        cell = notebook(READERS)
        f, g = cell["by_function"], cell["by_imported_function"]
        yield f
        yield g
        exec("def layer(x): return scale * jnp.sin(x)", module.__dict__)
        yield f
        yield g  # imported by name before: still the old function
        module.scale = 3.0
        yield f
        yield g


@story
def what_a_module_holds_is_mutated():
    with user_module("the_module", SOURCE) as module:
        f = notebook(READERS)["by_function"]
        yield f
        module.table["c"] = 3.0
        yield f
        module.Config.power = 4
        yield f
        module.scale = jnp.full(3, 5.0)
        yield f
        module.scale = jnp.full(3, 7.0)
        yield f


@story
def a_module_is_passed_as_a_constant_argument():
    with user_module("the_module", SOURCE) as module:

        def f(x, module):
            return module.scale * jnp.sum(x**3)

        yield f, X, module
        module.scale = 3.0
        yield f, X, module


@story
def a_module_is_replaced_by_another():
    source = (
        "def f(x):\n    import the_module\n    return the_module.scale * jnp.sum(x**3)"
    )
    f = notebook(source)["f"]
    with user_module("the_module", "scale = 2.0"):
        yield f
    with user_module("the_module", "scale = 3.0"):
        yield f


@story
def a_module_inside_a_package_changes():
    with (
        user_module("the_package", "", path=[]) as package,
        user_module("the_package.inner", SOURCE) as inner,
        user_module("the_package.other", "scale = 7.0") as other,
    ):
        package.inner = inner
        cell = notebook(
            """
            import the_package.inner
            from the_package import inner as alias
            def f(x): return the_package.inner.scale * jnp.sum(x**3)
            def g(x): return alias.scale * jnp.sum(x**3)
            def h(x):
                import the_package.inner as inside
                return inside.scale * jnp.sum(x**3)
            def k(x):
                from the_package import inner as inside
                return inside.scale * jnp.sum(x**3)
            """
        )
        functions = [cell[name] for name in "fghk"]
        yield from functions
        inner.scale = 3.0
        yield from functions
        package.inner = other
        yield from functions


@story
def a_module_answers_for_names_it_does_not_have():
    with user_module(
        "the_module",
        """
        table = {"scale": 2.0}
        def __getattr__(name):
            try:
                return table[name]
            except KeyError:
                raise AttributeError(name) from None
        """,
    ) as module:
        f = notebook(READERS.replace("from the_module import layer\n", ""))[
            "by_attribute"
        ]
        yield f
        module.table["scale"] = 3.0
        yield f


@story
def a_module_has_a_class_of_its_own():
    class Lively(types.ModuleType):
        base = 2.0

        @property
        def scale(self):
            return self.base

    with user_module("the_module", "") as module:
        module.__class__ = Lively
        f = notebook(
            "import the_module\ndef f(x): return the_module.scale * jnp.sum(x**3)"
        )
        yield f["f"]
        Lively.base = 3.0
        yield f["f"]
        module.base = 5.0
        yield f["f"]


@story
def a_module_loses_an_attribute():
    with user_module("the_module", SOURCE) as module:
        f = notebook(
            """
            import the_module
            def f(x): return getattr(the_module, "scale", 1.0) * jnp.sum(x**3)
            def g(x): return (1.0 + hasattr(the_module, "scale")) * jnp.sum(x**3)
            """
        )
        yield f["f"]
        yield f["g"]
        del module.scale
        yield f["f"]
        yield f["g"]


@story
def a_module_read_from_a_file_changes():
    with module_on_disk("the_module_on_disk", SOURCE) as module:
        yield lambda x: jnp.sum(module.layer(x))
        module.scale = 3.0
        yield lambda x: jnp.sum(module.layer(x))
        module.Config.power = 4
        yield lambda x: jnp.sum(module.layer(x))


@story
def a_module_read_from_a_file_is_read_again():
    with module_on_disk("the_module_on_disk", SOURCE) as module:

        def f(x):
            return jnp.sum(module.layer(x))

        yield f
        module.scale = 3.0
        yield f
        importlib.reload(module)
        yield f


@story
def the_environment_of_the_process_is_read():
    def f(x):
        return float(os.environ["THE_SCALE"]) * jnp.sum(x**3)

    def g(x):
        return float(os.getenv("THE_SCALE")) * jnp.sum(x**3)

    try:
        for value in "23":
            os.environ["THE_SCALE"] = value
            yield f
            yield g
    finally:
        os.environ.pop("THE_SCALE", None)


@story
def the_global_of_this_test_file_is_bound_again():
    def f(x):
        return SCALE * jnp.sum(x**3)

    def g(x):
        return sys.modules[__name__].SCALE * jnp.sum(x**3)

    global SCALE
    for value in (2.0, 3.0):
        SCALE = value
        yield f
        yield g


SCALE = 2.0


@story(changes=False, holds=False)
def a_node_of_a_library_cannot_be_made_anew():
    source = """
        import jax, jax.numpy as jnp
        from jax.tree_util import register_pytree_node_class as register

        @register
        class Inherits:
            def __init__(self, d):
                self.d = d
            def tree_flatten(self):
                return (), {"d": self.d, "L": 1.0}
            @classmethod
            def tree_unflatten(cls, data, children):
                return cls(**data)

        @register
        class Cell:
            def __init__(self, d, w):
                self.d, self.w = d, float(w)
            def tree_flatten(self):
                return (jnp.asarray(self.w),), self.d
            @classmethod
            def tree_unflatten(cls, data, children):
                return cls(data, float(children[0]))

        @register
        class Concrete:
            def __init__(self, w):
                if isinstance(w, jax.core.Tracer):
                    raise TypeError("a tracer")
                self.w = w
            def tree_flatten(self):
                return (self.w,), None
            @classmethod
            def tree_unflatten(cls, data, children):
                return cls(*children)

        @register
        class Unfinished:
            def __init__(self, w):
                self.w = w
            def tree_flatten(self):
                raise NotImplementedError
            @classmethod
            def tree_unflatten(cls, data, children):
                raise NotImplementedError
    """
    with module_on_disk("hotk_nodes", source, folder="site-packages") as library:
        nodes = (
            library.Inherits(3),
            library.Cell(3, 2.0),
            library.Concrete(jnp.full(3, 2.0)),
            library.Unfinished(jnp.full(3, 2.0)),
        )
        for node in nodes:
            f = lambda x, node=node: cubic(getattr(node, "w", 2.0), x)
            yield f
            yield lambda x, f=f: jax.jit(f)(x)
