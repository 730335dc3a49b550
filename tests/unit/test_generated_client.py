"""The sync client is what the generator makes of the asyncio one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def check(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, root / "tools" / "async_to_sync.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what the generator reads and writes."""
    shutil.copytree(
        ROOT / "pgqpy", tmp_path / "pgqpy", ignore=shutil.ignore_patterns("__pycache__")
    )
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "async_to_sync.py", tmp_path / "tools")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_committed_sync_modules_are_up_to_date(tree: Path) -> None:
    result = check(tree)
    assert result.returncode == 0, result.stdout


@pytest.mark.slow
def test_a_change_of_the_source_makes_them_stale(tree: Path) -> None:
    source = tree / "pgqpy" / "admin_async.py"
    source.write_text(source.read_text().replace("async def version", "async def versions"))
    result = check(tree)
    assert result.returncode == 1
    assert "pgqpy/admin.py" in result.stdout


@pytest.mark.slow
def test_a_change_by_hand_is_noticed(tree: Path) -> None:
    generated = tree / "pgqpy" / "consumer" / "base.py"
    generated.write_text(generated.read_text() + "\n# by hand\n")
    assert "pgqpy/consumer/base.py" in check(tree).stdout


def test_nothing_of_asyncio_is_left_in_the_sync_modules() -> None:
    for source in (ROOT / "pgqpy").rglob("*_async.py"):
        generated = source.with_name(source.name.replace("_async", "")).read_text()
        code = generated.replace(str(source.relative_to(ROOT)), "").replace("async_to_sync", "")
        assert "await " not in code
        assert "Async" not in code
