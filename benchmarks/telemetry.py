"""The cost of traces: inserts and a consumer, with telemetry off and on.

The application has a span around each insert, made before the time is taken. Spans go through the
SDK's BatchSpanProcessor to an exporter that drops them. Each: a span also for each insert, and for
each event of a consumer. An insert's time is the processor time of the client and its session, with
one event of 130 characters a transaction, or 10,000 a call; a consumer's is the time that passes,
and its method does nothing, or a query. Traced events were inserted one by one, each with a trace.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import psutil
from opentelemetry import context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

import pgqpy
from benchmarks._meter import used
from benchmarks._servers import CREATE_QUEUE, TICK, connect, pgqpy_database
from benchmarks.bench import Bench, timed
from pgqpy import Producer, telemetry
from pgqpy.embedded import Server

DATA = "x" * 130
#: Whether telemetry is on, the application's spans are recorded, and each call has a span.
WAYS = {
    "off": (False, True, False),
    "on, none recorded": (True, False, False),
    "on, all recorded": (True, True, False),
    "on, each with a span": (True, True, True),
}


class Drop(SpanExporter):
    """Takes spans as fast as they come."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def tracer(*, sampled: bool) -> trace.Tracer:
    """The application's."""
    provider = TracerProvider(sampler=ALWAYS_ON if sampled else ALWAYS_OFF)
    return provider.get_tracer("application")


@contextmanager
def switched(*, on: bool, each: bool) -> Iterator[None]:
    """Switch telemetry on."""
    if not on:
        yield
        return
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Drop()))
    telemetry.instrument(provider, each=each)
    try:
        yield
    finally:
        telemetry.uninstrument()
        provider.shutdown()


def seconds(session: psutil.Process) -> float:
    """The processor time so far, of this process and a session's."""
    return time.process_time() + used(session)


def insert(conn: pgqpy.Connection, count: int, on: bool, sampled: bool, each: bool) -> float:
    """Insert events in a transaction each; return the seconds of both processes."""
    producer = Producer("q")
    session = psutil.Process(conn.info.backend_pid)
    started = [tracer(sampled=sampled).start_span("request") for _ in range(count)]
    requests = [trace.set_span_in_context(span) for span in started]
    with switched(on=on, each=each):
        began = seconds(session)
        for request in requests:
            token = context.attach(request)
            producer.insert_event(conn, "type", DATA)
            context.detach(token)
        return seconds(session) - began


def insert_many(conn: pgqpy.Connection, count: int, on: bool, sampled: bool, each: bool) -> float:
    """Insert events by calls of 10,000."""
    producer = Producer("q")
    session = psutil.Process(conn.info.backend_pid)
    request = tracer(sampled=sampled).start_span("request")
    with switched(on=on, each=each), trace.use_span(request):
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
    dsn = pgqpy_database(server, CREATE_QUEUE)
    rounds = bench.choose(21, quick=2) + 1
    for number in range(rounds * 3):
        kind(dsn, consumer=f"c{number}").register()
    with connect(dsn) as conn:
        insert(conn, count, traced, True, False)
        conn.execute(TICK)
    consumers = iter(kind(dsn, consumer=f"c{number}") for number in range(rounds * 3))

    def read(*, on: bool, each: bool = False) -> float:
        consumer = next(consumers)
        with switched(on=on, each=each):
            return timed(consumer.run_once)

    return {
        "off": partial(read, on=False),
        "on": partial(read, on=True),
        "on, each with a span": partial(read, on=True, each=True),
    }


def run(bench: Bench) -> None:
    rounds = bench.choose(21, quick=2)
    with bench.server() as server:
        dsn = pgqpy_database(server, CREATE_QUEUE)
        with connect(dsn) as conn:
            for title, work, count in (
                ("One event a transaction", insert, bench.choose(2_000, quick=100)),
                ("10,000 events a call", insert_many, bench.choose(50_000, quick=10_000)),
            ):
                contestants = {
                    way: partial(work, conn, count, *flags) for way, flags in WAYS.items()
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
