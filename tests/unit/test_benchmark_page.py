"""What benchmarks measure survives as JSON, and becomes a page with plots."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.page import DOCS, write_page
from benchmarks.result import Contest, Delays, Figure, Ratio, Result, Series, Table


@pytest.fixture
def result() -> Result:
    """Of everything one."""
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
            Series("series", "minutes", "events/s", {"one": [(0.0, 1.0), (1.0, 2.0)]}),
            Table("table", ["", "kB"], [["rows", 1.5], ["none", None]]),
        ],
    )


def test_a_result_is_the_same_when_read_again(result: Result, tmp_path: Path) -> None:
    result.write(tmp_path)
    again = Result.read(tmp_path / "insert.json")
    again.write(tmp_path / "again")
    first, second = (tmp_path / place / "insert.json" for place in ("", "again"))
    assert first.read_text() == second.read_text()
    assert again.figures[0].met
    assert not again.figures[1].met
    assert isinstance(again.parts[1], Delays)
    assert again.parts[1].ms("to event", 99) == 99


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
    result.write(tmp_path)
    pages = [tmp_path / "first", tmp_path / "second"]
    for page in pages:
        write_page(tmp_path, page)
    text = (pages[0] / "benchmarks.md").read_text()
    assert (
        "| [1a](#insert) | times theirs | at least 1.15 x | 2.00 x (1.50 to 2.50) | yes |" in text
    )
    assert "| [8b](#insert) | p99 | at most 20.0 ms | 21.0 ms | **no** |" in text
    plots = sorted((pages[0] / "benchmarks").glob("*.svg"))
    assert [plot.name for plot in plots] == ["insert-1.svg", "insert-2.svg", "insert-3.svg"]
    for plot in plots:
        assert f"(benchmarks/{plot.name})" in text
        assert plot.read_bytes() == (pages[1] / "benchmarks" / plot.name).read_bytes()


def test_the_page_in_docs_is_made_from_the_results_that_are_kept(tmp_path: Path) -> None:
    write_page(docs=tmp_path)
    assert (tmp_path / "benchmarks.md").read_text() == (DOCS / "benchmarks.md").read_text()
