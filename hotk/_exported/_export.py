"""`export`: a prepared operator, or a function that uses hotk, as bytes."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import jax
from jaxtyping import PyTree

from hotk._core import Function, extra, function_name, leaf_name, message
from hotk._prepared import Prepared, PreparedInOrder, as_input, prepare_again

from ._request import Request, request_of
from ._static import plain, with_statics


_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
_CAPTURED = ("constants", "arguments")


def export(
    f: Prepared | Function,
    *args: PyTree,
    platforms: Sequence[str] = ("cpu", "cuda", "tpu"),
    batch: str | None = None,
    captured: Literal["constants", "arguments"] = "constants",
    path: str | os.PathLike[str] | None = None,
) -> bytes:
    """Return a compiled program as bytes, which runs without hotk and without `f`.

    The program is written by `jax.export`, for all platforms at once and from any of
    them. `hotk.load` reads it. So does JAX alone, in a process that has neither hotk
    nor the code of `f`: `jax.export.deserialize(data).call(*args)`.

    The program takes and returns dicts, lists and tuples: a module, a dataclass or a
    named tuple becomes a dict of its fields, any other node a tuple of its children. A
    leaf that is not an array is part of the program, and `None` in its trees.

    Args:
        f: A prepared operator; or a function of arrays, such as a solve or a step of an
            optimizer.
        *args: The arguments of a function: arrays, or `jax.ShapeDtypeStruct`s, whose
            sizes can be symbolic (`jax.export.symbolic_shape`). A prepared operator
            takes none: it is exported for the arguments that it was prepared for.
        platforms: Where the program can run: `"cpu"`, `"cuda"`, `"rocm"`, `"tpu"`.
        batch: A name for the number of examples: the first axis of the arrays among the
            further arguments of a prepared operator can then have any size.
        captured: Whether arrays that `f` captures are constants of the program or its
            first argument, a tuple in the order of `prepared.leaves`, or of
            `hotk.Closure.of(f).leaves`.
        path: A file that the bytes are written to as well.

    Returns:
        The bytes of the program, for `hotk.load`.

    Raises:
        ImportError: If the package `flatbuffers` is missing (the extra `export`).
        TypeError: If there is no function with arguments.
        ValueError: If an option is not one of those above, the further arguments do not
            have one number of examples, captured arrays are not found, or the program
            calls back to Python, which no file can hold.

    Example:
        >>> loss = lambda w, X, y: jnp.mean((jnp.tanh(X @ w) - y) ** 2)
        >>> w, X, y = jnp.ones(3), jnp.ones((5, 3)), jnp.zeros(5)
        >>> product = hotk.hvp.prepare(loss, w, w, X, y)
        >>> program = hotk.load(hotk.export(product, batch="N"))
        >>> bool(jnp.allclose(program(w, w, X, y), product(w, w, X, y)))
        True
        >>> program(w, w, X[:2], y[:2]).shape
        (3,)
    """
    extra("flatbuffers", "export")
    _check_options(platforms, captured)
    if batch is not None:
        f = for_any_batch(f, batch)
    request = request_of(f, args, apart=captured == "arguments")
    data = _written(request, tuple(platforms), captured == "arguments")
    if path is not None:
        Path(path).write_bytes(data)
    return data


def _written(request: Request, platforms: tuple[str, ...], apart: bool) -> bytes:
    given = (request.arguments, dict(request.named))
    leaves, tree = jax.tree.flatten(given)
    numbers = iter(range(len(leaves)))
    # A number that is one of a prepared operator is configuration of a module.
    is_argument = _is_shape if request.prepared else _is_array

    def number_of(leaf: object) -> int | None:
        number = next(numbers)
        return number if is_argument(leaf) else None

    # Dicts are sorted by their keys, so leaves may come in another order.
    order = jax.tree.leaves(plain(given, number_of))
    shapes, named = plain(given, lambda a: _shape_of(a) if is_argument(a) else None)
    ahead = (tuple(map(_shape_of, request.captured)),) if apart else ()

    def run(*args: PyTree, **named: PyTree) -> PyTree:
        held = args[0] if apart else ()
        own = list(leaves)
        inputs = jax.tree.leaves((args[1:] if apart else args, named))
        for number, array in zip(order, inputs, strict=True):
            own[number] = array
        arguments, keywords = tree.unflatten(own)
        return plain(request.call(held, arguments, keywords), _result)

    run.__name__ = run.__qualname__ = request.name.rpartition(".")[2].strip("<>")
    write = jax.export.export(jax.jit(run), platforms=platforms)
    try:
        data = bytes(write(*ahead, *shapes, **named).serialize())
        return with_statics(data, ((*ahead, *given[0]), given[1]), is_argument)
    except (NotImplementedError, ValueError) as error:
        if "callback" not in str(error):
            raise
        raise ValueError(
            message(
                f"hotk.export({request.name})",
                "the program calls back to Python, which cannot be exported.",
                expected="operations of JAX alone",
                got="a callback, as of `jax.pure_callback` or `hotk.rule.external`",
                fix="Write that part in JAX, or compute it outside of the program.",
            )
        ) from error


def _is_shape(leaf: object) -> bool:
    return isinstance(leaf, jax.ShapeDtypeStruct)


def _is_array(leaf: object) -> bool:
    return isinstance(leaf, jax.ShapeDtypeStruct) or as_input(leaf) is not None


def _shape_of(leaf: object) -> jax.ShapeDtypeStruct:
    """Return shape, dtype, weak type, and how an array lies on several devices."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    aval = jax.typeof(leaf)
    lies = leaf.sharding if isinstance(leaf, jax.Array) else None
    several = lies is not None and len(lies.device_set) > 1
    return jax.ShapeDtypeStruct(
        aval.shape,
        aval.dtype,
        weak_type=aval.weak_type,
        sharding=lies if several else None,
    )


def _result(leaf: object) -> object:
    return leaf if as_input(leaf) is not None else None


def _check_options(platforms: Sequence[str], captured: str) -> None:
    if (
        isinstance(platforms, str)
        or not platforms
        or not all(platform in _PLATFORMS for platform in platforms)
    ):
        raise ValueError(
            message(
                "hotk.export(...)",
                "`platforms` are the names of platforms of JAX.",
                expected="some of " + ", ".join(map(repr, _PLATFORMS)),
                got=repr(platforms),
                fix='Write `platforms=("cpu", "cuda")`.',
            )
        )
    if captured not in _CAPTURED:
        raise ValueError(
            message(
                "hotk.export(...)",
                "there is no such choice of `captured`.",
                expected=" or ".join(map(repr, _CAPTURED)),
                got=repr(captured),
                fix="Leave it out: captured arrays are then part of the program.",
            )
        )


def for_any_batch(f: Function, batch: str) -> Prepared | PreparedInOrder:
    """Prepare again with a symbolic size for the first axis of the further arguments.

    Args:
        f: A prepared operator.
        batch: The name of the size.

    Raises:
        ValueError: If it is not a name, the first axes are not one size, or `f` is not
            prepared.
    """
    call = f"hotk.export(..., batch={batch!r})"
    if not (isinstance(batch, str) and batch.isidentifier()):
        raise ValueError(f'`{call}`: `batch` is the name of a size, such as "N".')
    fix = (
        f'Write `(N,) = jax.export.symbolic_shape("{batch}")`, prepare with '
        "`jax.ShapeDtypeStruct((N, 8), dtype)` for what has that size, and leave "
        "`batch` out."
    )
    if not isinstance(f, (Prepared, PreparedInOrder)):
        raise ValueError(
            message(
                call,
                "it is not known which arguments of the function are a batch.",
                expected="a prepared operator, whose further arguments are the batch",
                got=function_name(f),
                fix=fix.replace("prepare with", "pass"),
            )
        )
    prepared = f.prepared if isinstance(f, PreparedInOrder) else f
    ahead = 2 if prepared.program.options.definition.takes else 1
    given = prepared.arguments
    named = len(f.arguments[1]) if isinstance(f, PreparedInOrder) else 0
    end = len(given) - named
    others = given[ahead:end]
    paths, _ = jax.tree_util.tree_flatten_with_path(others)
    sizes = {
        leaf_name("args", path): leaf.shape[0]
        for path, leaf in paths
        if _has_axis(leaf)
    }
    if len({*sizes.values()}) != 1:
        rows = ", ".join(f"{name}: {size}" for name, size in sizes.items())
        raise ValueError(
            message(
                call,
                "the further arguments have different numbers of examples.",
                expected="arrays whose first axes have the same size",
                got=rows or "no array",
                fix=fix,
            )
        )
    (size,) = jax.export.symbolic_shape(batch)

    def symbolic(leaf: PyTree) -> PyTree:
        if not _has_axis(leaf):
            return leaf
        shape = (size, *leaf.shape[1:])
        return jax.ShapeDtypeStruct(shape, leaf.dtype, weak_type=leaf.weak_type)

    others = jax.tree.map(symbolic, others)
    again = prepare_again(prepared, (*given[:ahead], *others, *given[end:]))
    if isinstance(f, PreparedInOrder):
        return dataclasses.replace(f, prepared=again)
    return again


def _has_axis(leaf: object) -> bool:
    return isinstance(leaf, jax.ShapeDtypeStruct) and len(leaf.shape) > 0
