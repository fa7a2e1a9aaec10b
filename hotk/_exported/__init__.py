"""Programs in bytes: written here, run in processes that have neither hotk nor `f`."""

from ._export import export as export
from ._load import ExportedProgram as ExportedProgram, load as load
