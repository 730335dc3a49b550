"""The README and the tutorial do what they say, block by block, from top to bottom."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgqpy.embedded import Server
from tests.fixtures.fix_db import Connect
from tests.fixtures.fix_ticker import eventually
from tests.fixtures.pages import Reader, all_blocks, text_of


@pytest.fixture
def reader(
    server: Server, empty_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Reader]:
    """A reader with an empty database and an empty folder."""
    monkeypatch.chdir(tmp_path)
    path = f"{Path(sys.executable).parent}:{server.bin_dir}:/usr/bin:/bin"
    with Reader({"PGQPY_DSN": empty_dsn, "PATH": path}) as reader:
        yield reader


@pytest.mark.slow
def test_the_readme(reader: Reader, empty_dsn: str, connect: Connect) -> None:
    conn = connect(empty_dsn)
    said = []
    for block in all_blocks(text_of("../README.md").partition("## In two minutes")[2]):
        said.append(reader.do(block))
        if "python revenue.py &" in block.text:  # a reader takes longer than it to the next block
            eventually(conn, "select count(*) from pgq.get_consumer_info()")
    assert any("ann@example.org\n" in text for text in said)
    assert "|   sent| 1002|" in said[-1]
    eventually(conn, "select total = 1012.50 from revenue")
    eventually(
        conn, "select count(*) = 1 from pgq.event_template where ev_extra1 = 'public.account'"
    )


def test_the_tutorial(reader: Reader) -> None:
    for block in all_blocks(text_of("tutorial.md")):
        reader.do(block)
