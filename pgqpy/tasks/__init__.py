"""The work queue: tasks that one of many workers claims, and finishes, retries or gives up.

For sync and for asyncio::

    Tasks(conn).push("mails", {"to": "..."})                # AsyncTasks
    TaskWorker(dsn, "mails", send).run()                    # AsyncTaskWorker
    TableWorker(dsn, "mail", send).run()                    # AsyncTableWorker
    TaskApp("mails").worker(dsn).run()                      # TaskApp.async_worker

All public names are here; `TaskApp`, `Flow`, `Job` and `PushOptions` need ``pgqpy[jobs]``.
"""

from typing import TYPE_CHECKING

from pgqpy.tasks._client import Tasks
from pgqpy.tasks._client_async import AsyncTasks
from pgqpy.tasks._jobs.current import CurrentJob, TaskCancelled, TaskTimeout, current_job
from pgqpy.tasks._outcome import Move, TaskLost, TaskStats
from pgqpy.tasks._pipeline import Pipeline, Station, To
from pgqpy.tasks._rows.table import TaskColumnNames
from pgqpy.tasks._rows.worker import TableWorker
from pgqpy.tasks._rows.worker_async import AsyncTableWorker
from pgqpy.tasks._stations import PipelineWorker
from pgqpy.tasks._stations_async import AsyncPipelineWorker
from pgqpy.tasks._values import (
    FinishedTask,
    FlowInfo,
    FlowStep,
    Modified,
    PeriodicInfo,
    Pushed,
    Task,
    TaskInfo,
    TaskLimits,
    TaskProgress,
    TaskQueueInfo,
    TaskStatistics,
    Unreadable,
)
from pgqpy.tasks._worker.worker import TaskWorker
from pgqpy.tasks._worker.worker_async import AsyncTaskWorker

if TYPE_CHECKING:
    from pgqpy.tasks._jobs.app import Flow as Flow
    from pgqpy.tasks._jobs.app import Job as Job
    from pgqpy.tasks._jobs.app import PushOptions as PushOptions
    from pgqpy.tasks._jobs.app import TaskApp as TaskApp

#: Without what needs an extra, so that ``import *`` works without it.
__all__ = [
    "AsyncPipelineWorker",
    "AsyncTableWorker",
    "AsyncTaskWorker",
    "AsyncTasks",
    "CurrentJob",
    "FinishedTask",
    "FlowInfo",
    "FlowStep",
    "Modified",
    "Move",
    "PeriodicInfo",
    "Pipeline",
    "PipelineWorker",
    "Pushed",
    "Station",
    "TableWorker",
    "Task",
    "TaskCancelled",
    "TaskColumnNames",
    "TaskInfo",
    "TaskLimits",
    "TaskLost",
    "TaskProgress",
    "TaskQueueInfo",
    "TaskStatistics",
    "TaskStats",
    "TaskTimeout",
    "TaskWorker",
    "Tasks",
    "To",
    "Unreadable",
    "current_job",
]


def __getattr__(name: str) -> object:
    """Import what needs an extra when it is first used."""
    if name in ("Flow", "Job", "PushOptions", "TaskApp"):
        from pgqpy.tasks._jobs import app

        return getattr(app, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
