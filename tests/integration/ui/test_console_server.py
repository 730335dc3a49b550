"""The console's view of ticker and database."""

from __future__ import annotations

from tests.fixtures.fix_console import ROLE, Console
from tests.fixtures.fix_db import Connect, Connection

STRANGER = "ui_test_stranger"


def test_what_holds_back_the_horizon_is_named_and_the_doctor_says_the_rest(
    dsn: str, conn: Connection, queue: str, connect: Connect, console: Console
) -> None:
    holder = connect(autocommit=False, application_name="<i>report</i>")
    holder.execute("create temporary table held ()")
    client = console(dsn)
    page = client.get("/database", headers={ROLE: "postgres"}).text
    assert str(holder.info.backend_pid) in page
    assert "&lt;i&gt;report&lt;/i&gt;" in page
    assert "No pgqpy ticker is connected" in page
    assert f"/queue?name={queue}" in page
    for check in ("old transactions", "notifications", "sequences", "settings"):
        assert f'<th scope="row">{check}</th>' in page
    assert "not tried here" in page
    holder.rollback()
    page = client.get("/database", headers={ROLE: "postgres"}).text
    assert f'<td class="n">{holder.info.backend_pid}</td>' not in page


def test_a_role_is_told_what_it_may_not_see(
    dsn: str, conn: Connection, connect: Connect, console: Console
) -> None:
    conn.execute(f"create role {STRANGER}".encode())
    holder = connect(autocommit=False)
    holder.execute("create temporary table secrets ()")
    try:
        page = console(dsn).get("/database", headers={ROLE: STRANGER})
        assert page.status_code == 200
        assert "your role may not see it" in page.text
        assert "grant pg_monitor to" in page.text
        assert "temporary table secrets" not in page.text
    finally:
        conn.execute(f"drop role {STRANGER}".encode())
