"""The README does what it says, block by block, from top to bottom."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from pgqpy.embedded import Server
from tests.fixtures.fix_db import Connect
from tests.fixtures.fix_example import SPARK_PATIENCE, Run
from tests.fixtures.fix_ticker import eventually

README = (Path(__file__).parents[2] / "README.md").read_text()
STORY = README.partition("## In two minutes")[2]
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", STORY, re.MULTILINE | re.DOTALL)
# The test has a database, and is installed.
BEFORE = ("pip install", "export PGQPY_DSN")


@pytest.mark.every_pg
def test_it(
    server: Server,
    empty_dsn: str,
    connect: Connect,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PGQPY_DSN", empty_dsn)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{server.bin_dir}:/usr/bin:/bin")

    def do(*command: str, text: str = "") -> str:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=SPARK_PATIENCE, check=False
        )
        assert done.returncode == 0, f"{command}\n{text}\n{done.stderr}"
        return done.stdout

    conn = connect(empty_dsn)
    said = []
    for (language, text), (_, following) in pairwise([*BLOCKS, ("", "")]):
        saved_as = re.match(r"python (\w+\.py) &", following)
        if language == "sql":
            do("psql", "-qv", "ON_ERROR_STOP=1", empty_dsn, text=text)
        elif saved_as:
            Path(saved_as[1]).write_text(text)
        elif language == "python":
            said.append(do("python", "-", text=text))
        else:
            lines = [line.partition("#")[0].strip() for line in text.splitlines()]
            for line in lines:
                if line.endswith("&"):
                    run(*line.removesuffix("&").split())
                elif not line.startswith(BEFORE):
                    do(*line.split())
            if "python revenue.py &" in lines:  # a reader takes longer than it to the next block
                eventually(conn, "select count(*) from pgq.get_consumer_info()")
    assert "ann@example.org\n" in said
    assert "|   sent| 1002|" in said[-1]
    eventually(conn, "select total = 1012.50 from revenue")
    eventually(
        conn, "select count(*) = 1 from pgq.event_template where ev_extra1 = 'public.account'"
    )
    assert "revenue" in do("pgqpy", "status")
