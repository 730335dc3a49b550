"""The console's view of ticker and database."""

from __future__ import annotations

import re

from tests.fixtures.fix_client import wait_until
from tests.fixtures.fix_console import Client, get
from tests.fixtures.fix_db import Connect, MakeRole
from tests.fixtures.fix_ticker import StartTicker


def test_what_holds_back_the_horizon_is_named_and_the_doctor_says_the_rest(
    queue: str, connect: Connect, client: Client
) -> None:
    holder = connect(autocommit=False, application_name="<i>report</i>")
    holder.execute("create temporary table held ()")
    page = get(client, "/database")
    assert str(holder.info.backend_pid) in page
    assert "&lt;i&gt;report&lt;/i&gt;" in page
    assert "No pgqpy ticker is connected" in page
    assert f"/queue?name={queue}" in page
    for check in ("old transactions", "notifications", "sequences", "settings"):
        assert f'<th scope="row">{check}</th>' in page
    assert "not tried here" in page
    holder.rollback()
    page = get(client, "/database")
    assert f'<td class="n">{holder.info.backend_pid}</td>' not in page


def test_the_leader_and_the_ticker_that_stands_by_are_told_apart(
    dsn: str, queue: str, client: Client, start_ticker: StartTicker
) -> None:
    leader = start_ticker(dsn)
    leader.hear("leading")
    standby = start_ticker(dsn, standby_period=0.05)
    pid = str(standby.hear("standing by")["leader_pid"])
    (first, state, took), (second, waits, _) = tickers(client)
    assert (first, state, waits) == (pid, "leads", "stands by")
    assert took == "works now" or took.endswith("s")
    leader.kill()
    standby.hear("leading")
    # The session of the other one has lost the lead a moment before it is gone.
    wait_until(lambda: [row[:2] for row in tickers(client)] == [(second, "leads")])


def tickers(client: Client) -> list[tuple[str, ...]]:
    """The rows of the tickers' table: session, state, and how long its last statement took."""
    table = get(client, "/database").partition('id="live_tickers"')[2].partition("</table>")[0]
    rows = [re.sub(r"<[^>]*>", "|", row) for row in table.split("<tr>")[2:]]
    cells = [[text for text in row.split("|") if text.strip()] for row in rows]
    return [(row[0], row[1], row[-2]) for row in cells]


def test_a_role_is_told_what_it_may_not_see(
    connect: Connect, client: Client, make_role: MakeRole
) -> None:
    holder = connect(autocommit=False)
    holder.execute("create temporary table secrets ()")
    page = get(client, "/database", make_role("stranger"))
    assert "your role may not see it" in page
    assert "grant pg_monitor to" in page
    assert "temporary table secrets" not in page
