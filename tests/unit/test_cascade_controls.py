"""What a worker of a cascaded queue reads in the rows of a copy, and keeps of it."""

from __future__ import annotations

import struct

from pgqpy._wire.copy_format import HEADER, TRAILER
from pgqpy.cascade._statements import News


def row(kind: str, data: str | None, extra1: str | None = None) -> bytes:
    """A row of a binary COPY, with numbers of no meaning."""
    fields = ["txid", "id", "time", None, kind, data, extra1, None, None, None]
    packed = (
        struct.pack(">i", -1) if each is None else struct.pack(">i", len(each)) + each.encode()
        for each in fields
    )
    return struct.pack(">h", len(fields)) + b"".join(packed)


def test_payloads_that_look_like_controls_are_no_news() -> None:
    looks_so = [row("t", "pgq.global-watermark", "q"), row("pgq.location-info", "x" * 5000, "q")]
    news = News("q", {})
    news.read([HEADER + looks_so[0], *looks_so, TRAILER])
    assert news == News("q", {})
    news.read([HEADER + row("pgq.global-watermark", "7", "other")])
    assert not news.watermark
    news.read([HEADER + row("pgq.global-watermark", "7", "q")])
    assert news.watermark


def test_numbers_that_are_none_are_passed_over() -> None:
    ticks = "", "x", "9" * 30, "-1", "12"
    news = News("q", {f"part {each}": 0 for each in ticks})
    news.read([row("pgq.tick-id", each, f"part {each}") for each in ticks])
    assert {part: tick for part, tick in news.parts.items() if tick} == {"part 12": 12}


def test_forged_news_do_not_pile_up_in_memory() -> None:
    news = News("q", {"part": 0})
    for number in range(3000):
        forged = row("pgq.tick-id", "7", str(number)), row("pgq.location-info", str(number), "q")
        news.read(forged)
    news.read([row("pgq.tick-id", "7", "part")])
    assert news.parts == {"part": 7}
    assert len(news.nodes) < 2000
    assert news.of_all_nodes
