"""The work queue: tasks that one of many workers takes, finishes, retries or buries.

For sync and for asyncio::

    Tasks(conn).push("mails", {"to": "..."})                # AsyncTasks
    TaskWorker(dsn, "mails", send).run()                    # AsyncTaskWorker
    TableWorker(dsn, "mail", send).run()                    # AsyncTableWorker
"""

from pgqpy.tasks.client import Tasks
from pgqpy.tasks.client_async import AsyncTasks
from pgqpy.tasks.finished import FinishedTask, TaskStatistics
from pgqpy.tasks.outcome import Move, TaskLost, TaskStats
from pgqpy.tasks.pipeline import Pipeline, Station, To
from pgqpy.tasks.stations import PipelineWorker
from pgqpy.tasks.stations_async import AsyncPipelineWorker
from pgqpy.tasks.table.columns import TaskColumnNames
from pgqpy.tasks.table.worker import TableWorker
from pgqpy.tasks.table.worker_async import AsyncTableWorker
from pgqpy.tasks.task import Modified, Pushed, Task, TaskInfo, TaskQueueInfo
from pgqpy.tasks.worker.worker import TaskWorker
from pgqpy.tasks.worker.worker_async import AsyncTaskWorker

__all__ = [
    "AsyncPipelineWorker",
    "AsyncTableWorker",
    "AsyncTaskWorker",
    "AsyncTasks",
    "FinishedTask",
    "Modified",
    "Move",
    "Pipeline",
    "PipelineWorker",
    "Pushed",
    "Station",
    "TableWorker",
    "Task",
    "TaskColumnNames",
    "TaskInfo",
    "TaskLost",
    "TaskQueueInfo",
    "TaskStatistics",
    "TaskStats",
    "TaskWorker",
    "Tasks",
    "To",
]
