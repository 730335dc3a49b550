"""The daemon's metrics over OpenTelemetry, read in its process by the SDK."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_ticker import PATIENCE, StartTicker, TickerProcess

#: At SIGUSR1 it logs what a reader collects then, and OpenTelemetry's modules.
PROGRAM = """
import json, os, signal, sys
from threading import Thread
from pgqpy.cli import main

reader = None
if os.environ.get("SDK"):
    from opentelemetry.metrics import set_meter_provider
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    reader = InMemoryMetricReader()
    set_meter_provider(MeterProvider([reader]))

def collect():
    data = reader and json.loads(reader.get_metrics_data().to_json())
    modules = [name for name in sys.modules if name.startswith("opentelemetry")]
    told = {"message": "collected", "data": data, "modules": modules}
    # At once: print() writes the end of the line later, and another thread logs.
    sys.stderr.write(json.dumps(told) + "\\n")

signal.signal(signal.SIGUSR1, lambda *_: Thread(target=collect).start())
"""
COMMAND = ("-c", PROGRAM + "main(['ticker', *sys.argv[1:]])")
MODULE = ("-c", PROGRAM + "from pgqpy_ticker.__main__ import main; sys.exit(main())")

#: By name and labels; of a histogram the counts up to each bound, and the sum.
Values: TypeAlias = dict[tuple[str, frozenset[tuple[str, str]]], float]


def key(name: str, labels: Mapping[str, str]) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def page(daemon: TickerProcess) -> tuple[dict[str, str], Values]:
    """The types of the metrics, and the samples, as Prometheus reads them."""
    families = list(text_string_to_metric_families(daemon.get("/metrics")[1]))
    types = {
        family.name + ("_total" if family.type == "counter" else ""): family.type
        for family in families
    }
    return types, {
        key(each.name, each.labels): each.value for family in families for each in family.samples
    }


def collected(daemon: TickerProcess, times: int) -> Any:
    daemon.send(signal.SIGUSR1)
    return daemon.hear("collected", times=times)["data"]


def values(data: Any) -> tuple[dict[str, str], Values]:
    """The same of OpenTelemetry's instruments."""
    types: dict[str, str] = {}
    found: Values = {}
    (resource,) = data["resource_metrics"]
    (scope,) = (each for each in resource["scope_metrics"] if each["scope"]["name"] == "pgqpy")
    for metric in scope["metrics"]:
        name, points = metric["name"], metric["data"]["data_points"]
        types[name] = "counter" if metric["data"].get("is_monotonic") else "gauge"
        for point in points:
            labels = point["attributes"]
            if "bucket_counts" not in point:
                found[key(name, labels)] = point["value"]
                continue
            types[name] = "histogram"
            total = 0
            bounds = [*map(str, point["explicit_bounds"]), "+Inf"]
            for bound, count in zip(bounds, point["bucket_counts"], strict=True):
                total += count
                found[key(f"{name}_bucket", labels | {"le": bound})] = total
            found[key(f"{name}_count", labels)] = point["count"]
            found[key(f"{name}_sum", labels)] = point["sum"]
    return types, found


FAILS = """
create schema shop;
create function shop.tidy_up(queue text) returns integer
language plpgsql as 'begin return 1 / 0; end';
update pgq.queue set queue_extra_maint = '{shop.tidy_up}';
"""


@pytest.mark.parametrize("how", [COMMAND, MODULE], ids=["command", "module"])
def test_opentelemetry_has_every_metric_of_the_page_with_its_labels_and_value(
    start_ticker: StartTicker, sleepy: Connection, how: tuple[str, ...]
) -> None:
    # Because it fails, the age of maintenance only grows, and there are failures to count.
    sleepy.execute(FAILS)
    sleepy.execute("select pgq_task.create_queue('mails')")
    daemon = start_ticker(
        sleepy.info.dsn,
        top='http = "127.0.0.1:0"',
        environment={"PGQPY_TELEMETRY": "1", "SDK": "1"},
        how=how,
        maintenance_period=0.5,
        observe_period=0.5,
    )
    ops.insert(sleepy, "q", "event")
    age = key("pgqpy_maintenance_age_seconds", {"database": "sleepy"})
    end = time.monotonic() + PATIENCE
    times = 0
    while True:
        times += 1
        types, before = page(daemon)
        otel_types, otel = values(collected(daemon, times))
        _, after = page(daemon)
        if age in before and otel_types == types:
            assert before.pop(age) < otel.pop(age) < after.pop(age)
            # If not, something has happened in between.
            if before == after:
                break
        assert time.monotonic() < end, (types, otel_types)
    assert otel == before


def test_without_it_the_daemon_imports_nothing_of_opentelemetry(
    start_ticker: StartTicker, dsn: str
) -> None:
    daemon = start_ticker(dsn, how=MODULE)
    daemon.hear("leading")
    daemon.send(signal.SIGUSR1)
    assert daemon.hear("collected")["modules"] == []


def test_if_the_extra_is_missing_it_ends_and_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "opentelemetry.py").write_text("raise ModuleNotFoundError")
    for program in ("pgqpy", "ticker"), ("pgqpy_ticker",):
        done = subprocess.run(
            [sys.executable, "-m", *program, "--dsn", "dbname=x"],
            check=False,
            capture_output=True,
            text=True,
            env=os.environ
            | {
                "PGQPY_TELEMETRY": "1",
                "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
            },
        )
        assert done.returncode in {1, 2}
        (line,) = done.stderr.splitlines()
        assert 'telemetry needs OpenTelemetry: pip install "pgqpy[otel]"' in line
