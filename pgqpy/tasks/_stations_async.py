"""Workers that serve the stations of a pipeline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pgqpy.connection_async import AsyncConnection, async_connect
from pgqpy.errors import PgqError, translate_errors
from pgqpy.log import logger
from pgqpy.retry import DeadLetter, Retry, RetryPolicy
from pgqpy.tasks._client_async import AsyncTasks
from pgqpy.tasks._pipeline import SET_STATIONS, Pipeline
from pgqpy.tasks._values import Task
from pgqpy.tasks._worker.worker_async import AsyncTaskWorker


class AsyncPipelineWorker(AsyncTaskWorker):
    """Works on the tasks at a pipeline's stations; any number may serve the same ones.

    A task goes to the next station, with its new payload, in one transaction with the writes of the
    station's function on its connection: after any crash it is at one station, once. So are the
    tasks of a fork.
    """

    _way = "process_task"

    def __init__(
        self,
        dsn: str | None,
        pipeline: Pipeline,
        *,
        stations: Iterable[str] | None = None,
        **options: Any,
    ) -> None:
        """Serve all stations, or these. For ``options`` see `AsyncTaskWorker`.

        Raises InvalidPipeline, see `Pipeline.check`.
        """
        pipeline.check()
        self.pipeline = pipeline
        if isinstance(stations, str):
            stations = [stations]
        served = list(pipeline.stations) if stations is None else list(stations)
        for name in served:
            pipeline.check_function(name, awaited=self._io.awaits)
        super().__init__(dsn, [pipeline.queue(name) for name in served], **options)

    async def run(self, *, until_empty: bool = False, handle_signals: bool = True) -> None:
        """Work like `AsyncTaskWorker.run`, and first tell the console of the stations."""
        async with await async_connect(self.dsn, autocommit=True, prepare_threshold=None) as conn:
            given = [self.pipeline.name, self.pipeline.described(self.queues)]
            try:
                with translate_errors():
                    await conn.execute(SET_STATIONS, given)
            except PgqError as error:
                logger.warning("the console cannot draw pipeline %s: %s", given[0], error)
        await super().run(until_empty=until_empty, handle_signals=handle_signals)

    async def process_task(self, conn: AsyncConnection, task: Task) -> Any:
        station = self.pipeline.station_of(task)
        value = await station.function(conn, task)
        try:
            if station.kind != "fork" or isinstance(value, Retry | DeadLetter):
                return self.pipeline.outcome(station, value)
            branches = self.pipeline.branches(station, value, task)
        except Exception as error:
            # It would be repeated, with the same result.
            raise DeadLetter(error) from error
        # Rolled back with the rest of the transaction if another worker has taken the task over.
        pushed = await AsyncTasks(conn, self.name).modify(inserts=branches)
        return [task.id for task in pushed]

    def policy_of(self, task: Task) -> RetryPolicy:
        return self.pipeline.station_of(task).retry_policy or super().policy_of(task)
