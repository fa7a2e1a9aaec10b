"""Keywords that other libraries have: an error for one of them names ours.

One table for all functions of hotk that solve, estimate or minimize.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from ._errors import message


_P = ParamSpec("_P")
_T = TypeVar("_T")

# From a name in SciPy, optimistix, lineax, matfree, sklearn or PyTorch to those of hotk
# that mean the same: the first one that a function has is named.
_OURS: Final = {
    **dict.fromkeys(
        ("maxiter", "max_iter", "maxit", "max_iterations", "num_iterations"),
        ("max_steps", "max_restarts", "steps"),
    ),
    **dict.fromkeys(("num_steps", "n_steps", "maxfev", "max_nfev"), ("max_steps",)),
    **dict.fromkeys(("num_matvecs", "lanczos_steps"), ("steps", "max_steps")),
    **dict.fromkeys(("rtol", "gtol", "eps", "tolerance", "atol"), ("tol",)),
    **dict.fromkeys(("ftol", "xtol"), ("rtol", "tol")),
    **dict.fromkeys(
        ("num_samples", "n_samples", "nsamples", "num_probes", "n_probes", "nv"),
        ("samples",),
    ),
    **dict.fromkeys(("seed", "rng", "random_state", "rng_key", "prng_key"), ("key",)),
    "M": ("preconditioner",),
    "guess": ("x0",),
    "ncv": ("max_basis",),
    "largest": ("which",),
    **dict.fromkeys(("disp", "verbose"), ("progress",)),
    **dict.fromkeys(("chunk_size", "batch_size"), ("block_size",)),
    **dict.fromkeys(("method", "solver", "optimizer"), ("transform",)),
    "options": ("max_steps",),
    **dict.fromkeys(("trust_radius", "Delta"), ("radius",)),
}
_REMARKS: Final = {
    "atol": "It is relative where there is a right-hand side, absolute for a gradient.",
    "options": "Options are keywords of their own.",
}


def names_ours(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Let an unknown keyword raise an error that says what it is called here.

    Args:
        function: A function with keywords, all of them named.
    """
    known = frozenset(inspect.signature(function).parameters)

    @functools.wraps(function)
    def checked(*args: _P.args, **named: _P.kwargs) -> _T:
        if not known.issuperset(named):
            raise _unknown(function.__name__, known, next(iter(named.keys() - known)))
        return function(*args, **named)

    return checked


def _unknown(name: str, known: frozenset[str], keyword: str) -> TypeError:
    ours = [new for new in _OURS.get(keyword, ()) if new in known]
    fix = f"Write `{ours[0]}=`." if ours else f"There are {_listed(known)}."
    if ours and keyword in _REMARKS:
        fix += f" {_REMARKS[keyword]}"
    return TypeError(
        message(
            f"{name}(...)",
            f"there is no keyword `{keyword}`.",
            expected=f"`{ours[0]}`" if ours else "one of its keywords",
            got=f"{keyword}=",
            fix=fix,
        )
    )


def _listed(known: frozenset[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(known))
