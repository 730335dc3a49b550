"""The commands on docs/tasks-cli.md work as they stand there."""

from __future__ import annotations

import shlex

from pgqpy.tasks import TaskApp, Tasks
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_db import Connection
from tests.fixtures.pages import blocks, text_of

PAGE = text_of("tasks-cli.md")


def test_the_page(cli: Cli, conn: Connection) -> None:
    tasks = Tasks(conn)
    for queue in ("mails", "mails.failed", "reports"):
        tasks.create_queue(queue)
    app = TaskApp("reports")
    app.periodic("0 2 * * *")(app.task(name="clean_up")(print_nothing))
    app.worker(cli.dsn).run(until_empty=True)
    # Number 17 is one of these.
    tasks.push_many("reports", range(20), delay=3600)
    tasks.push("mails")
    tasks.fail(tasks.try_claim("mails")[0], "timeout", final=True)

    lines = [line for block in blocks(PAGE, "sh") for line in block.splitlines()]
    run = [
        line for line in lines if line.startswith("pgqpy task") and "work" not in line.split()[:3]
    ]
    assert len(run) > 10
    for line in run:
        cli.ok(*shlex.split(line.removesuffix(" --watch"))[1:])
    assert tasks.list("mails.failed") == []
    assert tasks.list("reports", {"ids": [17]}) == []
    assert len(tasks.list("reports", {"priority": 9, "status": "available"})) == 19
    assert tasks.limits("mails")[0].max_running == 20


def print_nothing() -> None:
    """A job."""
