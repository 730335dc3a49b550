"""The console's view of Spark and replication."""

from __future__ import annotations

from datetime import timedelta

from pgqpy import Admin
from pgqpy.consumer.progress import BatchProgress
from tests.fixtures.fix_console import HOST, OWNER, ROLE, Client, csrf, get, post
from tests.fixtures.fix_db import Connect, Connection, MakeRole


def test_sessions_of_spark_tell_what_they_do(
    conn: Connection, queue: str, connect: Connect, client: Client
) -> None:
    Admin(conn).register_consumer(queue, "<i>sums")
    progress = BatchProgress(17, timedelta(seconds=61), 3, 8)
    names = ["pgqpy <i>sums stream", "pgqpy spark read", progress.session_name("daily")]
    sessions = [connect(application_name=name) for name in names]
    connect(application_name="pgqpy streaming service")
    # A role without any right may name its session like this.
    connect(application_name="pgqpy batch 1, 99999999999999999 s: x")
    for url in ("/", "/queues", "/consumers", "/database"):
        get(client, url)
    page = get(client, "/spark")
    for session in sessions:
        assert f'class="n">{session.info.backend_pid}</th>' in page
    assert page.count('scope="row" class="n"') == 3
    assert "&lt;i&gt;sums" in page
    assert "<i>" not in page
    assert f"/consumer?queue={queue}&amp;name=%3Ci%3Esums" in page
    assert "batch 17 for" in page
    assert "3 of 8 tasks" in page


def test_an_archive_shows_how_far_it_is_and_where(
    conn: Connection, queue: str, connect: Connect, client: Client
) -> None:
    Admin(conn).register_consumer(queue, "archive")
    tick = Admin(conn).get_consumer_info(queue, "archive")[0].last_tick
    work = "archive 1.2.dev3+x: {} to {}"
    assert "No archiver is connected" in get(client, "/spark")
    names = [work.format(queue, "s3a://<i>lake"), work.format("gone", "/" + "x" * 63)]
    connect(application_name=f"pgqpy {names[0]}")
    connect(application_name=f"pgqpy {names[1]}"[:63])
    page = get(client, "/spark").partition("<h2>Archives</h2>")[2]
    assert "s3a://&lt;i&gt;lake" in page
    assert f'<td class="n">{tick}</td>' in page
    assert "xxx…" in page
    page = get(client, f"/consumer?queue={queue}&name=archive")
    assert page.count("1.2.dev3+x") == 2


def test_replicated_tables_show_their_states_the_failed_ones_first(
    conn: Connection, client: Client
) -> None:
    for name, state in (("a", "in_step"), ("b", "failed")):
        conn.execute(
            "insert into pgq_ext.replica_table (rpt_queue, rpt_consumer, rpt_source_schema,"
            " rpt_source_table, rpt_target_schema, rpt_target_table, rpt_state, rpt_error,"
            " rpt_waiting) values ('q', 'c', 'public', %s, 'copy', %s, %s, 'no <b>room', true)",
            [name, name, state],
        )
    conn.execute(
        "insert into pgq_ext.replica_event (rpe_table, ev_id, ev_txid, ev_type, ev_extra1)"
        " select rpt_id, n, n, 'I:id', 'public.b'"
        "   from pgq_ext.replica_table, generate_series(1, 3) n where rpt_source_table = 'b'"
    )
    conn.execute("select pgq_ext.set_last_tick('mover', 4711)")
    page = get(client, "/spark")
    assert page.index("copy.b") < page.index("copy.a")
    assert "no &lt;b&gt;room" in page
    assert '<td class="n">3</td>' in page
    assert "mover" in page
    assert "4,711" in page


def test_a_stream_that_writes_is_forgotten_by_right_only(
    conn: Connection, queue: str, client: Client, make_role: MakeRole
) -> None:
    conn.execute("select pgq.write_stream_batch(%s, 'sums', 'id 1', 7)", [queue])
    Admin(conn).register_consumer(queue, "c")
    fields = {"action": "forget", "queue": queue, "writer": "sums"}
    reader, stranger = make_role("reader", "pgq_reader"), make_role("stranger")
    assert "sums" in get(client, "/spark", reader)
    own = csrf(get(client, f"/consumer?queue={queue}&name=c", reader))
    headers = {ROLE: reader, "Origin": HOST}
    refused = client.post("/spark", data=fields | {"csrf": own}, headers=headers)
    assert refused.status_code == 403
    assert "Forget" not in get(client, "/spark", reader)
    assert "Forget" not in get(client, "/spark", stranger)
    assert get(client, "/spark", stranger).count("Your role may not see them.") == 3
    wrong = fields | {"writer": "other"}
    assert post(client, "/spark", OWNER, **wrong).status_code == 409
    assert post(client, "/spark", OWNER, **fields).status_code == 303
    assert conn.execute("select from pgq.stream_writer").fetchall() == []
