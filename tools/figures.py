"""Print the figures that keep the house small: lines, modules, cycles, long functions, words.

Run it in a checkout: ``python tools/figures.py``; ``--list`` names what is too long.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "pgqpy": ROOT / "pgqpy",
    "pgqpy_ticker": ROOT / "ticker" / "pgqpy_ticker",
    "pgqpy_consumers": ROOT / "consumers" / "pgqpy_consumers",
}
GENERATED = "# WARNING: generated from"
LONGEST_FUNCTION = 60
MOST_FIELDS = 15
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
    modules = {path: text for path, text in texts.items() if _in_a_package(path)}
    long = [*_long(modules), *_long_sql(texts)]
    figures = {
        "committed lines": _lines(texts.values()),
        "Python by hand in the wheel": _lines(
            text for text in modules.values() if not text.startswith(GENERATED)
        ),
        "SQL": _lines(text for path, text in texts.items() if path.suffix == ".sql"),
        "modules in the root of pgqpy": len(list((ROOT / "pgqpy").glob("*.py"))),
        "import cycles": len(cycles()),
        f"functions over {LONGEST_FUNCTION} lines, classes over {MOST_FIELDS} fields": len(long),
        "who, whoever, nobody, somebody, so many": sum(
            len(WORDS.findall(text)) for text in texts.values()
        ),
    }
    for name, value in figures.items():
        print(f"{value:>9,}  {name}")
    if names:
        print(*long, *map(" <-> ".join, cycles()), sep="\n")


def cycles() -> list[list[str]]:
    """Find modules that import each other, imports inside functions and for types included."""
    graph = _imports()
    found = []
    while True:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            path: list[str] = error.args[1]
            found.append(path)
            # Without this edge the search goes on.
            graph[path[1]].discard(path[0])
        else:
            return found


def _imports() -> dict[str, set[str]]:
    names = {
        ".".join([package, *path.relative_to(root).with_suffix("").parts]).removesuffix(
            ".__init__"
        ): path
        for package, root in PACKAGES.items()
        for path in root.rglob("*.py")
    }
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        found: set[str] = set()
        graph[name] = found
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                # A module, or a name from one.
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                found.update(inner & names.keys())
                if inner - names.keys():
                    found.add(node.module)
        found &= names.keys()
        found.discard(name)
    return graph


def _in_a_package(path: Path) -> bool:
    return path.suffix == ".py" and any(path.is_relative_to(root) for root in PACKAGES.values())


def _long(modules: dict[Path, str]) -> Iterator[str]:
    """Find functions and classes without a comment above that begins with "Long:"."""
    for path, text in modules.items():
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
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if size > most and not _explained(lines, first - 1, "# Long:"):
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


def _long_sql(texts: dict[Path, str]) -> Iterator[str]:
    begin = re.compile(r"create (?:or replace )?(?:function|procedure) ([\w.]+)", re.IGNORECASE)
    for path, text in texts.items():
        if path.suffix != ".sql" or not path.is_relative_to(ROOT / "sql"):
            continue
        lines = text.splitlines()
        for number, line in enumerate(lines):
            if match := begin.match(line):
                size = 0
                for inner in lines[number + 1 :]:
                    if re.match(r"\$\w*\$;?|end\b.*\$\w*\$;?$", inner) and size:
                        break
                    size += bool(inner.strip()) and not inner.lstrip().startswith("--")
                if size > LONGEST_FUNCTION and not _explained(lines, number, "-- Long:"):
                    yield f"{path.relative_to(ROOT)}:{number + 1} {match[1]}: {size} lines"


def _explained(lines: list[str], number: int, begin: str) -> bool:
    """Whether the comment above line ``number`` has a line that begins so."""
    while number and lines[number - 1].lstrip().startswith(begin[:2].strip()):
        number -= 1
        if lines[number].lstrip().startswith(begin):
            return True
    return False


def _lines(texts: Iterable[str]) -> int:
    return sum(text.count("\n") for text in texts)


if __name__ == "__main__":
    main()
