"""Count the words of a text with workers that are killed at random; not one is lost or doubled.

From the repository; the database is named by PGQPY_DSN or libpq's variables, and without these a
server is started::

    python -m examples.map_reduce
    python -m examples.map_reduce --workers 8 --kill-every 10 book.txt
"""

from __future__ import annotations

import os
import pydoc_data.topics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

import pgqpy
from examples.map_reduce.job import Job, pieces, words
from examples.map_reduce.workers import Workers
from pgqpy.dsn import VARIABLE
from pgqpy.embedded import Server
from pgqpy.schema import migrate

WORKER = "examples.map_reduce.worker"


@contextmanager
def database() -> Iterator[str]:
    """The one that is named, or one of a server of our own."""
    if os.environ.get(VARIABLE) or os.environ.get("PGHOST") or os.environ.get("PGSERVICE"):
        yield os.environ.get(VARIABLE, "")
        return
    with Server() as server:
        migrate(server.dsn)
        yield server.dsn


def read(files: tuple[Path, ...]) -> str:
    """The files' text; Python's own manual if none is given."""
    if files:
        return "\n".join(file.read_text("utf-8", errors="replace") for file in files)
    return "\n".join(pydoc_data.topics.topics.values())


def watch(job: Job, conn: pgqpy.Connection, workers: Workers, maps: int, kill_every: int) -> None:
    """Kill, and tell how far it is, until it is done."""
    began = told = time.monotonic()
    while not job.is_done(conn):
        time.sleep(0.02)
        left = job.left(conn)
        mapped, reduced = maps - left[job.map], job.shards - left[job.reduce]
        if kill_every and mapped // kill_every + reduced > workers.killed:
            workers.kill_one()
        if time.monotonic() - told >= 1:
            told = time.monotonic()
            click.echo(
                f"{told - began:5.1f} s   mapped {mapped:,} of {maps:,}"
                f"   reduced {reduced} of {job.shards}   workers killed {workers.killed}"
            )


@click.command(help=__doc__)
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--workers",
    "number",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="worker processes",
)
@click.option(
    "--kill-every",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    metavar="TASKS",
    help="kill one worker after this number of tasks; 0: never",
)
@click.option(
    "--lines",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="lines of a piece of text",
)
def main(files: tuple[Path, ...], number: int, kill_every: int, lines: int) -> None:
    text = read(files)
    job = Job(f"words {os.getpid()}")
    with database() as dsn, pgqpy.connect(dsn, autocommit=True) as conn:
        job.create(conn)
        maps = job.start(conn, pieces(text, lines))
        click.echo(f"{len(text) / 1000:,.0f} kB of text, {maps:,} maps, {number} workers")
        workers = Workers(WORKER, job.arguments, number=number, dsn=dsn)
        try:
            began = time.monotonic()
            watch(job, conn, workers, maps, kill_every)
            took = time.monotonic() - began
        finally:
            workers.stop()
        counts = job.counts(conn)
        job.drop(conn)
    click.echo(f"done after {took:.1f} s; {workers.killed} workers were killed\n")
    for word, count in counts.most_common(10):
        click.echo(f"{count:9,}  {word}")
    if counts != Counter(words(text)):
        raise SystemExit("this is not what is in the text")
    click.echo(
        f"\n{counts.total():,} words, {len(counts):,} different ones, exactly those of the text"
    )


if __name__ == "__main__":
    main()
