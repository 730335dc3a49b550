"""The benchmarks run, and their page is written; the measured values are not checked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["bulk"])
def test_a_benchmark_runs_and_its_figures_are_on_the_page(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks", name),
            *("--quick", "--pg", "18", "--output", str(tmp_path)),
        ],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "results" / f"{name}.json").read_text())
    page = (tmp_path / "benchmarks.md").read_text()
    assert result["figures"]
    for figure in result["figures"]:
        assert figure["what"] in done.stdout + page
