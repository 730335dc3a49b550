"""The benchmarks run; what they measure is nobody's promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.any_pg, pytest.mark.slow]

CHECKOUT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["produce", "log_churn"])
def test_a_benchmark_runs_and_prints_its_contestants(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", "--quick", "--pg", "18"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert {"produce": "insert_events", "log_churn": "pgqpy"}[name] in done.stdout
