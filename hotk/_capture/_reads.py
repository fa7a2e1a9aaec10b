"""Which attributes a code object reads off its `self` and off what it captured.

What is not read cannot change what a function computes. It is found in the bytecode:
`self.a.b` is a chain of two names. Whatever else is done with the object, it may be
read in any way there: then it *escapes*, and all of it counts. Instructions that are
not known count as such a use.
"""

import dis
import types


Chain = tuple[str, ...]
# The chains that are read, or `None` if the object escapes.
Reads = tuple[Chain, ...] | None

_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_LOADS = frozenset({"LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_DEREF"})
# Two at once: the second one lies on top, so an attribute is read off that one.
_PAIRS = frozenset({"LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW"})
_FREE = frozenset({"LOAD_DEREF"})
_CLOSURE = frozenset({"MAKE_CELL", "LOAD_CLOSURE", "COPY_FREE_VARS"})
_NAMES = frozenset((*dis.haslocal, *dis.hasfree))


class _Finder:
    """Collects the chains of all local and free names of one code object."""

    def __init__(self, code: types.CodeType) -> None:
        self.chains: dict[str, dict[Chain, None]] = {}
        self.escaped: set[str] = set()
        self.cells = frozenset((*code.co_cellvars, *code.co_freevars))
        instructions = [i for i in dis.get_instructions(code) if i.opname != "CACHE"]
        for at, instruction in enumerate(instructions):
            if instruction.opcode in _NAMES and instruction.opname not in _CLOSURE:
                self._use(instruction, instructions[at + 1 :])
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._inner(constant)
        # `super()` takes the first argument without naming it.
        if code.co_argcount and (
            "super" in code.co_names or "__class__" in code.co_freevars
        ):
            self.escaped.add(code.co_varnames[0])

    def _use(
        self, instruction: dis.Instruction, following: list[dis.Instruction]
    ) -> None:
        operation, names = instruction.opname, instruction.argval
        if operation in _PAIRS and isinstance(names, tuple):
            first, last = names
            self._load(first, "LOAD_FAST", ())
            self._load(last, "LOAD_FAST", following)
        elif operation == "STORE_FAST_LOAD_FAST" and isinstance(names, tuple):
            self.escaped.add(names[0])
            self._load(names[1], "LOAD_FAST", following)
        elif operation in _LOADS and isinstance(names, str):
            self._load(names, operation, following)
        else:
            self.escaped.update((names,) if isinstance(names, str) else names)

    def _load(
        self, name: str, operation: str, following: "list[dis.Instruction] | tuple[()]"
    ) -> None:
        if name in self.cells and operation not in _FREE:
            return  # the cell itself, for an inner function
        chain = []
        for instruction in following:
            if instruction.opname not in _ATTRIBUTE:
                break
            chain.append(instruction.argval)
        if chain:
            self.chains.setdefault(name, {})[tuple(chain)] = None
        else:
            self.escaped.add(name)

    def _inner(self, code: types.CodeType) -> None:
        inner = _Finder(code)
        for name in code.co_freevars:
            self.chains.setdefault(name, {}).update(inner.chains.get(name, {}))
            if name in inner.escaped:
                self.escaped.add(name)

    def reads(self, name: str) -> Reads:
        return None if name in self.escaped else tuple(self.chains.get(name, ()))


def reads_of(code: types.CodeType) -> dict[str, Reads]:
    """Return what a code object reads off what it captured, and off its arguments.

    These may have captured things as defaults. The first one, `self` in a method,
    stands under the name `""` as well.
    """
    finder = _Finder(code)
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    found = {name: finder.reads(name) for name in (*code.co_freevars, *arguments)}
    found[""] = finder.reads(code.co_varnames[0]) if code.co_argcount else None
    return found
