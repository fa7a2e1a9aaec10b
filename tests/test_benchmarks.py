"""Benchmarks run: they import, and those with a table of their own make steps."""

import importlib
import math
from pathlib import Path

import jax
import optax
import pytest

from tests.benchmarks import networks, second_order


MODULES = sorted(path.stem for path in Path(networks.__file__).parent.glob("[!_]*.py"))
PEERS = {
    "asdex",
    "casadi",
    "cyipopt",
    "folx",
    "laplax",
    "matfree",
    "numpyro",
    "pypower",
    "sklearn",
    "statsmodels",
}


@pytest.fixture(autouse=True)
def promotion_as_optax_needs_it():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.parametrize("name", MODULES)
def test_a_benchmark_is_imported(name):
    try:
        module = importlib.import_module(f"tests.benchmarks.{name}")
    except ModuleNotFoundError as error:
        if error.name not in PEERS:
            raise
        pytest.skip(f"{error.name} is not installed")
    assert module.__doc__


def digits():
    task = networks.classes()
    return task._replace(inputs=task.inputs[:8], targets=task.targets[:8])


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "make",
    [
        lambda task: networks.Method(optax.adam(0.01), 8),
        lambda task: networks.Method(optax.lbfgs(), 8, networks.OF_SEARCH),
        lambda task: networks.kfac(task, 4, damping=0.1),
    ],
    ids=["adam", "lbfgs", "kfac"],
)
def test_a_step_of_a_network(make):
    task = digits()
    _, loss, steps = networks.path(task, make(task), budget=0.0)
    assert steps == 1
    assert loss < float(task.value(task.start, task.inputs, task.targets))


@pytest.mark.exhaustive
def test_every_classifier_makes_a_step():
    task = digits()
    found = {
        name: [networks.path(task, method, 0.0)[2] for method in choices]
        for name, choices in networks.classifiers(task).items()
    }
    assert {n for steps in found.values() for n in steps} == {1}


@pytest.mark.exhaustive
def test_a_step_of_the_equation_and_of_the_regression(monkeypatch):
    monkeypatch.setattr(second_order, "MOST", 1)
    monkeypatch.setattr(second_order, "RANKS", (250,))
    rows = list(second_order.measure())
    assert len(rows) == 5 + 2 + 2 * 2
    assert all(row.measured == 1 for row in rows if "steps of" in row.what)
    products = [row.measured for row in rows if "products" in row.what]
    assert all(map(math.isfinite, products))
