"""Progress of a batch: a line in the terminal, and the session's name for ``pgqpy status``."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING

import psycopg
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner

import pgqpy
from pgqpy.consumer.progress import BatchProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Seconds between updates.
_EVERY = 0.5


class Progress:
    """The progress of a batch, watched from a thread of its own."""

    def __init__(
        self,
        spark: SparkSession | None,
        conn: pgqpy.Connection,
        batch: pgqpy.Batch,
        events_per_second: float | None,
    ) -> None:
        """Tasks are known only if ``spark`` has a SparkContext.

        ``conn`` gets the name, and must not be used elsewhere meanwhile. ``events_per_second`` is
        the previous speed, for the line.
        """
        self._context = getattr(spark, "sparkContext", None)
        self._conn = conn
        self._batch = batch
        self._consumer = batch.consumer
        self._events_per_second = events_per_second
        self._group = f"pgqpy batch {batch.id}"
        self._started = monotonic()
        self._told = ""
        self._leaving = threading.Event()
        self._spinner = Spinner("dots")

    @contextmanager
    def reported(self, *, show: bool | None) -> Iterator[None]:
        """Report it until the block ends; ``show`` draws the line. None: if standard error is a
        terminal that Java does not write to."""
        if show is None:
            show = sys.stderr.isatty() and not self._java_writes_to_the_terminal()
        if self._context is not None:
            # The web interface shows it, too.
            self._context.setJobGroup(self._group, f"batch {self._batch.id} of {self._consumer}")
        self._spinner.update(text=self._line(self._now()))
        live = Live(
            self._spinner,
            console=Console(stderr=True, markup=False, emoji=False, highlight=False),
            transient=True,
            # Output of process_batch appears above the line, unless it goes elsewhere.
            redirect_stdout=sys.stdout.isatty(),
        )
        thread = threading.Thread(target=self._run, name=self._group, daemon=True)
        with live if show else nullcontext():
            thread.start()
            try:
                yield
            finally:
                self._leaving.set()
                thread.join()
                if self._context is not None:
                    self._context.setLocalProperty("spark.jobGroup.id", None)
                    self._context.setLocalProperty("spark.job.description", None)
                self._tell_session("reset application_name")

    def _run(self) -> None:
        while True:
            now = self._now()
            self._spinner.update(text=self._line(now))
            name = now.session_name(self._consumer)
            if name != self._told:
                self._tell_session("select set_config('application_name', %s, false)", name)
                self._told = name
            if self._leaving.wait(_EVERY):
                return

    def _now(self) -> BatchProgress:
        running = timedelta(seconds=int(monotonic() - self._started))
        done, tasks = self._tasks()
        return BatchProgress(self._batch.id, running, done, tasks)

    def _tasks(self) -> tuple[int, int] | tuple[None, None]:
        """The finished tasks and all tasks of the stages that run for this batch."""
        if self._context is None:
            return None, None
        tracker = self._context.statusTracker()
        try:
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._group)]
            running = set(tracker.getActiveStageIds())
            ours = running.intersection(each for job in jobs if job for each in job.stageIds)
            stages = [stage for each in ours if (stage := tracker.getStageInfo(each))]
        except Exception:  # a stopped Spark raises various errors
            return None, None
        if not stages:
            return None, None
        return sum(s.numCompletedTasks for s in stages), sum(s.numTasks for s in stages)

    def _line(self, now: BatchProgress) -> str:
        batch = self._batch
        parts = [f"{batch.seq_end - batch.seq_start:,} events"]
        if now.tasks is not None:
            parts.append(f"{now.tasks_done}/{now.tasks} tasks")
        parts.append(_duration(now.running))
        if self._events_per_second is not None:
            parts.append(f"{self._events_per_second:,.0f} events/s")
        parts.append(f"{_duration(batch.lag + now.running)} behind")
        # Names come from outside: terminals must not obey them.
        name = "".join(sign if sign.isprintable() else "?" for sign in self._consumer)
        return f"batch {batch.id} of {name}: {', '.join(parts)}"

    def _tell_session(self, statement: str, *values: str) -> None:
        """Set the session's name; errors are ignored, because they must not make a batch fail."""
        with suppress(psycopg.Error):
            self._conn.execute(statement.encode(), values)

    def _java_writes_to_the_terminal(self) -> bool:
        """Whether it was started by spark-submit, or has a progress bar of its own."""
        if self._context is None:
            return False
        own_bar = self._context.getConf().get("spark.ui.showConsoleProgress", "false")
        return "PYSPARK_GATEWAY_PORT" in os.environ or own_bar == "true"


def _duration(value: timedelta) -> str:
    minutes, seconds = divmod(int(value.total_seconds()), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
