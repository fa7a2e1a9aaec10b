"""`load`: a program from bytes, called as the function that it was exported from."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import final

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from hotk._core import (
    PreparationError,
    PyTreeDef,
    describe,
    extra,
    leaf_name,
    message,
)

from ._static import check_nodes, statics_of, without_statics


@final
class ExportedProgram:
    """A program that `hotk.export` has written: called with arrays, in the same order.

    It takes the arguments of the exported function, or the same arguments with dicts,
    lists and tuples in place of other nodes of trees. It returns dicts, lists and
    tuples. You can use it under `jax.jit`. It is compiled at the first call for each
    set of sizes. It has no derivatives, and `jax.vmap` of it raises.

    Attributes:
        exported: What `jax.export.deserialize` returns.
        platforms: The platforms that it runs on.

    Example:
        >>> cube = hotk.gradient.prepare(lambda x: jnp.sum(x**3), jnp.ones(2))
        >>> program = hotk.load(hotk.export(cube))
        >>> program
        <ExportedProgram gradient(f32[2]) for cpu, cuda, tpu>
        >>> program(jnp.array([1.0, 2.0])).tolist()
        [3.0, 12.0]
    """

    # `jax.jit(program)` needs a weak reference to it.
    __slots__ = ("__weakref__", "_run", "_seen", "_statics", "exported", "platforms")

    def __init__(
        self, exported: jax.export.Exported, statics: Mapping[str, str] | None = None
    ) -> None:
        """Wrap a program.

        Args:
            exported: What `jax.export.deserialize` returns.
            statics: The texts of the arguments that are not arrays, by path.
        """
        self.exported = exported
        self._statics = dict(statics or {})
        self._seen: PyTreeDef | None = None  # of arguments whose nodes were compared
        self.platforms = tuple(exported.platforms)

        def run(*args: PyTree, **named: PyTree) -> PyTree:
            _check(exported, args, named)
            return exported.call(*args, **named)

        run.__name__ = exported.fun_name
        self._run = jax.jit(run)

    def __call__(self, *args: PyTree, **named: PyTree) -> PyTree:
        """Run the program.

        Args:
            *args: The arguments, after a tuple of the captured arrays if these are
                arguments of the program.
            **named: `kwargs` and `weights`, if it was prepared with some.

        Returns:
            What the function returned, with dicts, lists and tuples in place of other
            nodes of trees.

        Raises:
            PreparationError: If an argument has another structure, size or dtype, or
                is not an array and another than was exported, be it a leaf (for which
                `None` may stand) or a static field (a dict may stand for its node).
        """
        called = _called(self.exported)
        structure = jax.tree.structure((args, named))
        if self._seen is None or structure != self._seen:
            check_nodes(called, self._statics, (args, named))
            self._seen = structure
        args, named = without_statics(called, self._statics, (args, named))
        return self._run(*args, **named)

    def __repr__(self) -> str:
        """Show the arguments and the platforms."""
        inputs = ", ".join(map(describe, self.exported.in_avals))
        where = ", ".join(self.platforms)
        return f"<ExportedProgram {self.exported.fun_name}({inputs}) for {where}>"


def load(source: bytes | bytearray | str | os.PathLike[str]) -> ExportedProgram:
    """Return a program that `hotk.export` has written.

    Args:
        source: The bytes, or the path of the file that contains them.

    Returns:
        The program, called as the function that was exported.

    Raises:
        ImportError: If the package `flatbuffers` is missing (the extra `export`).
        TypeError: If it is neither bytes nor a path.
        ValueError: If there is no program in the bytes.

    Example:
        >>> f = lambda x: jnp.sum(jnp.sin(x))
        >>> data = hotk.export(lambda x: hotk.hessian_diagonal(f, x), jnp.ones(2))
        >>> hotk.load(data)(jnp.zeros(2)).tolist()
        [0.0, 0.0]
    """
    extra("flatbuffers", "export")
    named = isinstance(source, (str, os.PathLike))
    if not named and not isinstance(source, (bytes, bytearray)):
        raise TypeError(f"`hotk.load(data)`: {describe(source)} is no bytes, no path.")
    data = Path(source).read_bytes() if named else source
    try:
        exported = jax.export.deserialize(bytearray(data))
        exported.mlir_module()  # else JAX reads it at the first call alone
        return ExportedProgram(exported, statics_of(data))
    except Exception as error:  # whatever reading other bytes as a table may raise
        raise ValueError(
            message(
                f"hotk.load({os.fspath(source)!r})" if named else "hotk.load(data)",
                "there is no program in it that this version of JAX can read.",
                expected="what `hotk.export` has written, with an equal or older JAX",
                got=f"{len(data)} bytes, and {type(error).__name__} in reading them",
                fix="Export again, with the JAX of the process that loads it.",
            )
        ) from error


def _called(exported: jax.export.Exported) -> str:
    return f"hotk.load(...), called as {exported.fun_name}(...)"


def _check(
    exported: jax.export.Exported, args: tuple[PyTree, ...], named: dict[str, PyTree]
) -> None:
    """Raise if an argument is another than was exported; JAX compares batch sizes."""
    call = _called(exported)
    fix = "Pass what was exported, or export again for these arguments."
    structure = jax.tree.structure((args, named))
    if structure != exported.in_tree:
        raise PreparationError(
            message(
                call,
                "the arguments have another structure than was exported.",
                expected=str(exported.in_tree),
                got=str(structure),
                fix=fix,
            )
        )
    paths, _ = jax.tree_util.tree_flatten_with_path((args, named))
    for (path, leaf), expected in zip(paths, exported.in_avals, strict=True):
        found = jax.typeof(leaf)
        sizes = zip(found.shape, expected.shape, strict=False)
        alike = all(n == m for n, m in sizes if isinstance(m, int))
        alike = alike and found.ndim == expected.ndim
        if alike and found.dtype == expected.dtype:
            continue
        root = "args" if path[0].idx == 0 else "named"
        wide = expected.dtype.itemsize == 8 and jnp.result_type(float) == "float32"
        raise PreparationError(
            message(
                call,
                f"`{leaf_name(root, path[1:])}` is another array than was exported.",
                expected=describe(expected),
                got=describe(found),
                fix='Set `jax.config.update("jax_enable_x64", True)` first.'
                if wide
                else fix,
            )
        )
