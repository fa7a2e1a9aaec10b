"""What a function does not read off an object can change freely."""

import copy
import dataclasses
import types

import jax
import jax.numpy as jnp
import optax
import pytest
from beartype import beartype
from jaxtyping import Float, Int, TypeCheckError, jaxtyped

import hotk
from hotk._capture import facts_of, survey
from hotk._capture._reads import reads_of
from tests.helpers import close
from tests.promises import stories_reads, stories_states
from tests.promises.stories_reads import METHODS, Config, Derived, Trainer
from tests.promises.stories_states import make


X = jnp.array([0.5, -1.5, 2.0])


@pytest.fixture(autouse=True)
def fresh():
    hotk.clear_cache()


def traces():
    return hotk.cache_info().traces


class Loop:
    """A training loop as one writes it."""

    def __init__(self):
        self.step, self.history, self.lock = 0, [], iter(())
        self.callbacks = [lambda loop: loop.step]
        self.X, self.y = jnp.ones(3), jnp.zeros(3)
        self.net = lambda p, X: p * X
        self.mean = SEEN.mean()

    def loss(self, p):
        return jnp.mean((self.net(p, self.X) - self.y) ** 2)

    def update(self, value):
        self.step += 1
        self.history.append(value)
        self.best = min(self.history)


SEEN = jnp.ones(3)


@pytest.mark.parametrize("captured", [False, True])
def test_a_training_loop_is_traced_once(captured):
    loop = Loop()
    for i in range(6):
        f = (lambda p: loop.loss(p)) if captured else loop.loss
        assert close(hotk.gradient(f, X), 2 * X / 3)
        loop.update(float(i))
    assert traces() == 1
    loop.X = 2 * jnp.ones(3)
    assert close(hotk.gradient(f, X), 8 * X / 3)
    assert traces() == 1
    loop.net = lambda p, X: p * X + 1
    assert close(hotk.gradient(f, X), 4 * (2 * X + 1) / 3)
    assert traces() == 2


def test_a_copy_of_an_object_changes_nothing_of_its_class():
    @jax.tree_util.register_static
    @dataclasses.dataclass(frozen=True)
    class Static:
        value: float

    static = Static(2.0)
    for _ in range(3):
        f = lambda x: jnp.sum(whole(static) * x**2)
        assert close(hotk.gradient(f, X), 4 * X)
        copy.copy(static)  # Python keeps `__slotnames__` in the class
        assert "__slotnames__" in vars(Static)
    assert traces() == 1


def whole(static):
    return [static][0].value


def test_a_loop_in_a_global_is_traced_once():
    names = {"loop": Loop()}
    exec("def f(p): return loop.loss(p)", names)
    for i in range(4):
        assert close(hotk.gradient(names["f"], X), 2 * X / 3)
        names["loop"].update(float(i))
    assert traces() == 1


def test_what_is_not_read_may_be_anything():
    loop = Loop()
    loop.history = (i for i in range(3))
    assert hotk.explain(loop.loss).opaque is None
    rows = [row[0] for row in hotk.explain(loop.loss).rows]
    assert not [row for row in rows if "history" in row or "callbacks" in row]


def test_an_operator_holds_nothing_that_is_not_read():
    import gc
    import weakref

    loop = Loop()
    loop.unread = jnp.full(3, 7.0)
    reference = weakref.ref(loop.unread)
    operator = hotk.HessianOperator(loop.loss, X)
    assert close(operator @ X, 2 * X / 3)
    del loop
    gc.collect()
    assert reference() is None
    assert close(operator @ X, 2 * X / 3)


UNREAD = {
    "loss": ("weights", "data", "history", "step"),
    "by_property": ("weights", "data", "history", "step"),
    "by_array": ("config", "history", "step", "scale"),
    "by_inner_function": ("weights", "data", "history", "step"),
    "by_bound_method": ("weights", "data", "history", "step", "config"),
}


@pytest.mark.parametrize("name", UNREAD)
def test_each_attribute_that_is_not_read_may_change(name):
    trainer = Trainer()
    call = getattr(Trainer, name)
    expected = jax.grad(lambda x: call(Trainer(), x))(X)
    for attribute in (None, *UNREAD[name]):
        if attribute is not None:
            setattr(trainer, attribute, "something else")
        assert close(hotk.gradient(getattr(trainer, name), X), expected)
    assert traces() == 1


# ----- The analysis against what is read in truth


class Recording:
    """Records which attributes are read off an object while a function runs."""

    def __init__(self):
        self.names = set()

    def of(self, made):
        names, kind = self.names, type(made)

        def read(value, name):
            if value is made and not name.startswith("__"):
                names.add(name)
            return object.__getattribute__(value, name)

        made.__class__ = type(kind.__name__, (kind,), {"__getattribute__": read})
        return made


@pytest.mark.parametrize("kind", [Trainer, Derived])
@pytest.mark.parametrize("name", [name for name in METHODS if name != "listed"])
def test_all_that_is_read_is_known_to_be(name, kind):
    _, trail = survey(getattr(trainer := kind(), name))
    known = trail.read.get(id(trainer))
    recording = Recording()
    method = getattr(kind, name)
    jax.grad(lambda x: method(recording.of(kind()), x))(X)
    assert recording.names
    assert known is None or recording.names <= known | {name}


def code_of(source):
    names = {}
    exec(source, names)
    return names["f"].__code__


ESCAPES = {
    "it is returned": "def f(self): return self",
    "it is passed on": "def f(self): return g(self)",
    "it is passed on beside": "def f(self, p): return g(self, p)",
    "it is passed on beside an attribute": "def f(self, p): return g(self, p.a)",
    "it is stored": "def f(self):\n a = self\n return a.b",
    "it is put into a list": "def f(self): return [self][0].b",
    "it is compared": "def f(self): return self == 1",
    "it is called": "def f(self): return self(1)",
    "it is indexed": "def f(self): return self[0]",
    "it is written to": "def f(self): self.a = 1",
    "it is added to": "def f(self): self.a += 1",
    "it is deleted from": "def f(self): del self.a",
    "it is bound anew": "def f(self):\n self = self.a\n return self.b",
    "it is iterated over": "def f(self): return [a for a in self]",
    "it is matched": "def f(self):\n match self:\n  case int(a): return a",
    "it is a context": "def f(self):\n with self: return 1",
    "an inner function returns it": "def f(self): return lambda: self",
    "an inner function binds it": (
        "def f(self):\n def g():\n  nonlocal self\n  self = 1\n return self.a"
    ),
    "an inner class has it": "def f(self):\n class A:\n  b = self\n return A",
    "a default is it": "def f(self): return lambda a=self: a.b",
    "a starred argument is it": "def f(self): return g(*self)",
    "it is unpacked": "def f(self):\n a, b = self\n return a",
    "it is yielded": "def f(self): yield self",
    "super takes it": "class A:\n def f(self): return super().f()\nf = A.f",
    "it is formatted": "def f(self): return f'{self}'",
    "it is a starred parameter": "def f(*self): return self.a",
}


@pytest.mark.parametrize("source", ESCAPES.values(), ids=ESCAPES)
def test_an_object_escapes(source):
    assert reads_of(code_of(source))[""] is None


READS = {
    "def f(self): return self.a": [("a",)],
    "def f(self): return self.a.b(self.c)": [("a", "b"), ("c",)],
    "def f(self, p): return self.net(p, self.a)": [("net",), ("a",)],
    "def f(self, p): return p(self.a)": [("a",)],
    "def f(self, p): return lambda q: self.net(q, self.a.b)": [("net",), ("a", "b")],
    "def f(self): return [self.a for _ in self.b]": [("a",), ("b",)],
    "def f(self): return sum(self.a for _ in self.b)": [("a",), ("b",)],
    "def f(self): self.a.b = 1": [("a",)],
    "def f(self): self.a[0] = 1": [("a",)],
    "def f(self, p): return (p or self).a": [("a",)],
    "def f(self, /, *, k=1): return self.a[k]": [("a",)],
    "def f(self): pass": [],
}


@pytest.mark.parametrize("source", READS)
def test_chains_are_read(source):
    assert sorted(reads_of(code_of(source))[""]) == sorted(READS[source])


def test_what_is_chosen_is_read_as_a_whole_or_by_what_follows():
    code = code_of("def f(self): return (self.a if self.b else self.c).d")
    found = {chain[0]: chain for chain in reads_of(code)[""]}
    assert found.keys() == {"a", "b", "c"}
    assert {found["a"], found["c"]} <= {("a",), ("a", "d"), ("c",), ("c", "d")}


def test_names_that_are_captured_are_read_alike():
    def make(a, b):
        def f(x):
            return a.net(x, a.b.c) + b

        return f

    assert reads_of(make(1, 2).__code__)["a"] == (("net",), ("b", "c"))
    assert reads_of(make(1, 2).__code__)["b"] is None


def test_an_instruction_that_is_not_known_is_an_escape(monkeypatch):
    monkeypatch.setattr(stories_reads, "X", X)
    from hotk._capture import _reads

    code = code_of("def f(self): return self.a")
    monkeypatch.setattr(_reads, "_LOADS", frozenset())
    assert isinstance(code, types.CodeType)
    assert reads_of(code)[""] is None


def test_a_hook_of_the_class_makes_everything_count():
    class Hooked(Trainer):
        def __getattr__(self, name):
            return 2.0

    trainer = Hooked()
    hotk.gradient(trainer.loss, X)
    trainer.step += 1
    hotk.gradient(trainer.loss, X)
    assert traces() == 2
    assert Config(1.0).rate == 1.0


# ----- Training states: frozen nodes of trees


@pytest.mark.parametrize("how", ["cell", "default", "global", "attribute"])
def test_a_state_that_counts_its_steps_is_traced_once(how):
    state, task = make(), stories_states.Task(None)
    names = {}
    for i in range(5):
        state = state.replace(step=i, params={"scale": jnp.full(3, float(i))})
        names["state"] = task.state = state
        if how == "cell":
            f = lambda x: state.apply_fn(state.params["scale"], x)  # noqa: B023
        elif how == "default":
            f = lambda x, state=state: state.apply_fn(state.params["scale"], x)
        elif how == "global":
            exec("def f(x): return state.apply_fn(state.params['scale'], x)", names)
            f = names["f"]
        else:
            f = task.loss
        # 2 sum(x^3) 3 i
        assert close(hotk.gradient(f, X), 18 * i * X**2)
        assert close(hotk.HessianOperator(f, X) @ X, 36 * i * X**2)
    assert traces() == 2  # as the state of each step, and as an operator keeps it


def test_a_state_that_passes_on_counts_as_a_whole():
    state = make()
    for i in range(3):
        state = state.replace(step=i)
        f = lambda x: helper(state, x)  # noqa: B023
        assert close(hotk.gradient(f, X), 36 * X**2)
    assert traces() == 3


def helper(state, x):
    return state.apply_fn(state.params["scale"], x)


@pytest.mark.library
def test_a_train_state_of_flax_is_traced_once():
    train_state = pytest.importorskip("flax.training.train_state")

    class Own(train_state.TrainState):
        statistics: object = None

    for kind in (train_state.TrainState, Own):
        hotk.clear_cache()
        apply_fn = lambda p, x: jnp.sum(p["w"] * x) ** 2
        tx = optax.sgd(0.1)
        state = kind.create(apply_fn=apply_fn, params={"w": X}, tx=tx)
        for _ in range(4):
            f = lambda p: state.apply_fn(p, X)  # noqa: B023
            g = hotk.gradient(f, state.params)
            assert close(g["w"], 2 * jnp.sum(state.params["w"] * X) * X)
            state = state.apply_gradients(grads=g)
        assert (state.step, traces()) == (4, 1)


def test_a_state_that_is_read_by_a_part_and_as_a_whole_is_traced_once():
    state = make()
    # in this order in the closure: by name
    begin, rest = (lambda x: state.apply_fn(1.0, x) for _ in range(2))
    leaves = lambda: [jnp.sum(jnp.asarray(a, float)) for a in jax.tree.leaves(state)]
    middle = lambda x: jnp.sum(x) * sum(leaves())
    f = lambda x: begin(x) + middle(x) + rest(x)
    for i in range(3):
        state = make(params={"scale": jnp.full(3, float(i)), "rate": 3.0})
        # 4 sum(x^3), and sum(x) times the scales, the rate and the step
        assert close(hotk.gradient(f, X), 12 * X**2 + 3 * i + 4)
    assert traces() == 1


class Scaled:
    """A function among its attributes captures the object."""

    def __init__(self, scale):
        self.scale, self.calls = scale, 0
        self.scaled = lambda x: self.scale * x

    def __call__(self, x):
        return jnp.sum(self.scaled(x) ** 2)


class Counted(Scaled):
    def __call__(self, x):
        self.calls += 1
        return self.calls * super().__call__(x)


def test_an_object_that_its_own_attribute_captures_is_traced_once():
    for scale in (1.0, 2.0, 3.0):
        model = Scaled(jnp.asarray(scale))
        assert close(hotk.gradient(model, X), 2 * scale**2 * X)
    model.scale = jnp.asarray(4.0)
    assert close(hotk.gradient(model, X), 32 * X)
    assert traces() == 1
    assert hotk.explain(model, at=X).opaque is None


@pytest.mark.filterwarnings("ignore::hotk.OpaqueWarning")
def test_a_counter_of_such_an_object_counts():
    model = Counted(jnp.asarray(2.0))
    for count in (1, 2, 3):
        assert close(hotk.gradient(model, X), count * 8 * X)
    assert model.calls == 3


# ----- Code that beartype and Python 3.12 write


def checked(annotation, c):
    @jaxtyped(typechecker=beartype)
    def loss(x: annotation, y: Float[jax.Array, ""] = ONE) -> Float[jax.Array, ""]:
        return c * y * jnp.sum(x**3)

    return loss


ONE = jnp.asarray(1.0)


def test_a_loss_checked_by_beartype_is_traced_a_few_times():
    """Not always once: beartype leaves out a check where it takes a type for another.

    It knows types by their addresses, where another one stood before: of 20 functions
    mostly one is traced, and five in a process that has run for long.
    """
    hotk.clear_cache()
    for k in range(20):
        loss = checked(Float[jax.Array, " n"], jnp.asarray(1.0 + k))
        assert close(hotk.gradient(loss, X), (1.0 + k) * 3 * X**2)
    assert hotk.cache_info().traces <= 8
    assert hotk.cache_info().compiles == 1


def refused(call, *arguments):
    try:
        call(*arguments)
    except TypeCheckError:
        return True
    return False


def test_a_loss_checked_by_beartype_with_another_annotation_is_another():
    c, outcomes = jnp.asarray(2.0), []
    sizes = [Float[jax.Array, f" {n}"] for n in ("n", "3", "4", "n", "3", "4")]
    for annotation in (*sizes, Int[jax.Array, " n"]):
        loss = checked(annotation, c)
        outcomes.append(refused(loss, X))
        assert refused(hotk.gradient, loss, X) is outcomes[-1]
    for first, second in (("3", "1"), ("1", "3"), ("3", "1")):

        @jaxtyped(typechecker=beartype)
        def loss(x: Float[jax.Array, first], y: Float[jax.Array, second]):
            return jnp.sum(x**3) + jnp.sum(y)

        outcomes.append(refused(loss, X, jnp.ones(1)))
        assert refused(hotk.gradient, loss, X, jnp.ones(1)) is outcomes[-1]
    assert set(outcomes) == {True, False}


class Base:
    scale = 2.0


class Inherited(Base):
    def by_name(self, x):
        return super().__repr__()

    def by_doc(self, x):
        return super().__doc__

    def plain(self, x):
        return super().scale * x

    def of_a_global(self, x):
        return super(Inherited, SUPER_OF).scale * x


SUPER_OF = Inherited()


def test_what_is_read_through_super_is_known():
    """From Python 3.12 on `super().name` is one instruction."""
    read = {name: facts_of(vars(Inherited)[name].__code__) for name in METHODS}
    assert read["by_name"].writes == "or reads `__repr__`, which hotk cannot track"
    assert [name for name in METHODS if read[name].writes] == ["by_name"]
    assert [name for name in METHODS if read[name].reads_metadata] == ["by_doc"]
    assert read["of_a_global"].read_off("SUPER_OF") is None
    assert all(facts.reads[""] is None for facts in read.values())


METHODS = ("by_name", "by_doc", "plain", "of_a_global")


def test_what_super_finds_is_read_again(monkeypatch):
    hotk.clear_cache()
    thing = Inherited()
    for scale in (2.0, 3.0, 2.0):
        monkeypatch.setattr(Base, "scale", scale)
        f = lambda x: jnp.sum(thing.plain(x) ** 2) + SUPER_OF.of_a_global(x).sum()
        assert close(hotk.gradient(f, X), 2 * scale**2 * X + scale)
