"""docs/benchmarks.md and its plots, from the results: ``python -m benchmarks.page``."""

from __future__ import annotations

from pathlib import Path


def write_page(results: Path, docs: Path) -> None:
    pass
