"""What makes a function opaque, and the shortest change that makes it fast.

The one home of these texts: `explain`, `OpaqueWarning` and the page on closures use
them.
"""

from enum import Enum


class OpaqueCause(Enum):
    """What reasons have in common for which functions are opaque.

    Attributes:
        text: What it is.
        fix: What to write instead.
    """

    HELD_BY_CLASS = (
        "a NumPy array of more than 4 MiB that a class holds",
        "make the array an attribute of the object, or an argument of the function",
    )
    REFERENCE = (
        "a mutable array, `jax.Ref`",
        "read it first, as in `a = ref[...]`, and capture the array, or make it an "
        "argument of the function; return what the function would write as auxiliary "
        "output (`has_aux=True`)",
    )
    RANDOM = (
        "a generator of random numbers of NumPy or Python",
        "draw the numbers first and capture them; or draw them with `jax.random` and "
        "a key as an argument",
    )
    STATE = (
        "an object that may have state: an open file, a lock, an iterator, a model of "
        "another library",
        "read what the function needs first, and capture that; for a model use the "
        "pure form, `apply(params, x)`; or use `hotk.static(its class)` if its `==` "
        "compares all that matters",
    )
    NUMPY = (
        "NumPy that computes with more than 1 MiB of captured arrays",
        "write `jnp` for `np` in the function, or compute that part first",
    )
    CONTENT = (
        "the value of a captured array of JAX with more than 64 numbers, in `if`, "
        "`float`, `np.sin`",
        "write `jnp` for `np`; compute what Python needs first, and capture that, or "
        "use `jnp.where` and `jax.lax.cond`",
    )
    WRITES = (
        "a counter, a list or an attribute that the function writes",
        "return what it writes as auxiliary output (`has_aux=True`)",
    )
    CACHE = (
        "a cache that the function fills, or a `functools.lru_cache`",
        "fill a dictionary or a `functools.cached_property` before the call; call what "
        "has an `lru_cache` before, and capture its result; or compute it each time",
    )
    THREAD = (
        "another thread that changes what the function captured",
        "give each thread its own function",
    )
    LOOKED_UP = (
        "names looked up while it runs: `globals`, `eval`, `os.environ`, `inspect`",
        "look the value up first, and capture it",
    )
    MODULE = (
        "a module of your own that is passed around, or that has a `__getattr__`",
        "write `module.name` in full, or `from module import name`",
    )
    IMPORT = (
        "an import of a module of your own while it runs",
        "import it at the top of the file",
    )
    RULE = (
        "a rule of `jax.custom_jvp` or `jax.custom_vjp` that captures an array",
        "give the array to the function as an argument, or write the rule with "
        "`hotk.rule.custom`",
    )
    NAME = (
        "a `__name__` or `__doc__` that is read, and is not a string",
        "make it a string",
    )
    HOST = (
        "a host callback that keeps what it captured",
        "give the callback its arrays as operands, or use `hotk.rule.external`",
    )
    TRACER = (
        "an inner function that captures a tracer, and that JAX compares by identity",
        "give it the captured value as an argument",
    )
    DTYPE = (
        "a NumPy array that JAX has no dtype for",
        "convert it first: numbers to a dtype of JAX, objects and text to a tuple",
    )
    UFUNC = (
        "a function of `np.frompyfunc` or `np.vectorize`",
        "use `jax.vmap` of the Python function",
    )
    PYTREE = (
        "a registered pytree that leaves out part of its object, or whose static data "
        "has no `__eq__` and `__hash__`",
        "register it by `jax.tree_util.register_dataclass` with all fields, or make it "
        "an `equinox.Module`",
    )
    SHARED = (
        "a list or a dict that both a class and an object hold",
        "give the object a copy",
    )
    DEPTH = (
        "captured objects nested very deeply, or a class whose constructor computes",
        "capture only the part that the function needs",
    )
    # Whatever an error says that came up with tracers in place of captured arrays.
    FAILED = (
        "an error that is raised if captured arrays are tracers, as under `jax.jit`",
        "fix what the error says, or compute that part first",
    )

    def __init__(self, text: str, fix: str) -> None:
        self.text = text
        self.fix = fix

    def says(self, text: str) -> "OpaqueReason":
        """Return a reason of this cause, in words that fit the case."""
        return OpaqueReason(text, self)

    def opaque(self, text: str) -> "Opaque":
        """Return the error of a function that is opaque for this cause."""
        return Opaque(self.says(text))


class OpaqueReason(str):
    """Why one function is opaque, in words.

    Attributes:
        cause: What it has in common with others.
    """

    cause: OpaqueCause

    def __new__(
        cls, text: str, cause: OpaqueCause = OpaqueCause.FAILED
    ) -> "OpaqueReason":
        """Make a reason; of an error without a cause it is `FAILED`."""
        self = super().__new__(cls, text)
        self.cause = cause
        return self


class Opaque(Exception):
    """A captured thing can change in a way that the walk cannot see.

    Attributes:
        reason: Why.
    """

    def __init__(self, reason: OpaqueReason) -> None:
        super().__init__(reason)
        self.reason = reason


def state_of(cls: type) -> OpaqueCause:
    """Return the cause that an object of a class has a state which no walk sees."""
    module = cls.__module__
    drawn = module == "random" or module.startswith("numpy.random")
    return OpaqueCause.RANDOM if drawn else OpaqueCause.STATE


# It is run so that what does not depend on the point is computed at once.
WRITES = OpaqueCause.WRITES.says("it changes an argument or what it captured")
KEEPS = OpaqueCause.CACHE.says("it keeps what it has computed")
# Another thread was at work between the walk and the trace: true of one call only.
CHANGED = OpaqueCause.THREAD.says("it was changed while it was called")
TOO_DEEP = OpaqueCause.DEPTH.says("it is nested too deeply for hotk to look through")
RULE_CAPTURES_ARRAY = OpaqueCause.RULE.says(
    "a custom derivative rule captures an array"
)
RULE_CAPTURES_TRACER = OpaqueCause.TRACER.says(
    "a derivative rule inside it captures a tracer"
)


def reason_of(error: Opaque | RecursionError) -> OpaqueReason:
    """Return why a walk has ended before it was through."""
    return error.reason if isinstance(error, Opaque) else TOO_DEEP
