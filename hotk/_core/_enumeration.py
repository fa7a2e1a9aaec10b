"""`Enumeration`: that of Equinox, whose members print as their text."""

from typing import TYPE_CHECKING

import equinox as eqx
import numpy as np

from ._compat import EnumerationItem, in_trace
from ._from_host import from_host, is_known


if TYPE_CHECKING:
    Enumeration = eqx.Enumeration
else:

    class _Member(EnumerationItem):
        def __str__(self):
            return self._enumeration[self]

        def __repr__(self):
            return f"{self._enumeration.__name__}<{self}>"

        def __eq__(self, other):
            # of arrays it is a program, which takes longer to compile than many a call
            items = self, other
            same = (
                isinstance(other, _Member) and self._enumeration is other._enumeration
            )
            if in_trace() or not (same and all(is_known(i._value) for i in items)):
                return super().__eq__(other)
            return from_host(np.equal(self._value, other._value))

    class _Enumeration(type(eqx.Enumeration)):
        def __new__(mcs, name, bases, namespace):
            cls = super().__new__(mcs, name, bases, namespace)
            for key, item in cls._name_to_item.items():
                cls._name_to_item[key] = _Member(item._value, cls)
            return cls

    class Enumeration(eqx.Enumeration, metaclass=_Enumeration):
        """An enumeration as that of Equinox, where `str(member)` is the text."""

    def _where(cls, pred, a, b):
        found = super(Enumeration, cls).where(pred, a, b)
        return _Member(found._value, cls)

    # In the body of the class Equinox would take it for a member, and refuse its name.
    Enumeration.where = classmethod(_where)
