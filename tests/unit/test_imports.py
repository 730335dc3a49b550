"""Rules about imports, those inside functions and for types included: who may know of whom."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "pgqpy": ROOT / "pgqpy",
    "pgqpy_ticker": ROOT / "ticker" / "pgqpy_ticker",
    "pgqpy_consumers": ROOT / "consumers" / "pgqpy_consumers",
    "examples": ROOT / "examples",
}
MOST_IN_THE_ROOT = 20


@cache
def imports() -> dict[str, frozenset[str]]:
    """Return the modules that each module imports."""
    files = {
        ".".join([package, *path.relative_to(root).with_suffix("").parts]).removesuffix(
            ".__init__"
        ): path
        for package, root in PACKAGES.items()
        for path in root.rglob("*.py")
    }
    graph = {}
    for module, path in files.items():
        found = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                # A name is a module, or comes from one.
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= inner & files.keys()
                if not inner <= files.keys():
                    found.add(node.module)
        graph[module] = frozenset(found & files.keys() - {module})
    return graph


def reachable(start: str) -> set[str]:
    found: set[str] = set()
    left = [start]
    while left:
        for name in imports()[left.pop()] - found:
            found.add(name)
            left.append(name)
    return found


def cycles() -> set[frozenset[str]]:
    """Return the groups of modules that import each other, directly or not."""
    reach = {module: reachable(module) for module in imports()}
    return {
        frozenset(name for name in reach[module] if module in reach[name])
        for module in reach
        if module in reach[module]
    }


def within(*packages: str) -> Callable[[str], bool]:
    prefixes = tuple(f"{package}." for package in packages)
    return lambda module: f"{module}.".startswith(prefixes)


def violations(users: Callable[[str], bool], used: Callable[[str], bool]) -> list[str]:
    return sorted(
        f"{module} imports {name}"
        for module, names in imports().items()
        if users(module)
        for name in names
        if used(name)
    )


def test_no_modules_import_each_other() -> None:
    assert cycles() == set()


def test_the_library_does_not_know_the_command_line() -> None:
    of_the_command_line = within("pgqpy.cli", "pgqpy.__main__")
    assert not violations(lambda module: not of_the_command_line(module), within("pgqpy.cli"))


def test_the_wire_and_the_runtime_know_nothing_of_consumers_and_tasks() -> None:
    above = within("pgqpy.consumer", "pgqpy.tasks")
    assert not violations(within("pgqpy._runtime"), above)
    assert not violations(within("pgqpy._wire"), above)
    assert not violations(within("pgqpy._wire"), within("pgqpy._runtime"))


def test_ready_made_consumers_and_examples_use_only_public_modules() -> None:
    def internal(module: str) -> bool:
        return module.startswith("pgqpy.") and "._" in module

    assert not violations(within("pgqpy_consumers", "examples"), internal)


def test_the_root_of_the_package_has_few_modules() -> None:
    modules = [path.name for path in (ROOT / "pgqpy").glob("*.py")]
    assert len(modules) <= MOST_IN_THE_ROOT, sorted(modules)


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
