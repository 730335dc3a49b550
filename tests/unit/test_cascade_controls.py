"""Which rows of a copy a worker of a cascaded queue keeps, and what it reads in them."""

from __future__ import annotations

import struct

from pgqpy._wire.copy_format import HEADER, TRAILER
from pgqpy.cascade import _statements as statements


def row(kind: str, data: str | None, extra1: str | None = None) -> bytes:
    """A row of a binary COPY, with numbers of no meaning."""
    fields = ["txid", "id", "time", None, kind, data, extra1, None, None, None]
    packed = (
        struct.pack(">i", -1) if each is None else struct.pack(">i", len(each)) + each.encode()
        for each in fields
    )
    return struct.pack(">h", len(fields)) + b"".join(packed)


def test_payloads_that_look_like_controls_are_not_kept() -> None:
    control = row("pgq.global-watermark", "7", "q")
    looks_so = [row("t", "pgq.global-watermark", "q"), row("pgq.location-info", "x" * 5000, "q")]
    kept = statements.control_rows([HEADER + looks_so[0], *looks_so, control, TRAILER])
    assert kept == [control]
    assert statements.control_rows([HEADER + control]) == [HEADER + control]
    assert statements.controls(kept, "q").watermark
    assert not statements.controls(kept, "other").watermark


def test_numbers_that_are_none_are_passed_over() -> None:
    ticks = "", "x", "9" * 30, "-1", "12"
    rows = [row("pgq.tick-id", each, f"part {each}") for each in ticks]
    assert statements.controls(rows, "q").parts == {"part 12": 12}
