"""Keywords that other libraries have: an error for one of them names ours.

One table for all functions of hotk that solve, estimate or minimize.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from ._errors import message
from ._ranges import range_of


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
    "seed": ("key",),
    "key": ("seed",),
    **dict.fromkeys(("rng", "random_state", "rng_key", "prng_key"), ("key", "seed")),
    "M": ("preconditioner",),
    **dict.fromkeys(("guess", "y0", "init_params"), ("x0", "p0")),
    **dict.fromkeys(("x0", "params"), ("p0",)),
    **dict.fromkeys(("fun", "fn", "func"), ("f",)),
    "ncv": ("max_basis",),
    "largest": ("which",),
    **dict.fromkeys(("disp", "verbose"), ("progress",)),
    **dict.fromkeys(("chunk_size", "batch_size"), ("block_size",)),
    **dict.fromkeys(("method", "solver", "optimizer"), ("transform",)),
    "options": ("max_steps",),
    **dict.fromkeys(
        ("trust_radius", "initial_trust_radius", "init_radius", "Delta"), ("radius",)
    ),
    "max_trust_radius": ("max_radius",),
    "eta": ("accept", "max_tol"),
    **dict.fromkeys(("cg_tol", "inner_tol", "forcing"), ("max_tol", "tol")),
    **dict.fromkeys(("cg_maxiter", "cg_max_steps", "inner_maxiter"), ("max_steps",)),
    **dict.fromkeys(("lr", "step_size", "stepsize"), ("learning_rate",)),
    **dict.fromkeys(
        ("lam", "lambda_", "lmbda", "ridge", "regularization", "init_damping"),
        ("damping",),
    ),
    "beta1": ("b1",),
    "beta2": ("b2",),
    "rho": ("gamma",),
    "hessian_power": ("power",),
    **dict.fromkeys(
        ("update_interval", "update_each", "hessian_update_interval"), ("every",)
    ),
    "clip_threshold": ("clip",),
    "c1": ("decrease",),
    **dict.fromkeys(("curvature_ema", "cov_ema_decay", "factor_decay"), ("decay",)),
    **dict.fromkeys(
        ("inverse_update_period", "inv_update_steps", "inv_update_freq"),
        ("inverses_every",),
    ),
    **dict.fromkeys(
        ("curvature_update_period", "factor_update_steps", "factor_update_freq"),
        ("factors_every",),
    ),
    **dict.fromkeys(("l2_reg", "weight_decay"), ("l2",)),
    **dict.fromkeys(
        ("maxls", "max_linesearch_steps", "max_backtracking_steps"),
        ("max_evaluations",),
    ),
}
# Of a minimization as a whole, where a function makes its steps.
_OF_MINIMIZE: Final = {
    **dict.fromkeys(
        ("maxiter", "max_iter", "max_iterations", "num_steps", "maxfev", "max_steps"),
        "max_steps",
    ),
    **dict.fromkeys(("tol", "gtol", "eps", "tolerance", "atol"), "tol"),
    **dict.fromkeys(("rtol", "ftol"), "rtol"),
    "xtol": "xtol",
    **dict.fromkeys(("disp", "verbose", "progress"), "progress"),
    "args": "args",
    "options": "max_steps",
}
# What is done in another place, whichever function is asked for it.
_OVER_AXIS: Final = (
    'Wrap the function, `hotk.over_axis(f, "data")` in place of `f`, and give that to '
    "an optimizer as `value_fn`. `HessianOperator`, `GGNOperator` and the Fisher "
    "operators take `axis_name=`."
)
_DIVIDED: Final = (
    'What is divided is the matrix: `hotk.hessian(f, x, split="columns")`, '
    "`hotk.jacobian`, `H.matrix`, `H.block`. `newton_cg`, `trust_region` and `H.solve` "
    "form none, and keep the sharding of the parameters."
)
_THIRD: Final = (
    'Write `hotk.jacobian(lambda x: hotk.hessian(f, x), x, split="columns")`: the '
    "third derivative, divided along its last axis."
)
_DAMPED: Final = (
    "Add it to the operator: `(H + damping * hotk.Identity()).solve(b)`. Another "
    "number does not compile again."
)
_OF_SCIPY: Final = (
    "Bounds are `bounds=(lower, upper)`. Methods of SciPy have constraints: write "
    "`hotk.interop.scipy_problem(f, x0).minimize(method, constraints=...)`, with "
    "the derivatives. IPOPT: `hotk.interop.ipopt_problem(f, x0, constraints=g)`."
)
_DIFFERENTIATED: Final = (
    "Leave it out: derivatives are computed from `f`, for a method of SciPy as well, "
    "`hotk.interop.scipy_problem(f, x0).minimize(method)`."
)
_IMPLICIT: Final = (
    "Leave it out: `x` and `value` of the result have the derivatives of the minimum, "
    "not those of the steps."
)
_MINIMIZE: Final = {
    **dict.fromkeys(("constraints", "lower", "upper", "lb", "ub"), _OF_SCIPY),
    **dict.fromkeys(("jac", "hess", "hessp", "value_and_grad"), _DIFFERENTIATED),
    **dict.fromkeys(("adjoint", "implicit_diff", "unroll"), _IMPLICIT),
    "has_aux": "Give the value alone: `minimize(lambda x: f(x)[0], x0)`.",
    "throw": "It raises nothing if it does not converge: ask `found.converged`.",
    "jit": "Leave it out: the loop is compiled.",
    "linesearch": "It is a transformation: put `hotk.optim.scale_by_line_search()` at "
    "the end of an `optax.chain`. `hotk.optim.newton_cg()` has one.",
}
_LEFT_OUT: Final = "Leave out what is missing: `keep = np.isfinite(y)`."
_FIT: Final = {
    "jac": "Leave it out: the derivatives are those of the model.",
    "method": "Leave it out: it is Levenberg's and Marquardt's, with any loss.",
    "weights": "Give the standard deviations, `sigma=1 / weights`.",
    "args": "Let the model capture them, or put them into `x`, which may be any tree.",
    "full_output": "Leave it out: all there is stands in the result.",
    **dict.fromkeys(("nan_policy", "check_finite"), _LEFT_OUT),
}
_ELSEWHERE: Final = {
    **{("fit", name): fix for name, fix in _FIT.items()},
    **{("minimize", name): fix for name, fix in _MINIMIZE.items()},
    **{("solve", name): _DAMPED for name in ("damping", "lam", "lambda_", "ridge")},
    "axis_name": _OVER_AXIS,
    "split": _DIVIDED,
    "mesh_axis": _DIVIDED,
    ("derivative_tensor", "split"): _THIRD,
    ("derivative_tensor", "mesh_axis"): _THIRD,
    ("KFACOperator", "axis_name"): "Call it outside of `shard_map`, with data that are "
    "divided among devices: the factors are those of all examples.",
    ("kfac", "axis_name"): "Make the step outside of `shard_map`, with data that are "
    "divided among devices: JAX distributes the work.",
}
_REMARKS: Final = {
    "atol": "It is relative where there is a right-hand side, absolute for a gradient.",
    "options": "Options are keywords of their own.",
    "method": "For a method of SciPy write "
    "`hotk.interop.scipy_problem(f, x0).minimize(method)`.",
}


def remark(keyword: str) -> str:
    """Return what an error says of a keyword of another library besides its name here.

    Args:
        keyword: The keyword.
    """
    return _REMARKS[keyword]


def elsewhere(name: str, keyword: str) -> str | None:
    """Return what to write where a keyword is not of a function, but of another.

    Args:
        name: The function.
        keyword: The keyword.
    """
    return _ELSEWHERE.get((name, keyword), _ELSEWHERE.get(keyword))


def names_ours(
    function: Callable[_P, _T], *, makes_steps: bool = False, name: str | None = None
) -> Callable[_P, _T]:
    """Check the keywords of a function: their names, and the range of numbers.

    An unknown one raises an error that says what it is called here.

    Args:
        function: A function with keywords, all of them named.
        makes_steps: Whether it makes a transformation: keywords of a minimization are
            those of `minimize`.
        name: Its name, if it is not its own.
    """
    called = function.__name__ if name is None else name
    parameters = inspect.signature(function).parameters
    by_position = [n for n, p in parameters.items() if p.kind is p.VAR_POSITIONAL]
    known = frozenset(parameters).difference(by_position)
    ranges = {name: range_of(called, name) for name in parameters}
    ranged = {name: found for name, found in ranges.items() if found is not None}
    places = [
        (i, name)
        for i, (name, parameter) in enumerate(parameters.items())
        if name in ranged and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]

    @functools.wraps(function)
    def checked(*args: _P.args, **named: _P.kwargs) -> _T:
        if not known.issuperset(named):
            keyword = next(iter(named.keys() - known))
            if makes_steps and keyword in _OF_MINIMIZE:
                raise _of_minimize(called, keyword)
            raise _unknown(called, known, keyword, by_position)
        if ranged:
            given = {name: args[i] for i, name in places if i < len(args)} | named
            for name in ranged.keys() & given.keys():
                if given[name] is not parameters[name].default:
                    ranged[name].check(f"{called}(...)", name, given[name])
        return function(*args, **named)

    return checked


def _of_minimize(name: str, keyword: str) -> TypeError:
    ours = _OF_MINIMIZE[keyword]
    call = f"hotk.optim.minimize(f, x0, hotk.optim.{name}(...), {ours}=...)"
    return TypeError(
        message(
            f"{name}(...)",
            f"there is no keyword `{keyword}`: it belongs to `minimize`.",
            expected=f"`{ours}` of `minimize`",
            got=f"{keyword}=",
            fix=f"Write `{call}`, or check it in your own loop.",
        )
    )


def _unknown(
    name: str, known: frozenset[str], keyword: str, by_position: list[str]
) -> TypeError:
    ours = [new for new in _OURS.get(keyword, ()) if new in known]
    fix = f"Write `{ours[0]}=`." if ours else f"There are {_listed(known)}."
    other = elsewhere(name, keyword)
    if keyword in by_position:
        fix = "Its contents follow the other arguments, by position."
    if other is not None and not ours:
        fix = other
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
    return ", ".join(f"`{name}`" for name in sorted(known - {"self"}))
