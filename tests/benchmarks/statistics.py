"""Lines of code and CPU time of statistics, beside statsmodels, numpyro and laplax.

Each program runs in a process of its own, which has imported its library and made the
data: once as the first call, with everything that it compiles, and once more. What is
not installed is left out.
"""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

from tests.benchmarks.table import Row, run


class Task(NamedTuple):
    """One question, answered by hotk and by a peer.

    Attributes:
        what: The question.
        peer: The library.
        data: What both begin with.
        imports: What the peer imports.
        ours: The program with hotk, which leaves its answer in `out`.
        theirs: The program of the peer.
    """

    what: str
    peer: str
    data: str
    imports: str
    ours: str
    theirs: str


OURS = "import hotk; newton = hotk.optim.trust_region(subproblem='exact')"
COMMON = """
import time, sys
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", True)
rng = np.random.default_rng(0)
N = 500
X = np.column_stack([np.ones(N), rng.normal(size=(N, 3))])
eta = X @ [0.3, 0.5, -0.4, 0.2]
"""
TASKS = [
    Task(
        "logistic regression, errors and intervals",
        "statsmodels",
        "y = (rng.random(N) < 1 / (1 + np.exp(-eta))).astype(float)",
        "import statsmodels.api as sm",
        """
nll = lambda b: jnp.sum(jax.nn.softplus(X @ b) - y * (X @ b))
fit = hotk.laplace_approximation(nll, hotk.optim.minimize(nll, jnp.zeros(4), newton).x)
out = fit.standard_errors
interval = fit.interval()
""",
        """
fit = sm.Logit(y, X).fit(disp=0)
out = fit.bse
interval = fit.conf_int()
""",
    ),
    Task(
        "HC3 errors of a linear regression",
        "statsmodels",
        "y = eta + rng.normal(size=N) * (1 + abs(X[:, 1]))",
        "import statsmodels.api as sm",
        """
losses = lambda b, X, y: (X @ b - y) ** 2 / 2
b = jnp.asarray(np.linalg.lstsq(X, y)[0])
out = hotk.statistics.sandwich(losses, b, X, y, kind="HC3").standard_errors
""",
        """
fit = sm.OLS(y, X).fit(cov_type="HC3")
out = fit.bse
""",
    ),
    Task(
        "a likelihood of one's own: censored Weibull",
        "statsmodels",
        """
t = rng.weibull(1.5, size=N) * np.exp(eta)
d = (rng.random(N) < 0.8).astype(float)
""",
        """
from statsmodels.base.model import GenericLikelihoodModel
""",
        """
def nll(p):
    k, z = jnp.exp(p[4]), jnp.log(t) - X @ p[:4]
    return jnp.sum(jnp.exp(k * z) - d * (p[4] + k * z))
mode = hotk.optim.minimize(nll, jnp.zeros(5), newton, tol=1e-6).x
out = hotk.laplace_approximation(nll, mode).standard_errors
""",
        """
class Weibull(GenericLikelihoodModel):
    def nloglikeobs(self, p):
        k, z = np.exp(p[4]), np.log(self.endog) - self.exog @ p[:4]
        return np.exp(k * z) - d * (p[4] + k * z)
model = Weibull(t, X, extra_params_names=["log_shape"])
fit = model.fit(start_params=np.zeros(5), method="bfgs", disp=0, gtol=1e-8)
out = fit.bse
""",
    ),
    Task(
        "profile intervals of a Poisson regression",
        "statsmodels",
        "y = rng.poisson(np.exp(eta)).astype(float)",
        """
import statsmodels.api as sm
from scipy.optimize import brentq
""",
        """
nll = lambda b: jnp.sum(jnp.exp(X @ b) - y * (X @ b))
mode = hotk.optim.minimize(nll, jnp.zeros(4), newton, tol=1e-6).x
out = hotk.statistics.profile_intervals(nll, mode).upper
""",
        """
family = sm.families.Poisson()
fit, out = sm.GLM(y, X, family=family).fit(tol=1e-12), []
for i in range(4):
    rest = np.delete(np.arange(4), i)
    def rise(b):
        held = sm.GLM(y, X[:, rest], family=family, offset=X[:, i] * b)
        return fit.llf - held.fit(tol=1e-12).llf - 1.920729410347062
    out.append(brentq(rise, fit.params[i], fit.params[i] + 5 * fit.bse[i], xtol=1e-10))
""",
    ),
    Task(
        "Laplace's approximation of a hierarchical model",
        "numpyro",
        """
import numpyro, numpyro.distributions as dist
from numpyro.infer import SVI, Trace_ELBO, autoguide, util
g = np.arange(N) % 10
y = jnp.asarray(rng.normal(size=10)[g] + rng.normal(size=N))
def model(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.LogNormal(0.0, 0.5))
    theta = numpyro.sample("theta", dist.Normal(mu, tau).expand([10]))
    numpyro.sample("y", dist.Normal(theta[g], 1.0), obs=y)
""",
        "",
        """
start = util.initialize_model(jax.random.key(0), model, model_args=(y,))
f = start.potential_fn
mode = hotk.optim.minimize(f, start.param_info.z, newton, tol=1e-6).x
fit = hotk.laplace_approximation(f, mode)
out = fit.standard_errors["mu"]
""",
        """
guide = autoguide.AutoLaplaceApproximation(model)
svi = SVI(model, guide, numpyro.optim.Adam(0.01), Trace_ELBO())
found = svi.run(jax.random.key(0), 3000, y, progress_bar=False)
posterior = guide.get_posterior(found.params)
out = jnp.sqrt(posterior.covariance_matrix[0, 0])
""",
    ),
    Task(
        "predictions of a network, full Gauss-Newton",
        "laplax",
        """
y = jnp.asarray(rng.integers(0, 3, size=N))
inputs = jnp.asarray(X)
shapes = {"a": (4, 10), "b": (10,), "c": (10, 3)}
p = {k: jnp.asarray(rng.normal(size=s)) / 2 for k, s in shapes.items()}
net = lambda p, x: jnp.tanh(x @ p["a"] + p["b"]) @ p["c"]
import warnings; warnings.simplefilter("ignore")
""",
        """
from laplax.curv import create_ggn_mv, create_posterior_fn
from laplax.eval import pushforward as push
""",
        """
loss = hotk.curvature.SoftmaxCrossEntropy(y, reduction="sum")
nll = hotk.curvature.GaussNewton(lambda p: net(p, inputs), loss)
prior = lambda p: sum(jnp.sum(a**2) for a in jax.tree.leaves(p)) / 2
fit = hotk.laplace_approximation(lambda p: nll(p) + prior(p), p)
out = fit.predict(net, inputs[:20]).standard_errors
""",
        """
data = {"input": inputs, "target": y}
model = lambda input, params: net(params, input)
mv = create_ggn_mv(model, p, data, loss_fn="cross_entropy")
posterior = create_posterior_fn("full", mv, layout=p)
predict = push.set_lin_pushforward(
    model_fn=model,
    mean_params=p,
    posterior_fn=posterior,
    prior_arguments={"prior_prec": 1.0},
    pushforward_fns=[push.lin_setup, push.lin_pred_mean, push.lin_pred_std],
)
out = jax.vmap(predict)(inputs[:20])["pred_std"]
""",
    ),
]
PROGRAM = """
{common}
{data}
{imports}
{before}
jnp.sum(jnp.ones(3)).block_until_ready()  # a backend has been started
program = compile(sys.argv[1], "program", "exec")
for _ in range(2):
    began = time.process_time()
    exec(program)
    jax.block_until_ready(out)
    print(time.process_time() - began)
print(*np.asarray(out, float).ravel())
"""


def seconds(task: Task, program: str, imports: str) -> tuple[list[float], list[float]]:
    """Run a program twice in a new process: CPU seconds, and its answer."""
    before = OURS if program == task.ours else ""
    parts = {"common": COMMON, "data": task.data, "imports": imports, "before": before}
    text = PROGRAM.format(**parts)
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": ""}
    command = [sys.executable, "-c", text, program]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(done.stderr)
    *times, answer = done.stdout.strip().splitlines()[-3:]
    return [float(t) for t in times], [float(a) for a in answer.split()]


def lines(program: str) -> int:
    """Count the lines of a program."""
    return len(program.strip().splitlines())


def rows_of(task: Task) -> Iterator[Row]:
    """Compare lines, the first call, another one, and the answers."""
    ours, answer = seconds(task, task.ours, "")
    theirs, other = seconds(task, task.theirs, task.imports)
    pair = f"{lines(task.ours)} / {lines(task.theirs)} lines"
    apart = max(abs(a / b - 1) for a, b in zip(answer, other, strict=True))
    note = f"{pair}, answers apart by {apart:.1e}"
    what = f"{task.what}: hotk / {task.peer}"
    yield Row(f"{what}, lines", lines(task.ours) / lines(task.theirs), 1.0, note=note)
    for name, a, b in zip(("first", "again"), ours, theirs, strict=True):
        note = f"{a:.3g} s / {b:.3g} s of CPU"
        yield Row(f"{what}, {name}", a / b, note=note)


def measure() -> Iterator[Row]:
    """Compare what is installed."""
    for task in TASKS:
        if importlib.util.find_spec(task.peer) is not None:
            yield from rows_of(task)


if __name__ == "__main__":
    run(str(__doc__), measure)
