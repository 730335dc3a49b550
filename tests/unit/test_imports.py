"""Rules about modules: which may import which, also inside functions; and what is long says why."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

from pgqpy_consumers.ready import READY, ready
from tools.figures import cycles, imports, long_python

ROOT = Path(__file__).parents[2]
MOST_IN_THE_ROOT = 20


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


def test_what_is_long_says_why() -> None:
    assert list(long_python()) == []


def test_the_library_does_not_know_the_command_line_and_the_console() -> None:
    above = within("pgqpy.cli", "pgqpy.__main__", "pgqpy.ui", "examples")
    assert not violations(lambda module: not above(module), within("pgqpy.cli", "pgqpy.ui"))


def test_the_wire_and_the_runtime_know_nothing_of_consumers_and_tasks() -> None:
    above = within("pgqpy.consumer", "pgqpy.tasks")
    assert not violations(within("pgqpy._runtime"), above)
    assert not violations(within("pgqpy._wire"), above)
    assert not violations(within("pgqpy._wire"), within("pgqpy._runtime"))


def test_ticker_ready_made_consumers_and_examples_use_only_public_modules() -> None:
    def internal(module: str) -> bool:
        return module.startswith("pgqpy.") and "._" in module

    assert not violations(within("pgqpy_ticker", "pgqpy_consumers", "examples"), internal)


def test_the_library_imports_the_ticker_in_one_place_if_it_is_asked_to_tick() -> None:
    library = within("pgqpy")
    of_the_command_line = within("pgqpy.cli")
    assert violations(
        lambda module: library(module) and not of_the_command_line(module), within("pgqpy_ticker")
    ) == [
        f"pgqpy._runtime.{twin} imports pgqpy_ticker.beside"
        for twin in ("stoppable", "stoppable_async")
    ]
    code = "import sys, pgqpy; sys.exit('pgqpy_ticker' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_root_of_the_package_has_few_modules() -> None:
    modules = [path.name for path in (ROOT / "pgqpy").glob("*.py")]
    assert len(modules) <= MOST_IN_THE_ROOT, sorted(modules)


def private_names(kind: type) -> set[str]:
    """Return the names of pgqpy's private attributes of a class."""
    ours = [each for each in kind.__mro__ if each.__module__.startswith("pgqpy.")]
    names = {name for each in ours for name in [*vars(each), *inspect.get_annotations(each)]}
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def test_consumers_use_no_private_attributes_of_pgqpy() -> None:
    for kind in map(ready, READY):
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
        used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        private = private_names(kind)
        assert len(private) > 2
        assert (used | set(vars(kind))) & private == set(), kind


HEAVY = {"alembic", "matplotlib", "pandas", "pyarrow", "pyspark", "rich", "sqlalchemy"}


def test_commands_start_without_what_they_do_not_use() -> None:
    code = """
import sys
from pgqpy.cli import main
for command in "--help", "queue list --help", "task list --help":
    try: main(command.split(), prog_name="pgqpy")
    except SystemExit: pass
print("modules:", *sys.modules)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = said.stdout.rpartition("modules:")[2].split()
    assert "pgqpy.cli" in modules
    assert HEAVY.intersection(modules) == set()
