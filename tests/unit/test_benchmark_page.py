"""Results of benchmarks are kept as JSON, and become a section of a page."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from benchmarks._page import DOCS, write_page
from benchmarks._result import Contest, Delays, Figure, Ratio, Result, Series, Table


@pytest.fixture
def result() -> Result:
    """A result with one part of each kind."""
    return Result(
        name="insert",
        about="A title.\n\nAnd more.",
        quick=False,
        date="2026-01-01T00:00:00+00:00",
        commit="0123456789ab",
        machine={"processor": "p", "cores": 2, "memory_gb": 4, "load_before": 0.1},
        versions={"PostgreSQL": "15.1"},
        settings={"fsync": "on"},
        seconds=60.0,
        figures=[
            Figure("1a", "times theirs", "at least", 1.15, 2.0, spread=(1.5, 2.5)),
            Figure("8b", "p99", "at most", 20.0, 21.0, "ms", note="Why."),
        ],
        parts=[
            Contest(
                "contest", 100, "events", {"theirs": [2.0, 4.0, 8.0], "pgqpy": [1.0, 1.0, 2.0]}
            ),
            Delays.of("delays", {"to event": [n / 1000 for n in range(1, 101)]}),
            Series("series", "events/s", {"one": [(0.0, 1.0), (1.0, 2.0)]}),
            Table("table", ["", "kB"], [["rows", 1.5], ["none", None]]),
        ],
    )


def test_a_result_is_kept_with_every_single_value(result: Result, tmp_path: Path) -> None:
    result.write(tmp_path)
    kept = json.loads((tmp_path / "insert.json").read_text())
    assert [figure["met"] for figure in kept["figures"]] == [True, False]
    assert [part["kind"] for part in kept["parts"]] == ["contest", "delays", "series", "table"]
    assert kept["parts"][0]["seconds"]["theirs"] == [2.0, 4.0, 8.0]


def test_a_ratio_is_the_median_of_those_of_single_rounds(result: Result) -> None:
    contest = result.parts[0]
    assert isinstance(contest, Contest)
    assert contest.ratio("pgqpy", "theirs") == Ratio(4.0, 2.0, 4.0)
    contest.seconds["once"] = [8.0]
    assert contest.ratio("pgqpy", "once") == Ratio(8.0, 8.0, 8.0)
    contest.seconds["none"] = [0.5, 0.5, 1.0]
    assert contest.ratio("pgqpy", "theirs", above="none") == Ratio(7.0, 3.0, 7.0)


def test_the_page_has_every_figure_and_the_same_data_gives_the_same_plots(
    result: Result, tmp_path: Path
) -> None:
    pages = [tmp_path / "first", tmp_path / "second"]
    for page in pages:
        write_page([result], page)
    text = (pages[0] / "benchmarks.md").read_text()
    assert ":<br>times theirs | at least 1.15 x | 2.00 x (1.50 to 2.50) | yes |" in text
    assert ":<br>p99 | at most 20.0 ms | 21.0 ms | **no** |" in text
    assert "- 8b: Why." in text
    (plot,) = (pages[0] / "benchmarks").glob("*.svg")
    assert f"(benchmarks/{plot.name})" in text
    assert plot.read_bytes() == (pages[1] / "benchmarks" / plot.name).read_bytes()


def test_a_run_replaces_its_own_sections_of_the_page(result: Result, tmp_path: Path) -> None:
    other = dataclasses.replace(
        result, name="bulk", figures=[Figure("3a", "times COPY", "at least", 0.8, 0.9)]
    )
    write_page([result, other], tmp_path)
    better = [dataclasses.replace(figure, value=3.0) for figure in result.figures]
    write_page([dataclasses.replace(result, figures=better)], tmp_path)
    text = (tmp_path / "benchmarks.md").read_text()
    assert ":<br>times theirs | at least 1.15 x | 3.00 x (1.50 to 2.50) | yes |" in text
    assert ":<br>p99 | at most 20.0 ms | 3.00 ms | yes |" in text
    assert ":<br>times COPY | at least 0.80 x | 0.90 x | yes |" in text
    assert text.count("\n## insert\n") == 1


def test_the_page_in_docs_is_as_it_would_be_written(tmp_path: Path) -> None:
    page = (DOCS / "benchmarks.md").read_text()
    (tmp_path / "benchmarks.md").write_text(page)
    write_page([], tmp_path)
    assert (tmp_path / "benchmarks.md").read_text() == page
