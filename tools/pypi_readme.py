"""The README for PyPI: links to files of the repository need its address there.

A hook of hatchling (pyproject.toml).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

ROOT = Path(__file__).resolve().parent.parent


def readme(source: str) -> str:
    """Return the README; ``source`` is the repository's address."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"\]\((?!https?:|#)", f"]({source}/blob/main/", text)
    # PyPI shows titles of blocks as part of the language.
    return re.sub(r'^(```\w+) title="[^"]*"$', r"\1", text, flags=re.MULTILINE)


class Readme(MetadataHookInterface):
    """Sets the field ``readme``."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = readme(metadata["urls"]["Source"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
