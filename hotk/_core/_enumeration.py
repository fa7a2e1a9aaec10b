"""`Enumeration`: that of Equinox, whose members print as their text."""

from typing import TYPE_CHECKING

import equinox as eqx

from ._compat import EnumerationItem


if TYPE_CHECKING:
    Enumeration = eqx.Enumeration
else:

    class _Member(EnumerationItem):
        def __str__(self):
            return self._enumeration[self]

        def __repr__(self):
            return f"{self._enumeration.__name__}<{self}>"

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
