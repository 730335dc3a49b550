"""The files of examples/deploy fit what there is: metrics, SQL, and entries of the runbook."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml  # type: ignore[import-untyped]

from pgqpy_ticker.metrics import page
from tests.fixtures.fix_db import Connection
from tests.unit.test_cli_commands import check_example

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


# --- units, compose, Kubernetes

UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
MANIFESTS = [*yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())]


def containers() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each container, with the description of its pod."""
    for manifest in MANIFESTS:
        if "template" in manifest["spec"]:
            template = manifest["spec"]["template"]
            for container in template["spec"]["containers"]:
                yield container, template["spec"]


def commands() -> Iterator[list[str]]:
    for unit in UNITS:
        found = configparser.RawConfigParser(strict=False)
        found.read(unit)
        yield shlex.split(found["Service"]["ExecStart"])[1:]
    for service in COMPOSE["services"].values():
        if "command" in service:
            yield service["command"]
    for container, _ in containers():
        yield container["args"]


@pytest.mark.parametrize("command", [*commands()], ids=lambda command: shlex.join(command)[:40])
def test_a_service_runs_a_command_that_exists(command: list[str]) -> None:
    check_example(shlex.join(["pgqpy", *command]))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_knows_all_that_a_unit_says(unit: Path, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    # An instance, with a program that is here; systemd before 253 does not know notify-reload.
    text = re.sub("/opt/pgqpy/bin/pgqpy", "/bin/true", unit.read_text())
    copy = tmp_path / unit.name.replace("@", "@one")
    copy.write_text(text.replace("notify-reload", "notify"))
    done = subprocess.run([analyze, "verify", copy], check=False, capture_output=True, text=True)
    assert unit.stem.partition("@")[0] not in done.stdout + done.stderr


def test_what_the_compose_file_names_is_in_it() -> None:
    services = COMPOSE["services"]
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)
        assert {name.partition(":")[0] for name in service.get("volumes", [])} <= set(
            COMPOSE["volumes"]
        )
    assert services["schema"]["restart"] == "no"


def test_manifests_for_kubernetes_fit_together() -> None:
    labels = []
    for manifest in MANIFESTS:
        spec = manifest["spec"]
        if manifest["kind"] == "Deployment":
            labels.append(spec["template"]["metadata"]["labels"])
            assert spec["selector"]["matchLabels"] == labels[-1]
        elif manifest["kind"] == "Service":
            assert spec["selector"] in labels
    for container, _ in containers():
        ports = {port["name"] for port in container.get("ports", [])}
        for probe in [container[name] for name in container if name.endswith("Probe")]:
            assert next(iter(probe.values()))["port"] in ports
        assert container["securityContext"]["runAsNonRoot"]


def test_a_worker_has_more_time_to_stop_than_it_takes() -> None:
    """Each place says it in its own way."""
    given = [
        int(re.findall(r"TimeoutStopSec=(\d+)", unit.read_text())[0])
        for unit in UNITS
        if "--stop-timeout" in unit.read_text()
    ]
    given.append(int(COMPOSE["services"]["worker"]["stop_grace_period"].removesuffix("s")))
    given += [
        pod["terminationGracePeriodSeconds"]
        for container, pod in containers()
        if "--stop-timeout" in container["args"]
    ]
    takes = [int(args[args.index("--stop-timeout") + 1]) for args in commands() if "work" in args]
    assert len(given) == len(takes) == 3
    assert min(given) > max(takes)
