"""What may import what, and what a command imports when it starts."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def imported(file: Path) -> set[str]:
    """Return all modules that a file imports: also in functions, also for types only."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{name.name}" for name in node.names}
    return found


def test_only_the_command_line_imports_the_command_line() -> None:
    packages = [ROOT / "pgqpy", ROOT / "consumers", ROOT / "ticker"]
    cli = ROOT / "pgqpy" / "cli"
    files = [file for package in packages for file in package.rglob("*.py")]
    assert any(cli in file.parents for file in files)
    assert [
        str(file.relative_to(ROOT))
        for file in files
        if cli not in file.parents
        and file != ROOT / "pgqpy" / "__main__.py"
        and any(f"{name}.".startswith("pgqpy.cli.") for name in imported(file))
    ] == []


def test_consumers_import_only_what_is_public_of_pgqpy() -> None:
    files = [*(ROOT / "consumers").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]
    assert len(files) > 40
    assert [
        f"{file.relative_to(ROOT)}: {name}"
        for file in files
        for name in imported(file)
        if name.startswith("pgqpy.") and "._" in name
    ] == []


HEAVY = {"alembic", "matplotlib", "pandas", "prometheus_client", "pyarrow", "pyspark", "sqlalchemy"}


@pytest.mark.parametrize("command", ["--help", "queue list --help", "task list --help"])
def test_a_command_starts_without_what_it_does_not_use(command: str) -> None:
    code = "import sys; from pgqpy.cli import main; sys.argv[0] = 'pgqpy'\n"
    code += "try: main()\nexcept SystemExit: print('modules:', *sys.modules)"
    said = subprocess.run(
        [sys.executable, "-c", code, *command.split()], capture_output=True, text=True, check=True
    )
    modules = said.stdout.rpartition("modules:")[2].split()
    assert "pgqpy.cli" in modules
    assert HEAVY.intersection(modules) == set()
