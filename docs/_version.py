"""A hook of the documentation build: every page says which version it describes."""

import tomllib
from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    """Write the version beside the name in the header and in the titles."""
    project = Path(__file__).parents[1] / "pyproject.toml"
    version = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"]
    config.site_name = f"{config.site_name} {version}"
    return config
