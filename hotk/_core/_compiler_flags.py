"""Options of the compiler that hotk sets, for the versions of jaxlib that need them."""

import os
import re
from typing import Any, TypeAlias

from jaxlib.version import __version__


Options: TypeAlias = tuple[tuple[str, Any], ...]

_VERSION = tuple(map(int, re.findall(r"\d+", __version__)[:3]))

# Of jaxlib 0.10 alone: what makes the code of a fusion there takes twice as long as
# what was there before it. Later versions have neither its cost nor the option.
_IS_OLD = _VERSION[:2] == (0, 10)
QUICK: Options = (("xla_cpu_use_fusion_emitters", False),) if _IS_OLD else ()
# For operations on few numbers, half the time again: large arrays take twice as long.
# Code is made by 32 modules of LLVM otherwise, and each is set up and linked by itself.
LEAST: Options = (
    *QUICK,
    ("xla_backend_optimization_level", 0),
    ("xla_cpu_parallel_codegen_split_count", 1),
)

# What these versions fuse with a sum of a product of matrices reads beyond an operand
# that is one number, and is wrong beyond 16384 rows (`hotk.testing.check_backend`). So
# products and convolutions alone are given to YNNPACK, which the flag calls `-reduce`.
FUSIONS_FLAG = "xla_cpu_experimental_ynn_fusion_type"
_ALONE = ("INDIVIDUAL_DOT", "INDIVIDUAL_CONVOLUTION")
FAULTY = (0, 10, 2) <= _VERSION < (0, 13)
RIGHT: Options = ()
if FAULTY and FUSIONS_FLAG not in os.getenv("XLA_FLAGS", ""):  # or it is chosen
    RIGHT = ((FUSIONS_FLAG, ",".join("LIBRARY_FUSION_TYPE_" + t for t in _ALONE)),)
