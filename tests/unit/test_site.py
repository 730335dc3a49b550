"""The documentation site has a page for everything that users call."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pgqpy
import pgqpy.tasks
import pgqpy_consumers.spark

ROOT = Path(__file__).parents[2]
REFERENCE = "".join(file.read_text() for file in (ROOT / "docs" / "reference").glob("*.md"))
DOCUMENTED = set(re.findall(r"^::: [\w.]+?(\w+)$", REFERENCE, re.MULTILINE))


def test_the_site_builds_without_a_broken_link(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", tmp_path],
        check=False,
        cwd=ROOT,
        env={"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    assert "insert_event" in (tmp_path / "reference" / "sql" / "producing.html").read_text()
    assert "../examples" not in (tmp_path / "spark.html").read_text()


def test_every_public_name_is_in_the_python_reference() -> None:
    in_values = set(vars(pgqpy.models))
    public = {*pgqpy.__all__, *pgqpy.tasks.__all__, *pgqpy_consumers.spark.__all__}
    missing = {name for name in public if not name.startswith(("Async", "async_"))}
    missing -= DOCUMENTED | in_values | set(vars(pgqpy.errors))
    # Types of other packages, and names for annotations.
    assert missing == {"Connection", "IsolationLevel", "RetryPolicy"}
