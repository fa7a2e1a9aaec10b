"""The objective of an update, given as residuals or as a model and a loss."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import optax

from hotk._core import Function, OutputError
from hotk.curvature import GaussNewton, LeastSquares, PerExample

from ._step import with_keywords


def of_residuals(
    value_fn: Function | None, extra: Mapping[str, Any], state: optax.OptState
) -> Function | None:
    """Return half the sum of squares of `residual_fn`, or the loss of a model."""
    del state
    residuals, examples = _of_keyword("residual_fn", extra), extra.get("examples")
    if residuals is not None:
        return LeastSquares(residuals, examples)
    model = model_of(extra)
    return value_fn if model is None else GaussNewton(model, loss_of(extra))


def model_of(extra: Mapping[str, Any]) -> Function | None:
    """Return the model among the keywords of an update, `None` if there is none.

    With `examples` it is a model of one of them, made one of all.
    """
    model, examples = _of_keyword("model_fn", extra), extra.get("examples")
    if model is None or examples is None:
        return model
    return PerExample(model, examples)


def _of_keyword(name: str, extra: Mapping[str, Any]) -> Any:
    """Return a function, or a tuple of them, given the keywords that it takes."""
    functions = extra.get(name)
    others = {key: value for key, value in extra.items() if key != "examples"}
    if isinstance(functions, (tuple, list)):
        return tuple(with_keywords(f, others) for f in functions)
    return with_keywords(functions, others)


def loss_of(extra: Mapping[str, Any]) -> Any:
    """Return the loss among the keywords of an update.

    Raises:
        TypeError: If there is none.
    """
    loss = extra.get("loss_fn")
    if loss is None:
        raise TypeError("`model_fn` needs `loss_fn`, the loss of its outputs.")
    return loss


@contextlib.contextmanager
def explained_for_residuals() -> Iterator[None]:
    """Let the error for an array in place of a number say what to do with residuals."""
    try:
        yield
    except OutputError as error:
        text = str(error)
        if text.endswith(_REDUCE) or "got:      tuple" in text:
            error.args = (text + _RESIDUALS, *error.args[1:])
        raise


_REDUCE = "Reduce it with `jnp.sum` or `jnp.mean`."
_RESIDUALS = (
    " If these are residuals r(x), write "
    "`minimize(hotk.curvature.LeastSquares(r), x0, hotk.optim.levenberg_marquardt())`."
)
