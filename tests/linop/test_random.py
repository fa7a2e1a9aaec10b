"""Random vectors: independent entries by few draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hotk.linop import space


KEY = jax.random.key(2)
LARGE = jnp.zeros((300, 300))
TREE = {
    "small": [jnp.zeros((40, i)) for i in range(1, 9)],
    "complex": jnp.zeros(2000, jnp.complex128),
    "large": [LARGE, LARGE],
    "half": jnp.zeros(500, jnp.bfloat16),
    "none": jnp.zeros((0, 3)),
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize("signs", [False, True])
def test_entries_are_independent_with_variance_one(signs):
    made = space.random(KEY, TREE, signs=signs)
    assert jax.tree.map(jnp.shape, made) == jax.tree.map(jnp.shape, TREE)
    assert made["half"].dtype == jnp.float32
    z = np.array(made["complex"])
    pieces = [np.ravel(a) for a in (*made["small"], *made["large"])]
    for a in (np.concatenate(pieces), z.real, z.imag):
        assert abs(np.mean(a)) < 4 / len(a) ** 0.5
        assert abs(np.mean(a**2) - 1) < 4 * 2**0.5 / len(a) ** 0.5
    one, two = (np.ravel(a) for a in made["large"])
    for a, b in ((one, two), (z.real, z.imag), (one[1:], one[:-1])):
        assert abs(np.mean(a * b)) < 4 / len(a) ** 0.5
    if signs:
        assert set(np.unique(one)) == {-1.0, 1.0}


@pytest.mark.exhaustive
def test_many_leaves_take_few_draws():
    """A draw takes longer to compile than all else that is done with a leaf."""
    many = [jnp.zeros((3, i)) for i in range(50)] + [LARGE] * 10
    text = str(jax.make_jaxpr(lambda key: space.random(key, many, signs=False))(KEY))
    assert text.count("random_bits") == 2
