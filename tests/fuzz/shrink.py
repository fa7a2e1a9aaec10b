"""Make a failing program smaller while it still fails."""

from collections.abc import Callable, Iterator

from .program import Program


def _smaller(program: Program) -> Iterator[Program]:
    count = len(program.operations)
    if count > 2:
        yield program._replace(operations=program.operations[: count // 2])
        yield program._replace(operations=program.operations[count // 2 :])
    for i in range(count):
        rest = program.operations[:i] + program.operations[i + 1 :]
        yield program._replace(operations=rest)
    if program.argument:
        yield program._replace(argument="")
    if program.head != "vector":
        yield program._replace(head="vector")
    if program.size > 2 and program.head != "scalar":
        yield program._replace(size=2)


def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """Return a program that fails and none of whose parts can be left out."""
    for smaller in _smaller(program):
        if fails(smaller):
            return shrink(smaller, fails)
    return program
