"""The cost of traces: processor time of inserts and of a consumer, with telemetry off and on.

Spans go through the SDK's BatchSpanProcessor to an exporter that drops them. One in ten: the
sampler records a tenth of the traces. An insert's time is that of the client and its session, with
one event of 130 characters a transaction, or 10,000 a call; a consumer's that of its process, whose
method does nothing, or a query. Traced events were inserted one by one, each with a trace.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import psutil
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

import pgqpy
from benchmarks._servers import CREATE_QUEUE, connect, database
from benchmarks.bench import Bench
from pgqpy import Producer, telemetry
from pgqpy.embedded import Server
from pgqpy.schema import schema_sql

DATA = "x" * 130
#: The share of traces that is recorded; None: telemetry is off.
WAYS = {"off": None, "on, none recorded": 0.0, "on, one in ten": 0.1, "on, all recorded": 1.0}


class Drop(SpanExporter):
    """Takes spans as fast as they come."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


@contextmanager
def recorded(share: float | None) -> Iterator[None]:
    """Record this share of traces."""
    if share is None:
        yield
        return
    provider = TracerProvider(sampler=TraceIdRatioBased(share))
    provider.add_span_processor(BatchSpanProcessor(Drop()))
    telemetry.instrument(provider)
    try:
        yield
    finally:
        telemetry.uninstrument()
        provider.shutdown()


def seconds(session: psutil.Process) -> float:
    """The processor time so far, of this process and a session's."""
    times = session.cpu_times()
    return float(time.process_time() + times.user + times.system)


def insert(conn: pgqpy.Connection, count: int, share: float | None) -> float:
    """Insert events in a transaction each; return the seconds of both processes."""
    producer = Producer("q")
    session = psutil.Process(conn.info.backend_pid)
    with recorded(share):
        began = seconds(session)
        for _ in range(count):
            producer.insert_event(conn, "type", DATA)
        return seconds(session) - began


def insert_many(conn: pgqpy.Connection, count: int, share: float | None) -> float:
    """Insert events by calls of 10,000."""
    producer = Producer("q")
    session = psutil.Process(conn.info.backend_pid)
    with recorded(share):
        began = seconds(session)
        for _ in range(count // 10_000):
            producer.insert_events(conn, (("type", DATA) for _ in range(10_000)))
        return seconds(session) - began


class Reader(pgqpy.Consumer):
    queue = "q"
    listen = False

    def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
        pass


class Asker(Reader):
    def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
        conn.execute("select 1")


def consume(
    server: Server, bench: Bench, kind: type[Reader], count: int, *, traced: bool
) -> dict[str, Callable[[], float]]:
    """Contestants that read the same events, each for itself."""
    name = f"{kind.__name__}_{traced}".lower()
    dsn = database(server, name, schema_sql(), CREATE_QUEUE)
    rounds = bench.choose(9, quick=2) + 1
    for number in range(rounds * 2):
        kind(dsn, consumer=f"c{number}").register()
    with connect(dsn) as conn:
        insert(conn, count, 1.0 if traced else None)
        conn.execute("select pgq.force_tick('q'), pgq.ticker('q')")
    consumers = iter(kind(dsn, consumer=f"c{number}") for number in range(rounds * 2))

    def read(share: float | None) -> float:
        consumer = next(consumers)
        with recorded(share):
            began = time.process_time()
            consumer.run_once()
            return time.process_time() - began

    return {"off": partial(read, None), "on": partial(read, 1.0)}


def run(bench: Bench) -> None:
    rounds = bench.choose(9, quick=2)
    with bench.server() as server:
        dsn = database(server, "inserts", schema_sql(), CREATE_QUEUE)
        with connect(dsn) as conn:
            for title, work, count in (
                ("One event a transaction", insert, bench.choose(2_000, quick=100)),
                ("10,000 events a call", insert_many, bench.choose(50_000, quick=10_000)),
            ):
                contestants = {
                    way: partial(work, conn, count, share) for way, share in WAYS.items()
                }
                bench.contest(title, contestants, rounds=rounds, items=count, unit="events")
        for title, kind, traced, count in (
            ("A consumer, events without a trace", Reader, False, 20_000),
            ("A consumer, a trace an event", Reader, True, 5_000),
            ("A query an event, a trace an event", Asker, True, 2_000),
        ):
            items = bench.choose(count, quick=count // 20)
            pair = consume(server, bench, kind, items, traced=traced)
            bench.contest(title, pair, rounds=rounds, items=items, unit="events")
