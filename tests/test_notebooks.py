"""Every notebook runs from its first cell to its last."""

import os
from pathlib import Path

import pytest

from tests.compilation import FAST, FLAGS


NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_runs(path):
    nbclient = pytest.importorskip("nbclient", reason="pip install 'hotk[notebooks]'")
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(path, as_version=4)
    # With what users compile with: in programs that run for seconds it would show.
    env = {name: v for name, v in os.environ.items() if name not in (FLAGS, FAST)}
    nbclient.NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
    ).execute(env=env)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_is_kept_executed_and_small(path):
    nbformat = pytest.importorskip("nbformat")
    cells = nbformat.read(path, as_version=4).cells
    assert cells[0].cell_type == "markdown", "the first cell says what is learned"
    assert all(c.execution_count for c in cells if c.cell_type == "code" and c.source)
    assert path.stat().st_size < 400 * 1024
