"""Classes that the command line names: ``module:Class`` or ``path/to/file.py:Class``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from pgqpy.cli._base.errors import CliError, first_line


def load_class(
    target: str, fits: Callable[[type], bool], *, what: str, advice: str
) -> tuple[ModuleType, type]:
    """Return the module and the class in it that a target names.

    ``fits`` tells whether a class is ``what`` is wanted; ``advice`` is the hint if there is none.
    Raises CliError if there is none.
    """
    where, _, name = target.rpartition(":")
    if not where:
        raise CliError(f"{target} names no class", "write it as delays.py:DelaysByMonth")
    module = load_module(where)
    found = getattr(module, name, None)
    if not (isinstance(found, type) and fits(found)):
        there = [
            each
            for each, value in vars(module).items()
            # Imported classes are there to be subclassed.
            if isinstance(value, type) and fits(value) and value.__module__ == module.__name__
        ]
        raise CliError(
            f"{where} has no {what} named {name}", f"it has {', '.join(there)}" if there else advice
        )
    return module, found


def load_module(where: str) -> ModuleType:
    """Import a module by name or file. Raises CliError, or ImportError for one of its imports."""
    try:
        return _from_file(Path(where)) if where.endswith(".py") else _from_name(where)
    except (ImportError, CliError):
        raise
    except Exception as error:
        raise CliError(
            f"{where} cannot be loaded: {type(error).__name__}: {first_line(str(error))}",
            "that is an error of its own; `pgqpy --debug ...` shows where",
        ) from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise CliError(f"there is no file {path}")
    # Like a program that is run: modules beside it can be imported.
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _from_name(name: str) -> ModuleType:
    sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise CliError(f"there is no module {name}", "a file is named with its .py") from error
