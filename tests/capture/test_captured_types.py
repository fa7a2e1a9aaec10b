"""A captured type is one record: whole, or no record at all."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import pytest

import hotk
from hotk._capture import (
    Opaque,
    Walk,
    key_and_arrays,
    survey,
)
from hotk._capture._captured_type import (
    CAPTURED_TYPES,
    DESCRIPTIONS,
    CapturedType,
    register,
)
from tests.helpers import close


pytestmark = pytest.mark.usefixtures("as_user")

X = jnp.array([1.0, 2.0])
FIELDS = [field.name for field in dataclasses.fields(CapturedType)]


class Sealed:
    """An object that answers for itself, so that hotk does not look into it."""

    def __init__(self, scale, name):
        object.__setattr__(self, "held", {"scale": scale, "name": name})

    def __getattribute__(self, name):
        found = object.__getattribute__(self, "held")
        return found[name] if name in found else object.__getattribute__(self, name)


def held(value):
    return object.__getattribute__(value, "held")


def describe_sealed(d, value, here):
    if d.met(value, here):
        return
    d.same("type({0}) is {1}", here, Sealed)
    d.part(held(value), ".held", "", d.let(held(value), "{1}({0})", here, held), "{0}")


def rebuild_sealed(rebuild, value):
    return Sealed(**rebuild(held(value)))


SEALED = CapturedType(
    describe=describe_sealed,
    rebuild=rebuild_sealed,
    treatment="traversed",
    mutable=False,
)


@pytest.fixture
def registered():
    """Register the type for one test."""
    register(SEALED, Sealed)
    yield
    del CAPTURED_TYPES[Sealed], DESCRIPTIONS[Sealed]


def over(scale, name="cube"):
    sealed = Sealed(scale, name)
    return lambda x: jnp.sum(sealed.scale * x ** len(sealed.name))


def test_what_no_record_is_of_is_opaque():
    with pytest.raises(Opaque, match="Sealed"):
        survey(over(X))


def test_one_record_is_all_that_a_new_type_needs(registered):
    hotk.clear_cache()
    for k in (1.0, 2.0, 3.0, 4.0):
        close(hotk.gradient(over(k * X), X), 4 * k * X**4)
    assert hotk.cache_info().compiles == 1
    close(hotk.gradient(over(X, "two"), X), 3 * X**3)
    assert hotk.cache_info().misses == 2
    treated = {row[0]: row[2] for row in hotk.explain(over(X)).rows}
    assert treated["cell `sealed`"] == "traversed"
    assert treated["cell `sealed`.held['scale']"] == "leaf"


def test_its_guard_finds_what_its_visit_finds(registered):
    for scale, name in ((X, "one"), (X + 1, "one"), (X, "two"), (2.0, "one")) * 3:
        f = over(scale, name)
        walk = Walk()
        walk.visit(f)
        key, leaves, _ = key_and_arrays(f)
        assert tuple(key) == tuple(walk.key)
        assert list(map(id, leaves)) == list(map(id, walk.leaves))


@pytest.mark.parametrize("field", FIELDS)
def test_no_field_of_a_record_may_be_left_out(field):
    values = {name: getattr(SEALED, name) for name in FIELDS}
    assert CapturedType(**values)
    del values[field]
    with pytest.raises(TypeError, match=field):
        CapturedType(**values)


def test_a_class_has_one_record():
    with pytest.raises(ValueError, match="list is registered already"):
        register(SEALED, list)
    assert CAPTURED_TYPES[list] is not SEALED


def test_every_record_is_in_both_tables():
    assert CAPTURED_TYPES.keys() == DESCRIPTIONS.keys()
    for cls, known in CAPTURED_TYPES.items():
        assert DESCRIPTIONS[cls] is known.describe


def test_what_is_mutable_is_copied():
    for cls, known in CAPTURED_TYPES.items():
        assert not known.mutable or known.rebuild is not None, cls


def test_what_cannot_be_written_into_keeps_its_identity():
    kept = {int, str, float, slice, type, type(jax.jit(abs)), types.FunctionType}
    assert not any(CAPTURED_TYPES[cls].mutable for cls in kept)
