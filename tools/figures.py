"""Print the figures that keep the house small: lines, modules, cycles, long functions, words.

Run it in a checkout: ``python tools/figures.py``; ``--list`` names what is too long.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "pgqpy": ROOT / "pgqpy",
    "pgqpy_ticker": ROOT / "ticker" / "pgqpy_ticker",
    "pgqpy_consumers": ROOT / "consumers" / "pgqpy_consumers",
    "examples": ROOT / "examples",
}
GENERATED = "# WARNING: generated from"
LONGEST_FUNCTION = 60
MOST_FIELDS = 15
REASON = "-- In one function: "
SQL_FUNCTION = re.compile(
    r"^create or replace function (\S+?)\(.*?^as \$(\w*)\$\n(.*?)\$\2\$;", re.MULTILINE | re.DOTALL
)
WORDS = re.compile(r"\b(who|whoever|nobody|somebody|so many)\b", re.IGNORECASE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="name what is too long")
    names = parser.parse_args().list
    files = [
        ROOT / name
        for name in subprocess.run(
            ["git", "ls-files"], capture_output=True, text=True, check=True, cwd=ROOT
        ).stdout.splitlines()
    ]
    texts = {path: path.read_text(errors="replace") for path in files if path.exists()}
    modules = {path: text for path, text in texts.items() if _is_in_the_wheel(path)}
    too_long = [*long_python(), *long_sql()]
    figures = {
        "committed lines": _lines(texts.values()),
        "Python by hand in the wheel": _lines(
            text for text in modules.values() if not text.startswith(GENERATED)
        ),
        "SQL": _lines(
            text
            for path, text in texts.items()
            if path.suffix == ".sql" and path.is_relative_to(ROOT / "sql")
        ),
        "modules in the root of pgqpy": len(list((ROOT / "pgqpy").glob("*.py"))),
        "import cycles": len(cycles()),
        f"functions over {LONGEST_FUNCTION} lines, classes over {MOST_FIELDS} fields": len(
            too_long
        ),
        "who, whoever, nobody, somebody, so many": sum(
            len(WORDS.findall(text)) for text in texts.values()
        ),
    }
    for name, value in figures.items():
        print(f"{value:>9,}  {name}")
    if names:
        print(*too_long, *map(" <-> ".join, cycles()), sep="\n")


@cache
def imports() -> dict[str, frozenset[str]]:
    """Return the modules that each module imports, also inside functions and for types."""
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


def cycles() -> set[frozenset[str]]:
    """Return the groups of modules that import each other, directly or not."""
    reach = {module: _reachable(module) for module in imports()}
    return {
        frozenset(name for name in reach[module] if module in reach[name])
        for module in reach
        if module in reach[module]
    }


def _reachable(start: str) -> set[str]:
    found: set[str] = set()
    left = [start]
    while left:
        for name in imports()[left.pop()] - found:
            found.add(name)
            left.append(name)
    return found


def _is_in_the_wheel(path: Path) -> bool:
    return path.suffix == ".py" and any(
        path.is_relative_to(root) for package, root in PACKAGES.items() if package != "examples"
    )


def long_python() -> Iterator[str]:
    """Find long functions and classes without a comment above that begins with "Long:"."""
    for path in sorted(path for root in PACKAGES.values() for path in root.rglob("*.py")):
        text = path.read_text()
        if text.startswith(GENERATED):
            continue
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size, most, unit = _code_lines(node, lines), LONGEST_FUNCTION, "lines"
            elif isinstance(node, ast.ClassDef):
                size, most, unit = len(_fields(node)), MOST_FIELDS, "fields"
            else:
                continue
            if size > most and not _says_why(lines, node):
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {size} {unit}"


def _code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> int:
    body = node.body[1:] if ast.get_docstring(node) else node.body
    if not body:
        return 0
    code = lines[body[0].lineno - 1 : node.end_lineno]
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in code)


def _fields(node: ast.ClassDef) -> set[str]:
    """Return the names that instances keep: declared ones, and those that __init__ sets."""
    declared = {
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign)
        and isinstance(each.target, ast.Name)
        and "ClassVar" not in ast.unparse(each.annotation)
    }
    init = [each for each in node.body if getattr(each, "name", "") == "__init__"]
    return declared | {
        each.attr
        for function in init
        for each in ast.walk(function)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and ast.unparse(each.value) == "self"
    }


def _says_why(lines: list[str], node: ast.AST) -> bool:
    """Whether the comment above or below the first line begins so."""
    near = lines[max(node.lineno - 6, 0) : node.body[0].lineno + 6]  # type: ignore[attr-defined]
    return any(line.strip().startswith("# Long: ") for line in near)


def sql_functions() -> Iterator[tuple[str, str]]:
    """Return the names of all SQL functions, and their texts."""
    for path in sorted((ROOT / "sql").rglob("*.sql")):
        for name, _, body in SQL_FUNCTION.findall(path.read_text()):
            yield name, body


def sql_code(body: str) -> list[str]:
    """Return the lines that are neither empty nor comments."""
    return [line for line in body.splitlines() if line.strip() and not re.match(r"\s*--", line)]


def long_sql() -> Iterator[str]:
    """Find long functions without a comment that begins with "In one function:"."""
    for name, body in sql_functions():
        if len(sql_code(body)) > LONGEST_FUNCTION and REASON not in body:
            yield f"{name}: {len(sql_code(body))} lines"


def _lines(texts: Iterable[str]) -> int:
    return sum(text.count("\n") for text in texts)


if __name__ == "__main__":
    main()
