"""Write the sync modules of pgqpy from the asyncio ones.

``pgqpy/NAME_async.py`` becomes ``pgqpy/NAME.py``: the keywords of asyncio go, and names are
exchanged by the table below, in code, docstrings and comments alike. The result is formatted by
ruff and committed; with ``--check`` nothing is written, and stale files are an error.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUFFIX = "_async.py"

HEADER = """\
# WARNING: generated from {source} by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""

#: Imports sort differently, a generator may delegate, two kinds of `with` are now one, and some
#: comprehensions lists.
FIX = ["check", "--select=I,UP028,SIM117,C416", "--fix", "--unsafe-fixes", "--quiet"]

#: Whole words, in this order.
WORDS = {
    "AsyncExitStack": "ExitStack",
    "enter_async_context": "enter_context",
    "AbstractAsyncContextManager": "AbstractContextManager",
    "asynccontextmanager": "contextmanager",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "StopAsyncIteration": "StopIteration",
}

PATTERNS: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    # Either kind of iterable, where only one is left.
    (re.compile(r"(Iterable\[\w+\]) \| AsyncIterable\[\w+\]"), r"\1"),
    (re.compile(r"\bAsyncIterable, (?=.*\bIterable\b)"), ""),
    (re.compile(r"\bAwaitable, "), ""),
    (re.compile(r"\bAwaitable\[(\w+)\]"), r"\1"),
    # Keywords.
    (re.compile(r"\b(?:async|await) (?=\S)"), ""),
    (re.compile(r"\b(" + "|".join(WORDS) + r")\b"), lambda match: WORDS[match[1]]),
    # AsyncX, async_x and x_async have twins that are called X and x.
    (re.compile(r"\b(_?)Async(?=[A-Z])"), r"\1"),
    (re.compile(r"\basync_(?=[a-z])"), ""),
    (re.compile(r"\b(\w+)_async\b"), r"\1"),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail if stale")
    check = parser.parse_args().check

    stale = []
    for source in sorted((ROOT / "pgqpy").rglob(f"*{SUFFIX}")):
        target = source.with_name(source.name.removesuffix(SUFFIX) + ".py")
        expected = convert(source, target)
        if target.exists() and target.read_text() == expected:
            continue
        stale.append(target.relative_to(ROOT))
        if not check:
            target.write_text(expected)
    for path in stale:
        print(f"{path}: {'stale, run tools/async_to_sync.py' if check else 'written'}")
    return 1 if check and stale else 0


def convert(source: Path, target: Path) -> str:
    """Return the text of a sync module."""
    text = source.read_text()
    for pattern, replacement in PATTERNS:
        text = pattern.sub(replacement, text)
    return _formatted(HEADER.format(source=source.relative_to(ROOT)) + text, target)


def _formatted(text: str, target: Path) -> str:
    # Lines become shorter, too.
    for command in (FIX, ["format"]):
        text = subprocess.run(
            [sys.executable, "-m", "ruff", *command, f"--stdin-filename={target}", "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        ).stdout
    return text


if __name__ == "__main__":
    sys.exit(main())
