"""A hook of the documentation build: the notebooks become pages, as they were run."""

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter
from nbconvert.preprocessors import CoalesceStreamsPreprocessor


NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def on_files(files: Files, *, config: Any) -> Files:
    """Add a page for each notebook, and its pictures beside it."""
    # What a cell prints line by line is one output.
    exporter = MarkdownExporter(preprocessors=[CoalesceStreamsPreprocessor])
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        resources = {"output_files_dir": path.stem}
        page, made = exporter.from_filename(str(path), resources=resources)
        page = page.replace(".ipynb)", ".md)")  # a link to another notebook
        page = page.replace("](../docs/", "](../")  # a link to a page
        contents = {f"{path.stem}.md": page, **made["outputs"]}
        for name, content in contents.items():
            uri = f"notebooks/{name}"
            files.append(File.generated(config, uri, content=content))
    return files
