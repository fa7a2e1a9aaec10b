"""What stands in a copy for a captured array once its trace has ended.

A program keeps the derivative rules that were made during its trace, and runs them
later. A rule may hold the copy of an object that held tracers then: what it reads of
it besides is what it was, and a tracer that has ended is refused.
"""

import contextlib
import functools
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

import jax
import numpy as np

from hotk._core import (
    CUSTOM,
    ClosedJaxpr,
    Jaxpr,
    Tracer,
    equations,
    peek,
    rule_functions,
)

from ._objects import slots_of
from ._walk import Opaque


HELD = "a custom derivative rule captures an array"
_MOST_REACHED = 20_000
_ENDS = (
    *(type(None), bool, int, float, complex, str, bytes, type, ModuleType),
    *(jax.Array, np.ndarray, np.generic, ClosedJaxpr, Jaxpr),
)


def _refuse(*_: Any, **__: Any) -> Any:
    raise Opaque(HELD)


class Gone:
    """Stands for a tracer whose trace has ended: whatever is done with it is refused.

    No slots and no `__dict__`, so that the garbage collector does not list it: a search
    through all objects by `isinstance` must not meet it.
    """

    __slots__ = ()
    # `isinstance` asks for it, and code could take another branch.
    __class__ = property(_refuse)  # pyright: ignore[reportIncompatibleMethodOverride]
    __getattr__ = __setattr__ = __delattr__ = __call__ = _refuse
    __bool__ = __len__ = __iter__ = __next__ = __contains__ = __hash__ = _refuse
    __getitem__ = __setitem__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = _refuse
    __ge__ = __neg__ = __pos__ = __abs__ = __invert__ = __add__ = __radd__ = _refuse
    __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _refuse
    __matmul__ = __rmatmul__ = __and__ = __rand__ = __or__ = __ror__ = _refuse
    __int__ = __float__ = __complex__ = __index__ = __array__ = _refuse


GONE: Final = Gone()


def holds_gone(closed: Any) -> bool:
    """Whether a derivative rule inside of a program may reach a tracer of its trace.

    The program could be differentiated far from here, where nothing says what to do.
    """
    for equation in equations(closed.jaxpr):
        if equation.primitive.name not in CUSTOM:
            continue
        try:
            parts, _ = rule_functions(equation)
        except Exception:  # JAX keeps its rules elsewhere
            continue
        if _reaches(parts):
            return True
    return False


def _reaches(parts: list[Any]) -> bool:
    """Whether one can get there through functions, containers and attributes."""
    waiting, known = list(parts), set()
    while waiting:
        here = waiting.pop()
        if here is GONE or isinstance(here, Tracer):
            return True
        if id(here) in known or isinstance(here, _ENDS):
            continue
        known.add(id(here))
        if len(known) > _MOST_REACHED:
            return True
        if isinstance(here, FunctionType):
            for cell in here.__closure__ or ():
                with contextlib.suppress(ValueError):  # an empty cell
                    waiting.append(cell.cell_contents)
            waiting += [here.__defaults__, here.__kwdefaults__, here.__dict__]
        elif isinstance(here, MethodType):
            waiting += [here.__func__, here.__self__]
        elif isinstance(here, functools.partial):
            waiting += [here.func, here.args, here.keywords]
        elif isinstance(here, dict):
            waiting += here.values()
        elif isinstance(here, (tuple, list, set, frozenset)):
            waiting += here
        else:
            waiting.append(peek(here, "__dict__"))
            waiting += [slot.__get__(here) for slot in slots_of(here).values()]
    return False
