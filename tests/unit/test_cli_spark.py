"""The command line stays quick for users without Spark."""

from __future__ import annotations

import subprocess
import sys


def test_spark_is_not_imported_before_a_command_needs_it() -> None:
    # Not in this process, where others may have imported it.
    code = "import sys, pgqpy.cli; print(*{'pyspark', 'pandas', 'pyarrow'} & {*sys.modules})"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "\n"
