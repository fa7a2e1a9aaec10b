"""Arrays, leaves, functions and bytes in the words of messages."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hotk._core import (
    bytes_name,
    describe,
    describe_tree,
    dtype_name,
    file_name,
    function_name,
    function_place,
    leaf_name,
    number_name,
    peek,
)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("float32", "f32"),
        ("complex128", "c128"),
        ("uint8", "u8"),
        ("int64", "i64"),
        ("bool", "bool"),
        (jnp.bfloat16, "bf16"),
        (jax.random.key(0).dtype, "key<fry>"),
    ],
)
def test_a_dtype_has_a_short_name(dtype, name):
    assert dtype_name(dtype) == name


@pytest.mark.parametrize(
    ("leaf", "text"),
    [
        (None, "None"),
        (True, "Python bool"),
        (2.0, "Python float"),
        ("text", "str"),
        (jnp.ones((3, 4), jnp.float32), "f32[3,4]"),
        (jnp.asarray(2.0), "f64[] (weak)"),
        (np.ones(2), "NumPy f64[2]"),
        (np.float32(1), "NumPy f32[]"),
        (jax.ShapeDtypeStruct((5,), jnp.int32), "i32[5]"),
    ],
    ids=str,
)
def test_a_leaf_is_described_by_its_type_and_shape(leaf, text):
    assert describe(leaf) == text


def test_a_leaf_is_named_by_its_path():
    [(path, _)] = jax.tree_util.tree_leaves_with_path({"w": [1.0]})
    assert leaf_name("x", path) == "x['w'][0]"


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        (np.ones(2), "NumPy f64[2]"),
        ((1.0, 2), "tuple of Python float, Python int"),
        ([], "[]"),
        ([0] * 9, f"list of {', '.join(['Python int'] * 8)}, ... (9 leaves)"),
    ],
    ids=["leaf", "tuple", "empty", "nine"],
)
def test_a_tree_is_described_in_one_line_and_cut_after_eight(tree, text):
    assert describe_tree(tree) == text


class Model:
    def loss(self, x):
        return x

    def __getattr__(self, name):
        raise RuntimeError(f"{name} was read")


@pytest.mark.parametrize(
    ("f", "name"),
    [
        (Model.loss, "Model.loss"),
        (Model().loss, "Model.loss"),
        (functools.partial(Model().loss, 1.0), "Model.loss"),
        (jnp.sin, "sin"),
        (Model(), "Model"),
    ],
    ids=["function", "method", "partial", "of jax", "object"],
)
def test_a_function_is_named_and_no_attribute_of_the_user_is_computed(f, name):
    assert function_name(f) == name


def test_the_place_of_a_function_is_its_line():
    line = Model.loss.__code__.co_firstlineno
    for f in (Model.loss, Model().loss, functools.partial(Model.loss)):
        assert function_place(f) == f" (test_describe.py:{line})"
    assert function_place(len) == ""


def test_a_cell_of_a_notebook_has_no_file_name():
    assert file_name("/home/me/loss.py") == "loss.py"
    assert file_name("/tmp/ipykernel_12/345.py") == "notebook cell"
    assert file_name("<ipython-input-1-abc>") == "notebook cell"


def test_an_attribute_is_read_without_running_code_of_the_user():
    assert peek(Model(), "weights") is None
    assert peek(Model(), "__class__") is Model


def test_a_number_is_written_or_described_where_there_is_none_yet():
    assert number_name(jnp.asarray(1 / 3)) == "0.333333"
    seen = []
    jax.jit(lambda x: seen.append(number_name(x)) or x)(jnp.ones((), jnp.float32))
    assert seen == ["f32[]"]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (2**20, "1 MiB"),
        (5 * 2**30, "5 GiB"),
        (2**52, "4096 TiB"),
    ],
)
def test_bytes_have_a_binary_unit(count, text):
    assert bytes_name(count) == text
