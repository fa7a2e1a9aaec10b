"""Losses that hold estimators, scalers and data sets of scikit-learn."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.preprocessing import StandardScaler

from tests.everyday.corpus import everyday


def table(seed, rows=16, columns=4):
    rng = np.random.default_rng(seed)
    X = rng.normal(2.0, 3.0, (rows, columns))
    return X, (X[:, 0] + rng.normal(size=rows) > 2.0).astype(int)


@everyday("scaled data of a fitted scaler")
def scaler(seed):
    X, y = table(seed)
    scaler = StandardScaler().fit(X)

    def loss(w):
        scaled = (jnp.asarray(X) - scaler.mean_) / scaler.scale_
        logits = scaled @ w
        return jnp.mean(jnp.logaddexp(0.0, logits) - y * logits)

    return loss, jnp.array([0.1, 0.2, -0.3, 0.4]), ()


@everyday(
    "distance to the coefficients of an estimator",
    slow="a class made anew is another class: define it in the module",
)
def estimator(seed):
    X, y = table(seed)
    model = LogisticRegression(C=0.5).fit(X, y)

    class Penalized:
        def __init__(self, model, strength=0.1):
            self.model = model
            self.strength = strength

        def __call__(self, w):
            logits = X @ w + self.model.intercept_[0]
            data = jnp.mean(jax.nn.softplus(logits) - y * logits)
            return data + self.strength * jnp.sum((w - self.model.coef_[0]) ** 2)

    return Penalized(model), jnp.array([0.1, 0.2, -0.3, 0.4]), ()


@dataclasses.dataclass
class Pipeline:
    """Steps that were fitted before, and a penalty."""

    pca: PCA
    start: LinearRegression
    penalty: float = 0.01

    def residuals(self, w, X, y):
        reduced = (X - self.pca.mean_) @ self.pca.components_.T
        return reduced @ w + self.start.intercept_ - y

    def loss(self, w, X, y):
        return jnp.mean(self.residuals(w, X, y) ** 2) + self.penalty * w @ w


@everyday(
    "fitted steps in a dataclass",
    slow="NumPy computes in it from data that it gets, by its own rules: "
    "write `jnp`, or compute that before",
)
def pipeline(seed):
    X, y = table(seed)
    pca = PCA(2).fit(X)
    fitted = Pipeline(pca, LinearRegression().fit(pca.transform(X), y))
    return fitted.loss, jnp.array([0.3, -0.2]), (X, y)
