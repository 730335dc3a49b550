"""``pgqpy doctor``: all checks, what is wrong first, with what mends it."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from itertools import groupby
from typing import TYPE_CHECKING

import click

from pgqpy._runtime.words import duration, plural, printable
from pgqpy.cli._base.command import Command, seconds_option, stuck_after_option
from pgqpy.cli._base.output import empty_table, json_option, show
from pgqpy.connection import Connection
from pgqpy.doctor import CHECKS, Finding, Report, Verdict, examine

if TYPE_CHECKING:
    from rich.console import RenderableType

#: The exit code by the worst finding; 1 and 2 are those of every command.
EXIT_CODES = {Verdict.OK: 0, Verdict.NOTE: 0, Verdict.WARNING: 3, Verdict.PROBLEM: 4}
#: The most findings of a check that are shown.
MOST = 5
_SIGNS = {
    Verdict.PROBLEM: ("✗", "bold red"),
    Verdict.WARNING: ("!", "bold yellow"),
    Verdict.NOTE: ("i", "cyan"),
    Verdict.OK: ("✓", "green"),
}


@click.command(cls=Command, role="pgq_reader")
@seconds_option(
    "--wait", 0, "Look twice, and forecast when disks are full and consumers have caught up."
)
@stuck_after_option
@json_option
@click.pass_context
def doctor(ctx: click.Context, conn: Connection, wait: float, stuck_after: float) -> None:
    """Check everything: what is wrong, why, and what mends it.

    It looks at the database, the ticker, queues, consumers and tasks. What is wrong comes first.
    It changes nothing, and takes less than 3 s, and the time of --wait. What your role may not look
    at is a note. The exit code is 0 if there are at most notes, 3 for warnings, 4 for problems, and
    1 if the database cannot be asked.

    Examples:
      pgqpy doctor
      pgqpy doctor --wait 10
      pgqpy doctor --json | jq '.findings[] | select(.verdict == "problem")'
    """
    patience = timedelta(seconds=stuck_after)
    report = show(lambda: examine(conn, stuck_after=patience, wait=wait), render)
    ctx.exit(EXIT_CODES[report.worst])


def render(report: Report) -> RenderableType:
    """Draw what is wrong, each with what mends it, and then what is not."""
    from rich.console import Group
    from rich.text import Text

    counts = Counter(each.verdict for each in report.findings)
    wrong = [each for each in Verdict if each is not Verdict.OK and counts[each]]
    summary = ", ".join(plural(counts[each], each.value) for each in reversed(wrong))
    heading = Text.assemble(
        (printable(report.database), "bold"),
        f" · PostgreSQL {report.server_version.split()[0]} · {len(CHECKS)} checks in "
        f"{duration(timedelta(seconds=report.seconds))} · ",
        (summary or "all is well", _SIGNS[report.worst][1]),
    )
    table = empty_table()
    table.show_header = False
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for _, group in groupby(report.findings, lambda each: (each.verdict, each.check)):
        alike = list(group)
        for each in alike[:MOST]:
            table.add_row(*_cells(each))
        if more := alike[MOST:]:
            table.add_row("", "", f"and {len(more)} more: pgqpy doctor --json")
    return Group(heading, "", table)


def _cells(finding: Finding) -> tuple[RenderableType, ...]:
    from rich.text import Text

    sign, style = _SIGNS[finding.verdict]
    said = Text(printable(finding.message))
    if finding.remedy:
        said.append(f"\n→ {printable(finding.remedy)}", "cyan")
    fine = finding.verdict is Verdict.OK
    return Text(sign, style), Text(finding.check, "" if fine else style), said
