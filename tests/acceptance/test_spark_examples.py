"""The Spark examples against SQL: run as their texts say, killed, and on a cluster."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from runpy import run_path

import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_example import EXAMPLES, SPARK_PATIENCE, Program, Run
from tests.fixtures.fix_ticker import eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def shop(conn: Connection, start: Run) -> str:
    """The queue of a shop that has got a thousand orders."""
    assert start("spark_shop.py").finish() == ["1,000 orders placed"]
    ops.tick(conn, "shop")
    return "shop"


def order(conn: Connection, placed_at: str) -> None:
    """One more, and a tick."""
    conn.execute(
        "insert into shop_order (country, amount, placed_at) values ('DE', 500, %s)", [placed_at]
    )
    ops.tick(conn, "shop")


def test_revenue_by_day_is_what_sql_says_without_what_came_too_late(
    conn: Connection, shop: str, start: Run, tmp_path: Path
) -> None:
    as_sql_says = """
        select array(select (day, orders, revenue)::text from daily_revenue order by day)
             = array(select ((placed_at at time zone 'UTC')::date, count(*), sum(amount))::text
                       from shop_order
                      where placed_at > now() - interval '8 days'
                      group by (placed_at at time zone 'UTC')::date
                      order by (placed_at at time zone 'UTC')::date)"""
    revenue = start("spark_daily_revenue.py", "--checkpoint", str(tmp_path))
    revenue.hear("batch 1: 0 days", SPARK_PATIENCE)  # which has a watermark
    assert ops.value(conn, as_sql_says)
    placed = conn.execute("select now() - '9 days'::interval, now() - '2 days'::interval")
    for placed_at in placed.fetchall()[0]:
        order(conn, placed_at)
    eventually(conn, as_sql_says, patience=SPARK_PATIENCE)
    assert revenue.interrupt() == 0
    assert not [line for line in revenue.lines if "Traceback" in line]


# The example as it is, which says that it has written and stops there.
HALTING = """
import sys, time
import spark_enrichment

def write_and_halt(df, batch_id, write=spark_enrichment.write):
    write(df, batch_id)
    print("written", flush=True)
    time.sleep(3600)

spark_enrichment.write = write_and_halt
spark_enrichment.main()
"""


def test_enriched_orders_are_written_once_though_the_driver_is_killed(
    conn: Connection, dsn: str, shop: str, start: Run, run: Run, tmp_path: Path
) -> None:
    arguments = ["--once", "--checkpoint", str(tmp_path)]
    environment = {"PGQPY_DSN": dsn, "PYTHONPATH": str(EXAMPLES)}
    conn.execute(run_path(str(EXAMPLES / "spark_enrichment.py"))["TABLES"])

    # Between the commits of PostgreSQL and of Spark.
    halting = run(sys.executable, "-c", HALTING, *arguments, environment=environment)
    halting.hear("written", SPARK_PATIENCE)
    halting.kill()
    assert ops.value(conn, "select count(*) from order_tax") == 1000

    start("spark_shop.py").finish()
    ops.tick(conn, shop)
    said = start("spark_enrichment.py", *arguments).finish(SPARK_PATIENCE)
    assert said == ["batch 0 is there already", "batch 1: 1,000 orders"]
    written = conn.execute("select order_id, country, tax from order_tax").fetchall()
    expected = conn.execute(
        "select id, name, amount * vat from shop_order left join country using (country)"
    ).fetchall()
    assert Counter(written) == Counter(expected)


def sent(conn: Connection) -> Counter[str]:
    """The invoices in the queue."""
    rows = conn.execute(
        "select ev_type || ev_data::jsonb::text from pgq.event_template"
        " where ev_type like 'invoice.%'"
    )
    return Counter(row[0] for row in rows)


def due(conn: Connection) -> Counter[str]:
    """The result that SQL computes from the orders."""
    rows = conn.execute(
        "select 'invoice.' || lower(country)"
        " || jsonb_build_object('order_id', id, 'amount', amount)::text"
        " from shop_order where amount >= 100"
    )
    return Counter(row[0] for row in rows)


def test_a_queue_gets_invoices_of_what_another_has_on_a_cluster(
    conn: Connection, dsn: str, shop: str, run: Run, tmp_path: Path
) -> None:
    def spark(command: str, *args: str, **environment: str) -> Program:
        program = str(Path(sys.executable).with_name(command))
        return run(program, *args, environment={"SPARK_LOCAL_IP": "127.0.0.1", **environment})

    package = "org.apache.spark.deploy"
    here = ("--host", "127.0.0.1", "--webui-port", "0")
    # Neither knows of the database: executors hear of it from the driver.
    master = spark("spark-class", f"{package}.master.Master", *here, "--port", "0")
    url = master.hear("spark://", SPARK_PATIENCE).split()[-1]
    at_work = ("--work-dir", str(tmp_path / "work"), "--cores", "2", "--memory", "1g")
    worker = spark("spark-class", f"{package}.worker.Worker", *here, *at_work, url)
    worker.hear("registered with master", SPARK_PATIENCE)
    example = (str(EXAMPLES / "spark_queue_to_queue.py"), "--once")
    submitted = spark(
        "spark-submit",
        *("--master", url, "--conf", "spark.driver.host=127.0.0.1"),
        *("--conf", "spark.ui.enabled=false"),
        *("--conf", f"spark.executor.extraJavaOptions={os.environ['SPARK_SUBMIT_OPTS']}"),
        *(*example, "--checkpoint", str(tmp_path / "checkpoint")),
        PGQPY_DSN=dsn,
    )
    submitted.finish(SPARK_PATIENCE)
    assert sent(conn) == due(conn)
    worker.hear("Asked to launch executor")
