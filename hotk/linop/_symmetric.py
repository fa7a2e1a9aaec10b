"""`AbstractSymmetricOperator`: an operator whose matrix is symmetric for all values."""

from hotk._core import V

from ._operator import AbstractOperator


class AbstractSymmetricOperator(AbstractOperator[V]):
    """A symmetric linear operator: a linear map of a space of trees into itself.

    A subclass defines what its vectors look like (`like`) and how it acts on one
    (`mv`). All else is as for `AbstractOperator`.

    Example:
        >>> class Doubling(hotk.linop.AbstractSymmetricOperator):
        ...     like = np.zeros(3, np.float32)
        ...     mv = lambda self, v: 2 * v
        >>> Doubling().solve(jnp.array([1.0, 2.0, 4.0])).x.tolist()
        [0.5, 1.0, 2.0]
    """

    @property
    def symmetric(self) -> bool:
        """Whether the map is symmetric: always `True`."""
        return True
