"""The heartbeat of a worker, by which the others know that it lives."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from pgqpy._runtime.backoff import Backoff
from pgqpy._runtime.heartbeat import Heartbeat
from pgqpy.connection import Connection, connect, read_committed
from pgqpy.consumer._settings import ConsumerSettings
from pgqpy.log import logger


def start_heartbeat(
    consumer: ConsumerSettings,
    worker: str,
    beat: Callable[[Connection], object],
    every: float,
    *,
    needed: Callable[[], bool] = lambda: True,
) -> Heartbeat:
    """Call ``beat`` in a thread ``every`` seconds, while it is ``needed``."""
    at = monotonic() + every if needed() else 0.0

    def due() -> float:
        nonlocal at
        if not needed():
            at = monotonic() + every
        return at

    def beat_now(conn: Connection) -> None:
        nonlocal at
        at = monotonic() + every
        beat(conn)

    def opened() -> Connection:
        conn = connect(consumer.dsn, autocommit=True, prepare_threshold=None)
        read_committed(conn)
        return conn

    def failed(error: Exception, pause: float) -> None:
        reason = str(error).partition("\n")[0]
        fields = consumer.log_fields()
        logger.warning("worker %s cannot say that it lives: %s", worker, reason, extra=fields)

    heartbeat = Heartbeat(
        "heartbeat",
        opened,
        beat_now,
        due,
        failed,
        backoff=Backoff(0.5, every),
    )
    heartbeat.start()
    return heartbeat
