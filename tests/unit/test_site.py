"""The documentation has a page for everything that users call, and names only what exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import pgqpy
import pgqpy.tasks
import pgqpy_consumers.spark

ROOT = Path(__file__).parents[2]
FOLDERS = [
    *("pgqpy", "sql", "ticker", "consumers", "tests", "tools", "examples", "benchmarks"),
    *("migrations", "docs"),
]
PAGES = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")]
SQL = "".join(file.read_text() for file in ROOT.glob("sql/**/*.sql"))
REFERENCE = "".join(file.read_text() for file in (ROOT / "docs" / "reference").glob("*.md"))
DOCUMENTED = set(re.findall(r"^::: [\w.]+?(\w+)$", REFERENCE, re.MULTILINE))


@pytest.mark.slow
def test_the_site_builds_without_a_broken_link_and_loads_nothing_from_elsewhere(
    tmp_path: Path,
) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", tmp_path],
        check=False,
        cwd=ROOT,
        env={"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    sql = tmp_path / "reference" / "sql"
    assert 'id="pgq.insert_event"' in (sql / "producing.html").read_text()
    assert 'href="#pgq.next_batch_custom"' in (sql / "consumers-and-batches.html").read_text()
    assert "../examples" not in (tmp_path / "spark.html").read_text()
    loaded = re.findall(
        r"<(?:script|img)[^>]* src=\"https?:[^>]*>|<link[^>]* href=\"https?:[^>]*>",
        "".join(page.read_text() for page in tmp_path.rglob("*.html")),
    )
    assert loaded == []


def test_every_public_name_is_in_the_python_reference() -> None:
    in_values = set(vars(pgqpy.models))
    public = {*pgqpy.__all__, *pgqpy.tasks.__all__, *pgqpy_consumers.spark.__all__}
    missing = {name for name in public if not name.startswith(("Async", "async_"))}
    missing -= DOCUMENTED | in_values | set(vars(pgqpy.errors))
    # Types of other packages, and names for annotations.
    assert missing == {"Connection", "IsolationLevel", "RetryPolicy"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_exists_and_its_lines_are_short(page: Path) -> None:
    text = page.read_text()
    files = re.findall(rf"[`(]((?:\.\./)?(?:{'|'.join(FOLDERS)})/[\w./*-]*)", text)
    places = [ROOT, page.parent]
    found = {file for file in files if any(list(at.glob(file.strip("./"))) for at in places)}
    assert set(files) - found == set()
    blocks = re.findall(r"^```sql\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    inline = re.findall(r"`pgq[^`\n]*\(", text) if page.name != "testing.md" else []
    called = re.findall(r"\bpgq(?:_\w+)?\.\w+(?=\()", "".join([*blocks, *inline]))
    # Some are made by execute, with their names as literals.
    assert {name for name in called if not re.search(f"(function |'){name}\\b", SQL)} == set()
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    long = [line for line in prose.splitlines() if len(line) > 120 and not line.startswith("|")]
    assert long == []


@pytest.mark.parametrize("page", ["architecture", "decisions"])
def test_pages_for_contributors_name_what_the_code_has(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    code = {file.name for folder in FOLDERS for file in ROOT.glob(f"{folder}/**/*.py")}
    assert set(re.findall(r"`(\w+\.py)`", text)) - code == set()
    names = set(re.findall(r"`(pgq(?:_task|_ext|_coop)?\.\w+)", text))
    assert {name for name in names if not re.search(rf"\b{name}\b", SQL)} == set()
