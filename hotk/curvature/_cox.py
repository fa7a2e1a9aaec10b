"""`CoxLoss`: the partial likelihood of Cox, a loss of all rows together."""

from typing import Literal, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num, Shaped

from hotk._core import Scalar, StructureError, message

from ._targets import Outputs, as_array, refuse_complex


Rows = Float[Array, " N"]


class _Risks(NamedTuple):
    """The rows in the order of their times, and the sets at risk.

    Attributes:
        order: The rows, by ascending time.
        z: Their scores.
        events: One for an event, zero for a censored row.
        first: For each row the first one of the same time.
        last: The last one of the same time.
        share: For each event the share of its tied events that have left the set.
        log_total: The logarithm of the sum of exp(z) over the set of each row.
        part: For each row exp(z) over that sum.
        left: For each event what part of that sum has not left the set.
    """

    order: Int[Array, " N"]
    z: Rows
    events: Rows
    first: Int[Array, " N"]
    last: Int[Array, " N"]
    share: Rows
    log_total: Rows
    part: Rows
    left: Rows

    def over_ties(self, values: Rows) -> Rows:
        """Return for each row the sum over the rows of the same time."""
        sums = jax.ops.segment_sum(values, self.first, num_segments=len(values))
        return sums[self.first]

    def as_given(self, values: Rows) -> Rows:
        """Return values in the order in which the rows were given."""
        return jnp.zeros_like(values).at[self.order].set(values)


@final
class CoxLoss(eqx.Module):
    r"""The negative logarithm of Cox's partial likelihood, of scores z (log hazards).

    It is $c \sum_i (\log \sum_{j : t_j \ge t_i} e^{z_j} - z_i)$ over the rows i with an
    event [1]. Where d events have the same time, Breslow's form has the same sum in all
    of them; Efron's [2] leaves the share r/d of their own terms out of it, for r = 0 to
    d - 1. The factor c is 1/N for the mean over N rows, 1 for the sum.

    It is no sum of losses of single rows, so it has no gradients of examples: it goes
    with `hotk.ggnvp`, `GaussNewton` and `GGNOperator`, not with Fisher matrices of
    drawn targets. Given the sets at risk each event is a softmax cross entropy over its
    set; so without ties the Hessian, which does not depend on who had the event, is the
    expected information as well. `times` are not given to a model: a model returns one
    score for each row, without an intercept.

    Attributes:
        times: The time of each row, of its event or of its censoring.
        events: One or `True` where the time is that of an event.
        ties: `"efron"` or `"breslow"`.
        reduction: `"mean"` or `"sum"` over the rows.

    Example:
        >>> loss = hotk.curvature.CoxLoss(
        ...     jnp.array([1.0, 2.0, 3.0]), jnp.array([1, 0, 1]), reduction="sum"
        ... )
        >>> round(loss(jnp.zeros(3)).item(), 4)  # log 3 + log 1
        1.0986

    References:
        [1] Cox (1972). Regression models and life-tables. J. R. Stat. Soc. B 34(2),
            187-220.
        [2] Efron (1977). The efficiency of Cox's likelihood function for censored data.
            J. Am. Stat. Assoc. 72(359), 557-565.
    """

    times: Num[Array, " N"] = eqx.field(converter=as_array)
    events: Shaped[Array, " N"] = eqx.field(converter=as_array)
    ties: Literal["efron", "breslow"] = eqx.field(default="efron", static=True)
    reduction: Literal["mean", "sum"] = eqx.field(default="mean", static=True)
    convex = True

    def __check_init__(self) -> None:
        """Refuse other ties, another reduction, and events of another shape."""
        if self.ties not in ("efron", "breslow"):
            raise ValueError(f"`ties` is {self.ties!r}, not 'efron' or 'breslow'.")
        if self.reduction not in ("mean", "sum"):
            raise ValueError(f"`reduction` is {self.reduction!r}, not 'mean' or 'sum'.")
        if self.times.ndim != 1 or self.events.shape != self.times.shape:
            raise self._other_shape(
                "`times` and `events` have one number for each row.",
                "two arrays of shape (N,)",
                f"{self.times.shape} and {self.events.shape}",
            )

    def __call__(self, z: Outputs) -> Scalar:
        """Return the loss.

        Args:
            z: The scores, of shape `(N,)` or `(N, 1)`.

        Raises:
            StructureError: If they have another shape.
            OutputError: If they are complex.
        """
        risks = self._risks(z)
        each = risks.log_total + jnp.log(risks.left) - risks.z
        return self._factor() * jnp.sum(risks.events * each)

    def gradient(self, z: Outputs) -> Outputs:
        """Return the gradient by the scores.

        Args:
            z: The scores, of shape `(N,)` or `(N, 1)`.
        """
        risks = self._risks(z)
        slope = risks.as_given(self._weights(risks) - risks.events)
        return self._factor() * slope.reshape(z.shape)

    def hessian_product(self, z: Outputs, u: Outputs) -> Outputs:
        r"""Return the product of the Hessian with a vector.

        It is $c \sum_i (\mathrm{diag}(p_i) - p_i p_i^T)\, u$ with the probabilities
        $p_i$ of the event i, one for each row at risk: a few passes over the rows.

        Args:
            z: The scores, of shape `(N,)` or `(N, 1)`.
            u: A direction, with the shape of `z`.
        """
        risks = self._risks(z)
        u_sorted = u.reshape(-1)[risks.order]
        # the mean of u over the set of each event
        _, means = _running(risks.z, u_sorted, reverse=True)
        tied = risks.over_ties(risks.events * risks.part * u_sorted)
        means = (means[risks.first] - risks.share * tied) / risks.left
        product = self._weights(risks) * u_sorted - self._weights(risks, means)
        return self._factor() * risks.as_given(product).reshape(z.shape)

    def _weights(self, risks: _Risks, values: Rows | None = None) -> Rows:
        """Return for each row the sum over events of its probability times a value."""
        ones = jnp.ones_like(risks.z)
        values = ones if values is None else values
        none = jnp.asarray(-jnp.inf, risks.z.dtype)
        log_rate = -risks.log_total - jnp.log(risks.left)
        log_rate = jnp.where(risks.events > 0, log_rate, none)
        log_sum, means = _running(log_rate, values)
        whole = jnp.exp(risks.z + log_sum[risks.last]) * means[risks.last]
        gone = risks.over_ties(risks.events * risks.share / risks.left * values)
        return whole - risks.events * risks.part * gone

    def _risks(self, z: Outputs) -> _Risks:
        refuse_complex(self, z)
        n = len(self.times)
        if z.shape not in ((n,), (n, 1)):
            raise self._other_shape(
                "the scores are one number for each row.",
                f"an array of shape {(n,)} or {(n, 1)}",
                str(z.shape),
            )
        order = jnp.argsort(self.times)
        times, events = self.times[order], self.events[order].astype(z.dtype)
        score = z.reshape(-1)[order]
        first = jnp.searchsorted(times, times, side="left")
        last = jnp.searchsorted(times, times, side="right") - 1
        log_total = jax.lax.cumlogsumexp(score, reverse=True)[first]
        part = jnp.exp(score - log_total)
        risks = _Risks(
            order=order,
            z=score,
            events=events,
            first=first,
            last=last,
            share=jnp.zeros_like(score),
            log_total=log_total,
            part=part,
            left=jnp.ones_like(score),
        )
        if self.ties == "breslow":
            return risks
        before = jnp.cumsum(events) - events
        count = jnp.maximum(risks.over_ties(events), 1)
        share = events * (before - before[first]) / count
        left = 1 - share * risks.over_ties(events * part)
        return risks._replace(share=share, left=left)

    def _factor(self) -> float:
        return 1 / len(self.times) if self.reduction == "mean" else 1.0

    @staticmethod
    def _other_shape(problem: str, expected: str, got: str) -> StructureError:
        return StructureError(
            message(
                "CoxLoss(times, events)(z)",
                problem,
                expected=expected,
                got=got,
                fix="Reshape them; hotk never broadcasts.",
            )
        )


def _running(log_weights: Rows, u: Rows, *, reverse: bool = False) -> tuple[Rows, Rows]:
    """Return the running sums of weights, as logarithms, and the weighted means of u.

    Means, and not sums: of weights that differ by many orders of magnitude a sum from
    the wrong end would keep nothing of the small ones, or overflow.
    """

    def joined(a: tuple[Rows, Rows], b: tuple[Rows, Rows]) -> tuple[Rows, Rows]:
        (log_a, u_a), (log_b, u_b) = a, b
        # equal ones may both be of weight zero
        gap = jnp.where(log_a == log_b, 0, log_a - log_b)
        mean = jax.nn.sigmoid(gap) * u_a + jax.nn.sigmoid(-gap) * u_b
        return jnp.logaddexp(log_a, log_b), mean

    return jax.lax.associative_scan(joined, (log_weights, u), reverse=reverse)
