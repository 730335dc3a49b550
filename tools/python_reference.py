"""Write docs/python-reference.md from the docstrings of what users import.

python tools/python_reference.py           writes it
python tools/python_reference.py --check   fails if it is not up to date
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

import griffe
from griffe2md import ConfigDict, render_object_docs

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "python-reference.md"

INTRODUCTION = """\
# Python reference

Generated from the docstrings by `tools/python_reference.py`. `AsyncConsumer`, `AsyncProducer`,
`AsyncAdmin`, `AsyncBatch` and `AsyncDeadLetters` are the same for asyncio: what does I/O is awaited
there.
"""

OBJECTS = (
    "pgqpy.Consumer",
    "pgqpy.CoopConsumer",
    "pgqpy.GroupConsumer",
    "pgqpy.GroupAdmin",
    "pgqpy.RemoteConsumer",
    "pgqpy.SerialConsumer",
    "pgqpy.TrackedConsumer",
    "pgqpy.Batch",
    "pgqpy.Event",
    "pgqpy.FixedDelay",
    "pgqpy.ExponentialBackoff",
    "pgqpy.Retry",
    "pgqpy.DeadLetter",
    "pgqpy.DeadLetters",
    "pgqpy.DeadLetterFilter",
    "pgqpy.DeadLetterInfo",
    "pgqpy.Producer",
    "pgqpy.NewEvent",
    "pgqpy.Admin",
    "pgqpy.connect",
    "pgqpy.tasks.Tasks",
    "pgqpy.tasks.TaskWorker",
    "pgqpy.tasks.Move",
    "pgqpy.tasks.Task",
    "pgqpy.tasks.TaskInfo",
    "pgqpy.tasks.TaskQueueInfo",
    "pgqpy.tasks.TaskStats",
    "pgqpy.tasks.Modified",
    "pgqpy.tasks.FinishedTask",
    "pgqpy.tasks.TaskStatistics",
    "pgqpy.tasks.Pipeline",
    "pgqpy.tasks.To",
    "pgqpy.tasks.PipelineWorker",
    "pgqpy.tasks.app.TaskApp",
    "pgqpy.tasks.app.Job",
    "pgqpy.tasks.app.PushOptions",
    "pgqpy.tasks.current.CurrentJob",
    "pgqpy.tasks.current.current_job",
    "pgqpy.tasks.current.TaskCancelled",
    "pgqpy.tasks.progress",
    "pgqpy.tasks.TableWorker",
    "pgqpy.tasks.TaskColumnNames",
    "pgqpy.values",
    "pgqpy.errors",
    "pgqpy.schema.migrate",
    "pgqpy.schema.downgrade",
    "pgqpy.embedded.Server",
    "pgqpy.sqlalchemy.Producer",
    "pgqpy.sqlalchemy.Capture",
    "pgqpy.sqlalchemy.captures_of",
    "pgqpy.sqlalchemy.declare_capture",
    "pgqpy.sqlalchemy.ModelWorker",
    "pgqpy.sqlalchemy.TaskColumns",
    "pgqpy.sqlalchemy.task_columns",
    "pgqpy.sqlalchemy.libpq_dsn",
    "pgqpy.testing.ScratchDatabase",
    "pgqpy_consumers.queue_mover.QueueMover",
    "pgqpy_consumers.events_to_tasks.EventsToTasks",
    "pgqpy_consumers.events_to_tasks.NewTask",
    "pgqpy_consumers.queue_splitter.QueueSplitter",
    "pgqpy_consumers.row_counter.RowCounter",
    "pgqpy_consumers.email_sender.EmailSender",
    "pgqpy_consumers.email_sender.Mail",
    "pgqpy_consumers.webhook.Webhook",
    "pgqpy_consumers.settings.setting",
    "pgqpy_consumers.spark.SparkConsumer",
    "pgqpy_consumers.spark.tasks.PgqTaskDataSource",
    "pgqpy_consumers.spark.Archive",
    "pgqpy_consumers.spark.Replay",
    "pgqpy_consumers.spark.Selection",
    "pgqpy_consumers.spark.latest_rows",
    "pgqpy_consumers.spark.pinned",
    "pgqpy_consumers.spark.table_schema",
    "pgqpy_ticker.Config",
)

CONFIG = ConfigDict(
    docstring_style="google",
    filters=["!^_"],
    heading_level=2,
    members_order="source",
    show_bases=True,
    show_root_full_path=True,
    show_signature_annotations=True,
    show_submodules=False,
    summary=False,
)


def page() -> str:
    paths = [ROOT, ROOT / "ticker", ROOT / "consumers"]
    loader = griffe.GriffeLoader(search_paths=paths, docstring_parser="google")
    for package in sorted({name.partition(".")[0] for name in OBJECTS}):
        loader.load(package)
    loader.resolve_aliases()
    items = [item for name in OBJECTS for item in _objects(loader.modules_collection[name])]
    return "\n".join([INTRODUCTION, *map(_rendered, items)])


def _objects(item: griffe.Object | griffe.Alias) -> Iterable[griffe.Object]:
    """The object that a name stands for; of a module, its classes."""
    target = item.final_target if isinstance(item, griffe.Alias) else item
    return target.classes.values() if target.is_module else (target,)


def _rendered(item: griffe.Object) -> str:
    """Without the links: they are for a site that has a page, and anchors, for every name."""
    text = re.sub(r"\[([^]]+)\]\(#[^)]+\)", r"\1", render_object_docs(item, CONFIG))
    lines = text.splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


def main() -> int:
    text = page()
    if "--check" in sys.argv[1:]:
        if PAGE.read_text(encoding="utf-8") != text:
            print(
                f"{PAGE.relative_to(ROOT)} is not up to date: run python tools/python_reference.py"
            )
            return 1
        return 0
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
