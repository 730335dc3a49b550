"""docs/benchmarks.md: a section for each benchmark, and an overview of the figures to reach.

A run replaces the sections of its benchmarks; the others stay as they are.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from benchmarks import NAMES
from benchmarks._result import CHECKOUT, FIGURES, Contest, Delays, Result, group_of
from benchmarks._show import as_text, cells_of, number

DOCS = CHECKOUT / "docs"

GENERATED = "<!-- Written by `python -m benchmarks`: change benchmarks/, not this. -->\n"
INTRO = Path(__file__).parent / "intro.md"

# The parts that have a picture.
PICTURES = {"insert-1", "capture-2", "latency-1", "peers-1", "held_xmin-1", "task_work-1"}

# The measured part of a section, after the benchmark's docstring, begins with one of these.
MEASURED = re.compile(r"^(?=\| |- `python -m benchmarks )", re.MULTILINE)
# The conditions that the introduction names. Sections name only others.
USUAL = {
    "machine": "2 cores (AMD EPYC), 24 GB",
    "versions": "pgqpy 0.1.0; Python 3.11.7; PostgreSQL 15.18 (Debian 15.18-0+deb12u1); PgQ 3.5",
    "settings": "fsync: on; full_page_writes: on; max_wal_size: 4GB; shared_buffers: 512MB; "
    "synchronous_commit: off",
}
BAR = "\\|"
FIGURE_ROW = re.compile(r"^\| \[(?P<number>\w+)\]\(#(?P<name>\w+)\) \|.*$", re.MULTILINE)


def write_page(measured: Sequence[Result], docs: Path = DOCS) -> None:
    page = docs / "benchmarks.md"
    text = page.read_text() if page.exists() else ""
    sections, rows = sections_of(text), rows_of(text)
    for result in measured:
        sections[result.name] = "\n".join(section(result, docs / "benchmarks"))
        rows[result.name] = list(figure_rows(result))
    docs.mkdir(parents=True, exist_ok=True)
    usual = wrapped(f"Unless a section says otherwise: {'; '.join(USUAL.values())}.")
    parts = [GENERATED, INTRO.read_text(), usual, *overview(rows)]
    parts += [
        f"## {name}\n\n{about(name)}\n\n{sections[name]}" for name in NAMES if name in sections
    ]
    page.write_text(re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).rstrip() + "\n")


def sections_of(page: str) -> dict[str, str]:
    """Return the measured parts of a page's sections by the names of the benchmarks."""
    parts = re.split(r"^## ", page, flags=re.MULTILINE)[2:]
    return {part[: part.index("\n")]: MEASURED.split(part, maxsplit=1)[1] for part in parts}


def rows_of(page: str) -> dict[str, list[str]]:
    """Return the rows of a page's overview by the names of the benchmarks."""
    rows: dict[str, list[str]] = {}
    for row in FIGURE_ROW.finditer(page):
        # Without what `overview` has added.
        rows.setdefault(row["name"], []).append(re.sub(r"\*\*.*:<br>", "", row[0]))
    return rows


def figure_rows(result: Result) -> Iterator[str]:
    return lines_of((f"[{f.number}](#{result.name})", *cells_of(f)) for f in result.figures)


def overview(rows: dict[str, list[str]]) -> Iterator[str]:
    """The figures to reach, with the measured values."""
    measured: dict[str, list[str]] = {}
    for name in NAMES:
        for row in rows.get(name, ()):
            if figure := FIGURE_ROW.match(row):
                measured.setdefault(group_of(figure["number"]), []).append(row)
    yield "\n## The figures to reach\n"
    yield from table(("#", "what", "target", "measured", "met"), (), left=4)
    for group, (what, target) in FIGURES.items():
        first, *others = measured.get(group, ["| | not measured yet | | | |"])
        number, cells = first.removeprefix("|").split("|", 1)
        yield f"|{number}| **{what}**, {target.replace('|', BAR)}:<br>{cells.lstrip()}"
        yield from others
    yield ""


def about(name: str) -> str:
    """Return the docstring of a benchmark, wrapped for the page."""
    source = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(source)) or ""
    # The title is the first sentence of the page's first paragraph.
    paragraphs = docstring.replace("\n\n", " ", 1).split("\n\n")
    return "\n\n".join(map(wrapped, paragraphs))


def wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def section(result: Result, plots: Path) -> Iterator[str]:
    """The measured part of a section."""
    # A large import, of one test among all that each process of the suite collects.
    from benchmarks._plot import plot

    if result.quick:
        yield "**A quick run: its figures say nothing.**\n"
    texts = [as_text(part) for part in result.parts]
    for columns, tables in groupby(texts, lambda text: text.columns[1:]):
        first, *others = tables
        yield from table((first.title, *columns), first.rows)
        for text in others:
            yield from lines_of([(f"**{text.title}**", *[""] * len(columns)), *text.rows])
        yield ""
    for place, (part, text) in enumerate(zip(result.parts, texts, strict=True), 1):
        file = plots / f"{result.name}-{place}.svg"
        if file.stem in PICTURES and isinstance(part, Contest | Delays):
            plot(part, file)
            yield f"![{text.title}](benchmarks/{file.name})\n"
    yield from (wrapped(f"- {each.number}: {each.note}") for each in result.figures if each.note)
    yield conditions(result)
    yield ""


def conditions(result: Result) -> str:
    """Tell the conditions of a run, as far as they are not `USUAL`."""
    machine = result.machine
    place = f"{machine['cores']} cores ({machine['processor']}), {machine['memory_gb']} GB"
    versions = ", ".join(unusual("versions", result.versions, "{} {}"))
    settings = "; ".join(unusual("settings", result.settings, "{}: {}"))
    told = {"Machine": "" if place == USUAL["machine"] else place}
    told |= {"Versions": versions, "Settings": settings}
    return wrapped(
        f"- `python -m benchmarks {result.name}`, {result.date[:10]}, commit {result.commit},"
        f" {result.seconds / 60:.1f} minutes, load before {number(machine['load_before'])}."
        + "".join(f" {kind}: {text}." for kind, text in told.items() if text)
    )


def unusual(kind: str, values: Mapping[str, str], form: str) -> list[str]:
    usual = USUAL[kind].split("; ")
    told = (form.format(name, value) for name, value in values.items())
    return [text for text in told if text not in usual]


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> Iterator[str]:
    """A table in Markdown; the first columns are aligned left, the others right."""
    yield "| " + " | ".join(columns) + " |"
    yield "|" + "|".join("---" if n < left else "---:" for n in range(len(columns))) + "|"
    yield from lines_of(rows)


def lines_of(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", BAR) for cell in row) + " |"
