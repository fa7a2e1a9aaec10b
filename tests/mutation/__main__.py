"""Inject flaws into a copy of hotk and require that its tests fail.

python -m tests.mutation --quick       eleven flaws, under three minutes
python -m tests.mutation --all         every flaw
python -m tests.mutation NAME ...      the flaws of these names

Prints one line a flaw, the score and the survivors. Exits with 1 if the score is below
95 %, and with 2 if a flaw no longer fits the source or if the tests fail without one.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from tests.mutation.flaws import FLAWS, QUICK, Flaw


ROOT = pathlib.Path(__file__).parents[2]
PATIENCE = 300.0  # seconds; a test run that hangs has noticed the flaw
TARGET = 0.95


class DoesNotFitError(Exception):
    """The text that a flaw replaces is not there exactly once."""


def inject(flaw: Flaw, root: pathlib.Path) -> str:
    """Write a flaw into the copy under `root`; return the text to put back."""
    file = root / flaw.file
    source = file.read_text()
    if source.count(flaw.old) != 1 or flaw.old == flaw.new:
        raise DoesNotFitError(
            f"{flaw.name}: {source.count(flaw.old)} places in {flaw.file} read"
            f"\n{flaw.old}"
        )
    mutated = source.replace(flaw.old, flaw.new)
    compile(mutated, str(file), "exec")
    file.write_text(mutated)
    return source


def failing_test(
    tests: tuple[str, ...], root: pathlib.Path, bytecode: bool = False
) -> str | None:
    """Run tests against the copy; return the first that fails, or None.

    With `bytecode` what is imported is compiled for the runs that follow. These read it
    and write none: Python knows a changed file by its size and by seconds, and a flaw
    and what it replaces may follow each other within one.
    """
    command = [
        *(sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=no"),
        *("-p", "no:cacheprovider", "-rfE"),
        # In one process, which `-x` stops at once; what only `.ci/run` runs as well.
        *("-n", "0", "-m", "not slow"),
        *tests,
    ]
    environment = os.environ | {
        "PYTHONPATH": str(root),
        "PYTHONDONTWRITEBYTECODE": "" if bytecode else "1",
        "JAX_PLATFORMS": "cpu",
    }
    try:
        done = subprocess.run(
            command,
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "(it hangs)"
    if done.returncode == 0:
        return None
    lines = [
        line for line in done.stdout.splitlines() if line[:6] in ("FAILED", "ERROR ")
    ]
    if done.returncode != 1 and not lines:  # not a failed test: no such file, a crash
        return f"(pytest ends with {done.returncode}) {done.stdout[-300:]}"
    return lines[0] if lines else "(no test is named)"


def noticed(flaw: Flaw, root: pathlib.Path) -> bool:
    """Run the tests of one flaw, and say what came of it."""
    start = time.monotonic()
    original = inject(flaw, root)
    try:
        failed = failing_test(flaw.tests, root)
    finally:
        (root / flaw.file).write_text(original)
    took = time.monotonic() - start
    word = "noticed " if failed else "SURVIVED"
    print(f"{word} {took:4.0f} s  {flaw.name}  {failed or ''}"[:160], flush=True)
    return failed is not None


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args()
    names = options.names or (QUICK if options.quick else list(FLAWS) * options.all)
    if not names:
        parser.error("give --quick, --all or names: " + ", ".join(FLAWS))
    flaws = [FLAWS[name] for name in names]

    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for part in ("hotk", "tests"):
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / part, root / part, ignore=ignore)
        shutil.copy(ROOT / "pyproject.toml", root)
        for flaw in FLAWS.values():  # all of them, so that none rots unseen
            try:
                (root / flaw.file).write_text(inject(flaw, root))
            except (DoesNotFitError, SyntaxError, FileNotFoundError) as error:
                print(f"{flaw.name} does not fit the source any more: {error}")
                return 2
        tests = sorted({test for flaw in flaws for test in flaw.tests})
        if failed := failing_test(tuple(tests), root, bytecode=True):
            print(f"the tests fail without any flaw: {failed}")
            return 2
        start = time.monotonic()
        survivors = [flaw.name for flaw in flaws if not noticed(flaw, root)]
    score = 1 - len(survivors) / len(flaws)
    took = time.monotonic() - start
    print(f"score {score:.0%}: {len(flaws)} flaws in {took:.0f} s")
    print("survivors: " + (", ".join(survivors) or "none"))
    return int(score < TARGET)


if __name__ == "__main__":
    sys.exit(main())
