"""Results of benchmarks: stored as JSON with every value of every round; machine and targets."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import statistics
import string
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

PERCENTS = (0, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9, 100)

Cell: TypeAlias = str | int | float | None


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of the ratios of all rounds, and their spread.

    Not the ratio of medians: a slowdown of the machine affects both contestants of a
    round, and cancels out.
    """

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Ratio:
        return cls(statistics.median(ratios), min(ratios), max(ratios))


@dataclass(slots=True)
class Contest:
    """Contestants took turns at the same work. The first one is the yardstick."""

    title: str
    items: int
    """The amount of work in each turn."""
    unit: str
    """The unit of the items."""
    seconds: dict[str, list[float]]
    """The durations of each contestant's rounds; slow contestants have fewer of them."""

    def rate(self, name: str) -> float:
        """Items a second, the median."""
        return self.items / statistics.median(self.seconds[name])

    def ratio(self, name: str, to: str, *, above: str | None = None) -> Ratio:
        """The speed as a multiple of ``to``; with ``above``, after subtracting its time from both.

        If one was in fewer rounds than the other, medians are compared instead of rounds.
        """
        ours, theirs = self.seconds[name], self.seconds[to]
        floor = self.seconds[above] if above else [0.0] * len(ours)
        if len(ours) != len(theirs):
            ours, theirs, floor = ([statistics.median(each)] for each in (ours, theirs, floor))
        rounds = zip(ours, theirs, floor, strict=True)
        return Ratio.of([(other - least) / (own - least) for own, other, least in rounds])


@dataclass(slots=True)
class Table:
    """A table with a name in the first column and numbers in the others."""

    title: str
    columns: list[str]
    rows: list[list[Cell]]


@dataclass(slots=True)
class Delays:
    """Durations: for each name as many values as `PERCENTS`, in ms."""

    title: str
    percentiles: dict[str, list[float]]
    counts: dict[str, int]

    @classmethod
    def of(cls, title: str, seconds: dict[str, Sequence[float]]) -> Delays:
        percentiles, counts = {}, {}
        for name, values in seconds.items():
            ordered = sorted(values)
            last = len(ordered) - 1
            percentiles[name] = [1000 * ordered[round(last * p / 100)] for p in PERCENTS]
            counts[name] = len(ordered)
        return cls(title, percentiles, counts)

    def ms(self, name: str, percent: float) -> float:
        return self.percentiles[name][PERCENTS.index(percent)]


@dataclass(slots=True)
class Series:
    """Values over time: for each line its points (x, y)."""

    title: str
    y: str
    """The quantity and its unit."""
    lines: dict[str, list[tuple[float, float]]]


Part: TypeAlias = Contest | Table | Delays | Series


def group_of(number: str) -> str:
    return number.rstrip(string.ascii_lowercase)


@dataclass(slots=True)
class Figure:
    """One of the figures to reach (`FIGURES`), or a part of one."""

    number: str
    """The figure's number; "1a" is a part of number 1."""
    what: str
    bound: str
    """"at least" or "at most"."""
    target: float
    value: float
    unit: str = "x"
    spread: tuple[float, float] | None = None
    note: str = ""
    met: bool = field(init=False)

    @property
    def group(self) -> str:
        """The number without the part's letter: "1" for "1a"."""
        return group_of(self.number)

    def __post_init__(self) -> None:
        at_least = self.bound == "at least"
        self.met = self.value >= self.target if at_least else self.value <= self.target


@dataclass(slots=True)
class Result:
    """The results of one benchmark, with time, machine and versions."""

    name: str
    about: str
    quick: bool
    date: str
    commit: str
    machine: dict[str, Any]
    versions: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    """Settings of the server and of the peers that are not the default."""
    seconds: float = 0.0
    """The duration of the benchmark."""
    figures: list[Figure] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)

    def write(self, directory: Path) -> None:
        document = dataclasses.asdict(self)
        kinds = [{"kind": type(part).__name__.lower()} for part in self.parts]
        document["parts"] = [k | p for k, p in zip(kinds, document["parts"], strict=True)]
        directory.mkdir(parents=True, exist_ok=True)
        text = json.dumps(rounded(document), indent=1, ensure_ascii=False)
        (directory / f"{self.name}.json").write_text(text + "\n")


def rounded(value: Any) -> Any:
    """The value with six digits; more cannot be measured."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return value


CHECKOUT = Path(__file__).parents[1]


def machine() -> dict[str, Any]:
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()} {platform.release()}",
        "load_before": round(os.getloadavg()[0], 2),
    }


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def commit() -> str:
    """The commit of the code, with "+" if there were changes on top of it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=CHECKOUT, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "pgqpy", "ticker", "sql")
    return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")


_FIGURES = """
1 | `insert_event`, one a transaction, 8 clients, synchronous_commit off, payload 130 bytes
  | at least 1.0 x PgQ C
2 | INSERT into the relation with synchronous_commit on, and with 1 client
  | at least 1.0 x PgQ C
3 | 200,000 events in one transaction: `insert_events`, and the Python producer's COPY
  | at least 0.8 x INSERT..SELECT, and 0.8 x COPY, into the plain table
4 | capture of an INSERT and of an UPDATE of 100,000 rows, by our statement-level capture
  | at least 2 x PgQ's C jsontriga
5 | capture of single-row statements, 8 clients
  | at least 0.9 x PgQ's C jsontriga
6 | our row trigger jsontriga on 100,000 rows
  | at least 8 x PgQ's PL/pgSQL one
7 | a Python consumer that streams 1,000,000 events
  | at least 0.8 x a psycopg binary COPY of the same rows out of a plain table; 2 x a python3-pgq
    consumer; memory flat
8 | delivery, insert to consumer's method, 1,000 events/s, default settings
  | p50 at most 5 ms, p99 at most 20 ms; first event after a minute idle at most 15 ms
9 | the same at the highest rate that the machine can insert, for 60 s
  | the backlog does not grow once producers pause: latency degrades into bigger batches and
    recovers within 2 s
10 | idle: 100 queues, 200 consumers, no events, 5 minutes
  | ticker plus consumers below 2% of a core together, WAL below 100 kB a minute
11 | a writing and a reading transaction held open for 15 minutes under 1,000 events/s
  | consumer cycles/s and latency at the end at least 0.95 of before; dead rows in every `pgq`
    relation bounded
12 | batch fetch time with 10,000,000 events of backlog, and with a transaction open since before
    them
  | within 1.2 x of an empty queue's
13 | 1,000 queues with 3 registered consumers each; 100 of the queues busy (10 events/s each), one
    consumer reading each of those
  | delivery p99 at most 250 ms, ticker below 30% of a core; a new connection's first insert below
    10 ms; creating and dropping queues meanwhile stalls no insert over 50 ms
14 | 24 hours of rotation in fast forward (short rotation period, 100,000,000 events in all or what
    an hour allows)
  | size on disk bounded by the rotation settings, throughput of the last tenth at least 0.95 of
    the first
C1 | `CoopConsumer`: 8 workers whose handler sleeps 5 ms an event
  | at least 7 x one worker
C2 | ordered groups: 8 partitions, 200 keys by Zipf's law, a handler of 1 ms
  | no reordering in 1,000,000 events, at least 5 x one worker
C3 | `queue_mover`: 1,000,000 events into another database's queue
  | at least 0.7 x `COPY out | COPY in` of the same rows
C4 | 100,000 dead letters, retries or delayed events at once, while they come about and while they
    wait
  | insert rate of normal events at least 0.9 x before
C5 | `table_loader` in bulk mode, 2 cores
  | at least 50,000 changes/s
C6 | `replicate`: pgbench's TPC-B at the full rate of 4 clients, the target on the same machine
  | keeps up: applies at least 0.99 of the changes as they come
C7 | delayed events, default settings: 200 due a second, and one every 3 seconds
  | p99 at most 100 ms later than due
C8 | a branch of a cascaded queue behind its root, 1,000 events/s, default settings
  | p50 at most 10 ms, p99 at most 100 ms
C9 | 1,000,000 events of a root copied into a new branch
  | at least 0.8 x `COPY out | COPY in` of the same rows
C10 | 100 idle cascaded queues with nodes in three databases, one process
  | below 30% of a core
C11 | planned takeover of a cascaded queue with three nodes, 4 clients at full speed
  | at most 2 s of paused writes
Q1 | tasks pushed one a transaction, 8 clients, synchronous_commit off
  | at least 0.65 x a plain INSERT into a table with the same columns and indexes
Q2 | `push_many` of 10,000 tasks
  | at least 0.7 x INSERT..SELECT of the same rows
Q3 | tasks claimed and finished one by one, 8 workers, synchronous_commit off
  | at least 1.5 x the best of procrastinate, pgqueuer, pg-boss, graphile-worker, and of pgmq where
    its SQL is given
Q4 | tasks claimed and finished in batches of 100 by the Python worker
  | at least 25,000 tasks/s, or 3 x the best peer
Q5 | push to a waiting worker's function, default settings
  | p50 at most 3 ms, p99 at most 10 ms; p50 at most 10 ms for a worker of 300 queues
Q6 | a writing and a reading transaction held open for 15 minutes under 2,000 tasks/s
  | tasks/s and time of a claim at the end at least 0.8 x before
Q7 | the same, from a minute after their end on
  | 1.0 x before
Q8 | claims and finishes with a backlog of 5,000,000 tasks
  | as fast as with 5,000
Q9 | rows of a table that the application has, a transaction for each and for each 100
  | at least 700 and 1,400 rows/s, what seed 001 reports
Q10 | the same behind 200,000 rows that are done and cannot be cleaned up
  | at least 0.8 x without
Q11 | bytes of WAL of a task of 256 bytes, pushed, claimed and finished at 1,000 a second
  | at most 700
R1 | INSERT into the relation, one a transaction, 8 clients, synchronous_commit off, 130 bytes
  | at least 0.90 x a plain INSERT into a table with the same columns and index, 1.3 x PgQ C
R2 | the same in instructions of the server, commit included
  | at most 1.30 x a plain INSERT
R3 | 200,000 events by INSERT..SELECT into the relation
  | at least 0.90 x INSERT..SELECT into the plain table
R4 | a restricted queue by a role with grants: insert, next_batch, finish_batch
  | at least 0.97 x an open queue
R5 | bytes of WAL of an event inserted into the relation
  | at most 1.1 x those of a row of the plain table
R6 | a new connection's first INSERT into the relation, with 1,000 queues
  | below 10 ms
S1 | Spark, local[2]: 1,000,000 events of 110 bytes read as one range, and aggregated
  | at least 1.0 x Spark's own JDBC source on the same table with as many partitions
S2 | the same, with JSON payloads decoded to 6 typed columns
  | at least 1.0 x JDBC and from_json
S3 | a stream of 50,000 events/s, insert to sink
  | sustained: the backlog does not grow
S4 | a stream of 1,000 events/s, insert to foreachBatch, default trigger
  | p50 at most 1.5 s
S5 | 1,000,000 rows written into a queue
  | at least 0.7 x Spark's JDBC writer into a plain table
S6 | memory of an executor
  | flat with the size of the range
U1 | the console's overview of 200 queues with 1,000 consumers, answered at the server
  | p95 at most 150 ms
U2 | 50 viewers look at it for a minute
  | console and session below 10% of a core, one session
U3 | the same, and the pages of dead letters, with 1,000,000 dead letters
  | p95 at most 1 s
"""


FIGURES = {
    number: (" ".join(what.split()), " ".join(target.split()))
    for number, what, target in re.findall(
        r"(?ms)^([CQRSU]?\d+) \|(.+?)^  \|(.+?)(?=^[CQRSU]?\d|\Z)", _FIGURES
    )
}
"""The subject and the target, by number."""
