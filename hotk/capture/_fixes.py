"""What makes a function opaque, and the shortest change that makes it fast.

The one home of these texts: `explain`, `OpaqueWarning` and the page on closures use
them. A reason is what `Opaque` or `Fallback` was raised with.
"""

import re
from typing import Final, NamedTuple


class Fix(NamedTuple):
    """One family of reasons.

    Attributes:
        pattern: What a reason of the family begins with, as a regular expression.
        cause: What these reasons have in common.
        fix: What to write instead.
    """

    pattern: str
    cause: str
    fix: str


FIXES: Final = (
    Fix(
        r".* reached through a class",
        "a NumPy array of more than 4 MiB that a class holds",
        "make the array an attribute of the object, or an argument of the function",
    ),
    Fix(
        r"a `jax\.Ref`",
        "a mutable array, `jax.Ref`",
        "read it first, as in `a = ref[...]`, and capture the array, or make it an "
        "argument of the function; return what the function would write as auxiliary "
        "output (`has_aux=True`)",
    ),
    Fix(
        r"an object of type `(numpy\.)?random\.|a method of an? (System)?Random ",
        "a generator of random numbers of NumPy or Python",
        "draw the numbers first and capture them; or draw them with `jax.random` and "
        "a key as an argument",
    ),
    Fix(
        r"an object of type|a method of an? .* that can change|a time zone",
        "an object that may have state: an open file, a lock, an iterator, a model of "
        "another library",
        "read what the function needs first, and capture that; for a model use the "
        "pure form, `apply(params, x)`; or use `hotk.static(its class)` if its `==` "
        "compares all that matters",
    ),
    Fix(
        r"NumPy computes",
        "NumPy that computes with more than 1 MiB of captured arrays",
        "write `jnp` for `np` in the function, or compute that part first",
    ),
    Fix(
        r"it needs the value",
        "the value of a captured array of JAX with more than 64 numbers, in `if`, "
        "`float`, `np.sin`",
        "write `jnp` for `np`; compute what Python needs first, and capture that, or "
        "use `jnp.where` and `jax.lax.cond`",
    ),
    Fix(
        r"it changes an argument|it writes (the|an attribute)",
        "a counter, a list or an attribute that the function writes",
        "return what it writes as auxiliary output (`has_aux=True`)",
    ),
    Fix(
        r"it keeps what it has computed",
        "a cache that the function fills",
        "fill the cache before the call, or compute the value each time",
    ),
    Fix(
        r"it was changed while",
        "another thread that changes what the function captured",
        "give each thread its own function",
    ),
    Fix(
        r"it writes or reads|it may read by|.* may read state that hotk cannot track|"
        r".* passes on all settings",
        "names looked up while it runs: `globals`, `eval`, `os.environ`, `inspect`",
        "look the value up first, and capture it",
    ),
    Fix(
        r"the module .* used as a value|.* is not a plain attribute",
        "a module of your own that is passed around, or that has a `__getattr__`",
        "write `module.name` in full, or `from module import name`",
    ),
    Fix(
        r"it imports",
        "an import of a module of your own while it runs",
        "import it at the top of the file",
    ),
    Fix(
        r"a custom derivative rule captures|a rule (that|in)",
        "a rule of `jax.custom_jvp` or `jax.custom_vjp` that captures an array",
        "give the array to the function as an argument, or write the rule with "
        "`hotk.rule.custom`",
    ),
    Fix(
        r"a name or a docstring",
        "a `__name__` or `__doc__` that is read, and is not a string",
        "make it a string",
    ),
    Fix(
        r"a host callback",
        "a host callback that keeps what it captured",
        "give the callback its arrays as operands, or use `hotk.rule.external`",
    ),
    Fix(
        r"something inside it captures|a derivative rule inside it captures",
        "an inner function that captures a tracer, and that JAX compares by identity",
        "give it the captured value as an argument",
    ),
    Fix(
        r"a NumPy array|the dtype",
        "a NumPy array that JAX has no dtype for",
        "convert it first: numbers to a dtype of JAX, objects and text to a tuple",
    ),
    Fix(
        r"a ufunc made of",
        "a function of `np.frompyfunc` or `np.vectorize`",
        "use `jax.vmap` of the Python function",
    ),
    Fix(
        r"an empty node|the class .* keeps what its tree lacks|static data of|"
        r"an argument of the registered class",
        "a registered pytree that leaves out part of its object, or whose static data "
        "has no `__eq__` and `__hash__`",
        "register it by `jax.tree_util.register_dataclass` with all fields, or make it "
        "an `equinox.Module`",
    ),
    Fix(
        r"something mutable is shared",
        "a list or a dict that both a class and an object hold",
        "give the object a copy",
    ),
    Fix(
        r"it is nested too deeply|a copy of it cannot be made",
        "captured objects nested very deeply, or a class whose constructor computes",
        "capture only the part that the function needs",
    ),
)
# Whatever an error says that came up with tracers in place of captured arrays.
FAILED: Final = Fix(
    "",
    "an error that is raised if captured arrays are tracers, as under `jax.jit`",
    "fix what the error says, or compute that part first",
)


def fix_of(reason: str) -> Fix:
    """Return the family of a reason for which a function is opaque."""
    for known in FIXES:
        if re.match(known.pattern, reason):
            return known
    return FAILED
