"""The console: a page of many queues, many viewers, and many dead letters.

200 queues have five registered consumers each, and a running ticker. The console is `pgqpy ui`, and
is asked for a page at a time, from this machine. Then many viewers look at the overview as browsers
do, by streams of events; none is without changes, as ages are shown. Last there are dead letters of
one queue, each with its event and one of ten reasons.
"""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx
import psutil

from benchmarks._beside import PYTHON, thread, ticker
from benchmarks._meter import Meter, Party
from benchmarks._servers import Connection, connect, pgqpy_database
from benchmarks.bench import Bench, timed

CONSUMERS = 5
SESSIONS = "select count(*) from pg_stat_activity where application_name = 'pgqpy ui'"
QUEUES = """
do $$
begin
    for n in 1 .. %d loop
        perform pgq.create_queue('q' || n);
        perform pgq.register_consumer('q' || n, 'c' || c) from generate_series(1, %d) c;
        commit;
    end loop;
end $$
"""
DEAD = """
insert into pgq._dead_letter (
       dl_queue, dl_consumer, dl_batch, dl_attempts, dl_reason, ev_id, ev_time, ev_type, ev_data)
select 'q1', 'c1', 1, 3, 'reason ' || n % 10, n, now() - n * interval '1 s', 'type', '{{}}'
  from generate_series(1, {}) n
"""


@contextmanager
def console(dsn: str) -> Iterator[tuple[psutil.Process, httpx.Client]]:
    """Run the console; a client that is signed in."""
    command = [*PYTHON, "pgqpy", "ui", "--dsn", dsn, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            link = process.stdout.readline().strip()
            base = "http://" + urlsplit(link).netloc
            with httpx.Client(base_url=base, timeout=60) as client:
                client.get(link).raise_for_status()
                yield psutil.Process(process.pid), client
        finally:
            process.terminate()


def answers(client: httpx.Client, page: str, number: int) -> list[float]:
    """The seconds of answers; the first ones are not counted."""
    return [timed(lambda: client.get(page).raise_for_status()) for _ in range(number + 3)][3:]


@contextmanager
def viewers(client: httpx.Client, number: int) -> Iterator[None]:
    """As many browsers look at the overview."""

    async def view(asked: httpx.AsyncClient) -> None:
        headers = {"Accept": "text/event-stream"}
        async with asked.stream("GET", "/", headers=headers) as answer:
            answer.raise_for_status()
            async for _ in answer.aiter_raw():
                pass
        raise RuntimeError("the console has ended a stream")

    async def view_all(done: threading.Event) -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=client.base_url, cookies=client.cookies, limits=limits, timeout=60
        ) as asked:
            views = [asyncio.create_task(view(asked)) for _ in range(number)]
            await asyncio.to_thread(done.wait)
            failed = [each for each in views if each.done()]
            for each in views:
                each.cancel()
            await asyncio.wait(views)
            for each in failed:
                each.result()

    with thread(lambda done: asyncio.run(view_all(done))):
        yield


def run(bench: Bench) -> None:
    queues = bench.choose(200, quick=5)
    letters = bench.choose(1_000_000, quick=100)
    seconds = 60 * bench.minutes(1)
    asked = bench.choose(100, quick=5)
    many = bench.choose(50, quick=3)
    with bench.server() as server:
        dsn = pgqpy_database(server)
        with connect(dsn) as conn:
            conn.execute((QUEUES % (queues, CONSUMERS)).encode())
            conn.execute("vacuum analyze")
            with ticker(dsn), console(dsn) as (process, client):
                overview = answers(client, "/", asked)
                costs = [cost(conn, process, client, number, seconds) for number in (1, many)]
                conn.execute(DEAD.format(letters).encode())
                conn.execute("vacuum analyze")
                pages = {
                    page: answers(client, f"/{page}", asked // 5)
                    for page in ("", "queue?name=q1", "dead_letters")
                }

    title = f"The overview of {queues} queues with {queues * CONSUMERS:,} consumers"
    answered = bench.delays(title, {"answered": overview})
    bench.table(
        "Viewers of it: processor time, % of one core",
        ("", "console", "its sessions", "number of sessions"),
        [(str(number), *shares) for number, *shares in costs],
    )
    later = bench.delays(
        f"With {letters:,} dead letters", {page or "overview": took for page, took in pages.items()}
    )
    bench.at_most("U1", "the overview, p95", answered.ms("answered", 95), 150, "ms")
    _, program, session, sessions = costs[-1]
    bench.at_most("U2a", f"{many} viewers, of a core", program + session, 10, "%")
    bench.at_most("U2b", f"{many} viewers, sessions", sessions, 1, "")
    slowest = max(later.ms(name, 95) for name in later.percentiles)
    bench.at_most("U3", "the slowest of these pages, p95", slowest, 1000, "ms")


def cost(
    conn: Connection, process: psutil.Process, client: httpx.Client, number: int, seconds: float
) -> tuple[int, float, float, int]:
    """Of a number of viewers: the shares of a core, in per cent, and the sessions."""
    with viewers(client, number):
        time.sleep(min(5, seconds))
        meter = Meter(conn, {"console": Party([process], ("pgqpy ui",))})
        time.sleep(seconds)
        shares, _ = meter.shares()
        [(sessions,)] = conn.execute(SESSIONS).fetchall()
    return number, 100 * shares["console"].program, 100 * shares["console"].sessions, sessions
