"""What to write for residuals in place of a number."""

import contextlib
from collections.abc import Iterator

from hotk._core import OutputError


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
