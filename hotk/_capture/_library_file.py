"""Which source files are the user's own; with `_code` and `_reads` without JAX."""

import os
import site
import sysconfig


def _library_roots() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    roots = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    roots.update(site.getsitepackages())
    roots.add(site.getusersitepackages())
    roots.add(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return tuple(sorted(os.path.join(os.path.realpath(r), "") for r in roots if r))


_ROOTS = _library_roots()
_FOLDERS = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def is_library_file(path: str | None) -> bool:
    """Whether a source file belongs to Python, to an installed package or to hotk."""
    if not path:
        return False
    if path.startswith("<frozen "):
        return True
    if any(folder in path for folder in _FOLDERS):
        return True
    return path.startswith(_ROOTS) or os.path.realpath(path).startswith(_ROOTS)
