"""The sync client is what the generator makes of the asyncio one."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_change_of_the_source_or_by_hand_is_noticed(tmp_path: Path) -> None:
    """In a part of the modules; all others are looked at by ``make lint``."""
    for name in ("admin", "producer", "consumer/base"):
        for module in (f"{name}.py", f"{name}_async.py"):
            copy = tmp_path / "pgqpy" / module
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / "pgqpy" / module, copy)
    (tmp_path / "pgqpy" / "__init__.py").touch()
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "async_to_sync.py", tmp_path / "tools")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    source = tmp_path / "pgqpy" / "admin_async.py"
    source.write_text(source.read_text().replace("async def version", "async def versions"))
    generated = tmp_path / "pgqpy" / "consumer" / "base.py"
    generated.write_text(generated.read_text() + "\n# by hand\n")
    result = subprocess.run(
        [sys.executable, tmp_path / "tools" / "async_to_sync.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    stale = set(re.findall(r"pgqpy/[\w/]+\.py", result.stdout))
    assert stale == {"pgqpy/admin.py", "pgqpy/consumer/base.py"}, result.stdout


def test_nothing_of_asyncio_is_left_in_the_sync_modules() -> None:
    for source in (ROOT / "pgqpy").rglob("*_async.py"):
        generated = source.with_name(source.name.replace("_async", "")).read_text()
        code = generated.replace(str(source.relative_to(ROOT)), "").replace("async_to_sync", "")
        assert "await " not in code
        assert "Async" not in code
