"""What an exported program was traced with beside arrays: strings, functions, flags."""

import json

import jax
from jaxtyping import PyTree

from hotk._core import PreparationError, function_name, function_place, message

from ._plain import plain


# `jax.export.deserialize` reads no further than the program.
_MARK = b"\nhotk: static arguments "


def with_statics(data: bytes, given: PyTree) -> bytes:
    """Return a program with the texts of the arguments that are no arrays.

    Args:
        data: The program.
        given: Its arguments.
    """
    texts = {path: _text(leaf) for path, leaf in _leaves(given) if not is_number(leaf)}
    return data + _MARK + json.dumps(texts).encode() if texts else data


def statics_of(data: bytes | bytearray) -> dict[str, str]:
    """Return the texts by path, none for a program without any."""
    _, found, texts = bytes(data).rpartition(_MARK)
    return json.loads(texts) if found else {}


def check_statics(call: str, texts: dict[str, str], given: PyTree) -> None:
    """Raise if an argument is another than the program was traced with.

    Args:
        call: The call, for the message.
        texts: The texts by path.
        given: The arguments.
    """
    for path, leaf in _leaves(given):
        if is_number(leaf) or texts.get(path) == _text(leaf):
            continue
        raise PreparationError(
            message(
                call,
                "an argument that is no array is another than was exported.",
                expected=texts.get(path, "arrays alone"),
                got=_text(leaf),
                fix="Export again for it, or pass `None` there for what was exported.",
            )
        )


def is_number(leaf: object) -> bool:
    """Whether it is an array or a number, and so an argument of a program."""
    return hasattr(leaf, "dtype") or isinstance(leaf, (bool, int, float, complex))


def _leaves(given: PyTree) -> list[tuple[str, object]]:
    flat, _ = jax.tree_util.tree_flatten_with_path(plain(given, lambda leaf: leaf))
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in flat]


def _text(leaf: object) -> str:
    """Return a text that is the same in another process."""
    if callable(leaf):
        return f"{function_name(leaf)}{function_place(leaf)}"
    text = repr(leaf)
    return text if " at 0x" not in text else type(leaf).__qualname__
