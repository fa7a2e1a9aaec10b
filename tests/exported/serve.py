"""Runs exported programs in a process that cannot import hotk, and compares.

Called with a folder, of which each `name.bin` is a program and `name.npz` its inputs
and results: for call 2 `2in0`, `2in1`, ... and `2out0`, ... Prints the largest errors.
"""

import json
import sys
from pathlib import Path


class Blocked:
    """Refuses to find what a server does not have."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("hotk", "equinox", "optax", "tests"):
            raise ImportError(f"{name} is blocked")


sys.meta_path.insert(0, Blocked())

import jax  # noqa: E402
import numpy as np  # noqa: E402


jax.config.update("jax_enable_x64", True)


def numbered(data, kind, call):
    count = sum(name.startswith(f"{call}{kind}") for name in data.files)
    return [data[f"{call}{kind}{i}"] for i in range(count)]


errors = {}
for path in sorted(Path(sys.argv[1]).glob("*.bin")):
    program = jax.export.deserialize(bytearray(path.read_bytes()))
    data = np.load(path.with_suffix(".npz"))
    worst = 0.0
    for call in range(int(data["calls"])):
        args, named = jax.tree.unflatten(program.in_tree, numbered(data, "in", call))
        got = jax.tree.leaves(program.call(*args, **named))
        expected = numbered(data, "out", call)
        assert len(got) == len(expected)
        for a, b in zip(got, expected, strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype), path
            worst = max(worst, float(np.max(np.abs(np.asarray(a, float) - b))))
    errors[path.stem] = worst
assert not {"hotk", "equinox", "optax"} & {*sys.modules}
print(json.dumps(errors))
