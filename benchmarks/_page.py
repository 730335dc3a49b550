"""docs/benchmarks.md: a section for each benchmark, and an overview of the figures to reach.

A run replaces the sections of its benchmarks; the others stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks import NAMES
from benchmarks._plot import plot
from benchmarks._result import CHECKOUT, FIGURES, Figure, Part, Result, group_of
from benchmarks._show import as_text, number, quantity

DOCS = CHECKOUT / "docs"

GENERATED = "<!-- Written by `python -m benchmarks`: change benchmarks/, not this. -->\n"
INTRO = Path(__file__).parent / "intro.md"

# The page includes these pictures; all others are only in the folder of the run.
PICTURES = {"insert-1", "capture-2", "latency-1", "peers-1", "held_xmin-1", "task_work-1"}

FIGURE_ROW = re.compile(
    r"^\| (?P<number>\w+) \|(?P<rest>.*\| (?:yes|\*\*no\*\*) \|)$", re.MULTILINE
)


def write_page(measured: Sequence[Result], docs: Path = DOCS) -> None:
    page = docs / "benchmarks.md"
    sections = sections_of(page.read_text()) if page.exists() else {}
    for result in measured:
        sections[result.name] = "\n".join(section(result, docs / "benchmarks"))
    sections = {name: sections[name] for name in NAMES if name in sections}
    docs.mkdir(parents=True, exist_ok=True)
    text = "\n".join([GENERATED, INTRO.read_text(), *overview(sections), *sections.values()])
    page.write_text(re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n")


def sections_of(page: str) -> dict[str, str]:
    """The sections of a page by the names of their benchmarks."""
    parts = re.split(r"^(?=## )", page, flags=re.MULTILINE)[1:]
    return {part[3 : part.index("\n")]: part for part in parts}


def overview(sections: dict[str, str]) -> Iterator[str]:
    """The figures to reach, with the measured values."""
    measured: dict[str, list[str]] = {}
    for name, text in sections.items():
        for row in FIGURE_ROW.finditer(text):
            line = f"| [{row['number']}](#{name}) |{row['rest']}"
            measured.setdefault(group_of(row["number"]), []).append(line)
    yield "\n## The figures to reach\n"
    yield from table(("#", "what", "target", "measured", "met"), (), left=4)
    for group, (what, target) in FIGURES.items():
        yield from lines_of([(f"**{group}**", f"**{what}**", target, "", "")])
        yield from measured.get(group, ["|  | not measured yet |  |  |  |"])
    yield ""


def section(result: Result, plots: Path) -> Iterator[str]:
    title, _, about = result.about.partition("\n")
    yield f"## {result.name}\n"
    yield f"{title}\n{about}\n"
    if result.quick:
        yield "**A quick run: its figures say nothing.**\n"
    for place, part in enumerate(result.parts, 1):
        yield from part_of(part, plots / f"{result.name}-{place}.svg")
    if result.figures:
        rows = [(f.number, f.what, target_of(f), value_of(f), met(f)) for f in result.figures]
        yield from table(("figure", "what", "target", "measured", "met"), rows, left=2)
        yield ""
        yield from (f"- {figure.number}: {figure.note}" for figure in result.figures if figure.note)
    yield ""
    yield from conditions(result)


def part_of(part: Part, file: Path) -> Iterator[str]:
    text = as_text(part)
    yield f"**{text.title}**\n"
    yield from table(text.columns, text.rows)
    yield ""
    if file.stem in PICTURES and plot(part, file):
        yield f"![{text.title}](benchmarks/{file.name})\n"


def conditions(result: Result) -> Iterator[str]:
    machine = result.machine
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    yield (
        f"`python -m benchmarks {result.name}`, {result.date[:10]}, commit {result.commit},"
        f" {result.seconds / 60:.1f} minutes."
        f" {machine['cores']} cores ({machine['processor']}), {machine['memory_gb']} GB,"
        f" load before {number(machine['load_before'])}.\n"
    )
    yield f"Versions: {versions}.\n"
    if result.settings:
        settings = "; ".join(f"{name}: {value}" for name, value in result.settings.items())
        yield f"Settings: {settings}.\n"


def target_of(figure: Figure) -> str:
    return f"{figure.bound} {quantity(figure.target, figure.unit)}"


def value_of(figure: Figure) -> str:
    value = quantity(figure.value, figure.unit)
    if figure.spread is None:
        return value
    low, high = figure.spread
    return f"{value} ({low:.2f} to {high:.2f})"


def met(figure: Figure) -> str:
    return "yes" if figure.met else "**no**"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> Iterator[str]:
    """A table in Markdown; the first columns are aligned left, the others right."""
    yield "| " + " | ".join(columns) + " |"
    yield "|" + "|".join("---" if n < left else "---:" for n in range(len(columns))) + "|"
    yield from lines_of(rows)


def lines_of(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
