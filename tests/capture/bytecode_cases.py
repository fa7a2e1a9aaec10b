"""Functions whose reads and writes are known by hand; it runs without JAX."""

import json
import math


W = [1]
K = 2.0


class Config:
    scale = 3.0


config = Config()


def two_globals(x):
    return W[0] * x + K


def attributes_of_globals(x):
    return math.sin(x) * config.scale


def writes_a_global(x):
    global K
    K = K + 1
    return K * x


def _closures():
    n = 0
    array = [1.0]
    o = Config()

    def writes_a_nonlocal(x):
        nonlocal n
        n += 1
        return x * n

    def reads_chains(x):
        return x * array[0] + o.scale + o.a.b

    def defaults(x, o=o, *, k=array):
        return o.scale * x + k[0]

    def comprehension(x):
        return sum(array[i] * o.scale for i in range(3)) + [o.w * v for v in array][0]  # noqa: RUF015

    def inner_function(x):
        def g(y):
            return y * o.q + array[0]

        return g(x)

    def writes_an_attribute(x):
        o.count = 1
        return x

    def escapes(x):
        return f(o) * x

    def formatted(x):
        return x if f"{o.name}" else array

    def tried(x):
        try:
            return o.scale * x
        except ValueError:
            return o.err

    def matched(x):
        match o.kind:
            case "a":
                return x
            case _:
                return o.other * x

    def imports(x):
        from math import cos

        return cos(x)

    def by_name(x):
        return getattr(o, "scale") * x  # noqa: B009

    def hidden(x):
        return o.__dict__["a"] * x

    def keywords(x):
        return h(x, w=array, scale=o.scale)

    def pairs(x, y):
        return o.a * o.b + x * y

    def starred(x):
        return h(*array, **o.kw)

    def deletes(x):
        del o.zz
        return x

    def class_body(x):
        class T:
            v = o.scale

        return T.v * x

    return [f for f in locals().values() if callable(f) and f is not o]


class Method:
    def __call__(self, x):
        return self.a * x + self.b.c

    def writes_self(self, x):
        self.n += 1
        return self.run(x)

    def writes_a_captured_self(self, x):
        self.act = lambda y: self.k * y
        return self.act(x)

    def calls_super(self, x):
        return super().run(x) and self.k


FUNCTIONS = [two_globals, attributes_of_globals, writes_a_global, *_closures()]
FUNCTIONS += [Method.__call__, Method.writes_self, Method.writes_a_captured_self]
FUNCTIONS += [Method.calls_super]


# The arguments, and the cell of the class that `super` reads from Python 3.12 on.
_OTHERS = {"", "x", "y", "__class__"}


def table(facts_of):
    """Return what was found of each function, as JSON."""
    found = {}
    for f in FUNCTIONS:
        facts = facts_of(f.__code__)
        chains = {
            name: [".".join(chain) for chain in chains]
            for name, chains in {**facts.chains, **facts.reads}.items()
            if chains is not None and name
        }
        escaping = {name for name, chains in facts.reads.items() if chains is None}
        found[f.__name__] = {
            "reads": {name: sorted(each) for name, each in chains.items() if each},
            "escapes": sorted((escaping | facts.escaping) - _OTHERS),
            "writes": facts.writes,
            "imports": list(facts.imports),
            "by_name": facts.reads_by_name,
        }
    return json.dumps(found)
