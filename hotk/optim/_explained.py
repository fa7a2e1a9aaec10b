"""Errors of an objective, in the words of the call that the user made."""

import contextlib
from collections.abc import Iterator

from hotk._core import HotkError
from hotk._prepared import USER_CALL


_NO_AUX = {
    "; for `(value, aux)` pass `has_aux=True`": ", as in `lambda p: f(p)[0]`: there is "
    "no auxiliary output here",
    "; pass other arrays as the second output with `has_aux=True`": "",
}


@contextlib.contextmanager
def called(call: str) -> Iterator[None]:
    """Let messages name the call that the user made, and only what that call takes."""
    before = USER_CALL.set(call)
    try:
        yield
    except HotkError as error:
        text = str(error)
        for offer, instead in _NO_AUX.items():
            text = text.replace(offer, instead)
        error.args = (text, *error.args[1:])
        raise
    finally:
        USER_CALL.reset(before)


@contextlib.contextmanager
def explained_for_nnx(params: object) -> Iterator[None]:
    """Let errors of an objective say what `nnx.Optimizer` hands on: not the model."""
    try:
        yield
    except (AttributeError, LookupError, TypeError) as error:  # a state is not a model
        if type(params).__module__.startswith("flax.nnx."):
            error.add_note(_NNX)
        raise


_NNX = (
    "`nnx.Optimizer` hands on the state of the parameters, not the model. Where your "
    "functions take the model, call `hotk.optim.nnx_step(optimizer, model, value_fn)` "
    "in place of `optimizer.update`. Or write, before the gradient, `graphdef, _, rest "
    "= nnx.as_pure(nnx.split(model, nnx.Param, ...))`, and then `value_fn=lambda p: "
    "loss(nnx.merge(graphdef, p, rest))`. Without `as_pure` the merged model shares "
    "its variables with yours."
)
