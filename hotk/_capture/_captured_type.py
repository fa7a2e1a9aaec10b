"""`CapturedType`: all that hotk knows about one type of captured thing, in one record.

A new captured type is one record, next to the functions that it names: `register` it
for its classes there. Only a family of classes that no list can name, such as all
subclasses of one, needs a line in `_dispatch.py` as well. An example from beginning to
end stands in `docs/contributing.md`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal


Treatment = Literal["leaf", "traversed", "static", "static by identity"]
# The first argument is a `Description` or a `Rebuild`, and the second one is of the
# captured type. Those two classes stand on this record, so it cannot name them.
Describe = Callable[[Any, Any, str], None]
Rebuilder = Callable[[Any, Any], Any]


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class CapturedType:
    """How one type of captured thing is handled. No field may be left out.

    Attributes:
        describe: Says of a thing what must be the same and what is inside, given a
            `Description`, the thing and the name of the variable that holds it.
        rebuild: Makes a copy with other arrays inside, given a `Rebuild` and the thing;
            `None` if the thing stays what it is.
        treatment: What `hotk.explain` says of it.
        mutable: Whether a function could write into it: then each trace gets a copy,
            so that the write is found and the thing of the user is unharmed.
    """

    describe: Describe
    rebuild: Rebuilder | None
    treatment: Treatment
    mutable: bool


def uncopied(describe: Describe, treatment: Treatment) -> CapturedType:
    """Return the record of a type whose objects hold no leaves and never change."""
    return CapturedType(
        describe=describe,
        rebuild=None,
        treatment=treatment,
        mutable=False,
    )


CAPTURED_TYPES: dict[type, CapturedType] = {}
# The same, the descriptions alone: one look-up less for each captured thing of a call.
DESCRIPTIONS: dict[type, Describe] = {}


def register(captured: CapturedType, *classes: type) -> None:
    """Handle objects of exactly these classes as the record says.

    Raises:
        ValueError: If a class is registered already.
    """
    for cls in classes:
        if cls in CAPTURED_TYPES:
            raise ValueError(f"{cls.__qualname__} is registered already")
        CAPTURED_TYPES[cls] = captured
        DESCRIPTIONS[cls] = captured.describe
