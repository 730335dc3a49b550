"""The files of examples/deploy fit what there is: metrics, SQL, and entries of the runbook."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml  # type: ignore[import-untyped]

from pgqpy_ticker.metrics import page
from tests.fixtures.fix_db import Connection

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples" / "deploy"
METRICS = {
    name + suffix
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)", page([]), re.MULTILINE)
    for suffix in (("_bucket", "_count", "_sum") if kind == "histogram" else ("",))
}
RULES = [
    rule
    for group in yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]


def panels(name: str) -> list[dict[str, Any]]:
    """The panels of a dashboard, which have ids and places of their own."""
    found: list[dict[str, Any]] = json.loads((DEPLOY / name).read_text())["panels"]
    assert len({panel["id"] for panel in found}) == len(found)
    places = [tuple(panel["gridPos"][side] for side in "xywh") for panel in found]
    assert all(x + w <= 24 for x, _, w, _ in places)
    assert len({(x, y) for x, y, _, _ in places}) == len(places)
    return found


def check_expression(expression: str) -> None:
    """Metrics are exported, and brackets are closed."""
    named = set(re.findall(r"\bpgqpy_\w+", expression))
    assert named
    assert named <= METRICS
    assert all(expression.count(a) == expression.count(b) for a, b in ("()", "{}", "[]"))


def test_panels_show_metrics_that_the_ticker_exports() -> None:
    for panel in panels("grafana-prometheus.json"):
        for target in panel["targets"]:
            check_expression(target["expr"])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_a_rule_has_a_metric_that_the_ticker_exports_and_an_entry_in_the_runbook(
    rule: dict[str, Any],
) -> None:
    check_expression(rule["expr"])
    assert rule["labels"]["severity"] in ("page", "ticket")
    url, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert url.endswith("/docs/runbook.md")
    assert anchor == rule["alert"].lower()
    assert f"\n## {rule['alert']}\n" in (ROOT / "docs" / "runbook.md").read_text()


def test_the_runbook_has_no_entry_without_a_rule() -> None:
    entries = re.findall(r"^## (\w+)$", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE)
    assert sorted(entries) == sorted(rule["alert"] for rule in RULES)


def test_the_sql_of_panels_runs_as_a_reader(conn: Connection, queue: str) -> None:
    """With rows: a mistake in what is selected may be seen only then."""
    conn.execute("select pgq.register_consumer(%s, 'c')", [queue])
    conn.execute("select pgq_task.create_queue('mails')")
    conn.execute("select pgq.insert_event(%s, 't', 'd')", [queue])
    conn.execute("select pgq.force_tick(%s)", [queue])
    conn.execute("select pgq.ticker(%s)", [queue])
    ((batch,),) = conn.execute("select pgq.next_batch(%s, 'c')", [queue])
    conn.execute("select pgq.note_failure(%s, 'no', null)", [batch])
    rows = {}
    with conn.transaction():
        conn.execute("set local role pgq_reader")
        for panel in panels("grafana-sql.json"):
            (target,) = panel["targets"]
            try:
                rows[panel["title"]] = conn.execute(target["rawSql"]).fetchall()
            except psycopg.Error as error:
                pytest.fail(f"{panel['title']}: {error}")
    filled = {title for title, found in rows.items() if found}
    assert filled >= {"What fails", "Queues", "Lag of consumers", "Task queues"}
