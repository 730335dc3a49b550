"""The command that runs benchmarks, stores their results, and writes the page."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import click

from benchmarks import NAMES
from benchmarks._page import DOCS, write_page
from benchmarks._result import CHECKOUT, Result
from benchmarks.bench import Bench, Options

# Not in git: every value of every round.
RESULTS = CHECKOUT / ".bench" / "results"
# Quick runs have their own page: their figures mean nothing.
QUICK = CHECKOUT / ".bench" / "quick"


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...", type=click.Choice(NAMES))
@click.option("--quick", is_flag=True, help="See that it works; the figures say little.")
@click.option(
    "--pg",
    "version",
    type=int,
    help="Major version of PostgreSQL. [default: 15, whose PgQ is in Debian, or else 18]",
)
@click.option("--page", is_flag=True, help="Measure nothing: write the page with new docstrings.")
@click.option("--minutes", type=float, help="How long to measure what takes its time.")
@click.option(
    "--pgque-sql",
    type=click.Path(exists=True, path_type=Path),
    help="Where PgQue's SQL file is, to compare with it.",
)
@click.option(
    "--pgmq-sql",
    type=click.Path(exists=True, path_type=Path),
    help="Where pgmq's SQL file is, to compare with it.",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where results and page go, instead of .bench/results and docs.",
)
def main(
    names: tuple[str, ...],
    quick: bool,
    version: int | None,
    page: bool,
    minutes: float | None,
    pgque_sql: Path | None,
    pgmq_sql: Path | None,
    output: Path | None,
) -> None:
    """Run the benchmarks NAME, or all of them, and write their sections of docs/benchmarks.md."""
    peer_sql = {"PgQue": pgque_sql, "pgmq": pgmq_sql}
    options = Options(
        quick, version, {name: path for name, path in peer_sql.items() if path}, minutes
    )
    if output is None and quick:
        output = QUICK
    if page:
        write_page([], output or DOCS)
        return
    results = output / "results" if output else RESULTS
    for name in names or NAMES:
        result = run(name, options)
        result.write(results)
        write_page([result], output or DOCS)


def run(name: str, options: Options) -> Result:
    module = import_module(f"benchmarks.{name}")
    about = str(module.__doc__).strip()
    bench = Bench(name, about, options)
    bench.say(f"{name}: {about.splitlines()[0]}")
    module.run(bench)
    return bench.done()


if __name__ == "__main__":
    main()
