"""A traceback shows the lines of the user, and the message stands last."""

import os
import threading
import traceback

import jax
import jax.numpy as jnp
import pytest

import hotk


X = jnp.ones(3)
HOTK = os.path.dirname(hotk.__file__) + os.sep
Opaque = type("Opaque", (), {"__call__": lambda self, x: x})
WRONG = {
    "a vector": lambda: hotk.quadratic_form(lambda x: x, X, X),
    "a shape": lambda: hotk.hvp(lambda x: jnp.sum(x**2), X, jnp.ones(4)),
    "prepared": lambda: hotk.quadratic_form.prepare(lambda x: x, X, X),
    "opaque": lambda: hotk.quadratic_form(Opaque(), X, X),
}


def frames(error):
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_an_error_of_hotk_shows_few_of_its_frames_and_nothing_after_the_message(call):
    with pytest.raises(hotk.HotkError) as caught:
        call()
    found = frames(caught.value)
    assert __file__ in found
    assert sum(name.startswith(HOTK) for name in found) <= 3
    last = traceback.format_exception(caught.value)[-1].rstrip()
    assert last.endswith(str(caught.value).splitlines()[-1])


def fails(x):
    raise KeyError("mine")


@pytest.mark.parametrize(
    "call", [hotk.hvp, hotk.hvp.prepare], ids=["direct", "prepare"]
)
def test_an_error_of_the_function_keeps_the_frames_of_the_function(call):
    with pytest.raises(KeyError) as caught:
        call(fails, X, X)
    found = frames(caught.value)
    assert found[-1] == __file__
    assert sum(name.startswith(HOTK) for name in found) <= 3


def test_all_frames_can_be_asked_for_as_in_jax():
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", "off")
    try:
        with pytest.raises(hotk.HotkError) as caught:
            WRONG["a shape"]()
    finally:
        jax.config.update("jax_traceback_filtering", before)
    assert frames(caught.value)[-1].endswith("_checks.py")


def test_notes_of_the_user_stay_and_that_of_jax_goes():
    def noted(x):
        try:
            return hotk.hvp(lambda x: jnp.sum(x), x, jnp.ones(4))
        except hotk.StructureError as error:
            error.add_note("while layer 3")
            raise

    with pytest.raises(hotk.StructureError) as caught:
        hotk.gradient(noted, X)
    assert caught.value.__notes__ == ["while layer 3"]


def test_an_error_of_an_opaque_function_is_not_chained_to_what_hotk_tried():
    lock = threading.Lock()

    def f(x):
        with lock:
            raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        hotk.gradient(f, X)
    assert caught.value.__context__ is None
