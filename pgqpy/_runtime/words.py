"""Values in words, for people: intervals, sizes, rates, numbers of things."""

from __future__ import annotations

import re
from datetime import timedelta

# JSON itself escapes those before the space.
_CONTROLS = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def duration(value: timedelta) -> str:
    """Format an interval in at most two units: ``12 ms``, ``3.4 s``, ``5 min 10 s``."""
    seconds = value.total_seconds()
    if seconds < 0:
        return f"-{duration(-value)}"
    if 0 < round(seconds, 3) < 1:
        return f"{seconds * 1000:.0f} ms"
    if round(seconds, 1) < 60:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    if whole < 3600:
        size, unit, smaller, below = 60, "min", 1, "s"
    elif whole < 86400:
        size, unit, smaller, below = 3600, "h", 60, "min"
    else:
        size, unit, smaller, below = 86400, "d", 3600, "h"
    rest = whole % size // smaller
    return f"{whole // size} {unit}" + (f" {rest} {below}" if rest else "")


def brief(value: timedelta) -> str:
    """Format an interval in one unit, for narrow columns: ``12 ms``, ``3.4 s``, ``5 min``."""
    number, unit = duration(value).split(" ")[:2]
    return f"{number} {unit}"


def ago(value: timedelta | None) -> str:
    """Format the time since something."""
    return "never" if value is None else f"{duration(value)} ago"


def plural(number: int, noun: str) -> str:
    """Format a number of things: ``1 event``, ``2,000 events``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def rate(value: float) -> str:
    """Format a rate a second, with its significant digits."""
    return f"{value:,.0f}" if round(value, 1) >= 10 or value == 0 else f"{value:.1f}"


def printable(text: str) -> str:
    """Return the text with control characters escaped, so that terminals do not obey them."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_json(text: str) -> str:
    """Return the same JSON, with control characters escaped."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def size(value: float) -> str:
    """Format a number of bytes: ``120 kB``, ``1.2 GB``."""
    units = iter(("bytes", "kB", "MB", "GB", "TB"))
    unit = next(units)
    while value >= 1000 and unit != "TB":
        value, unit = value / 1000, next(units)
    return f"{value:.0f} {unit}" if value >= 10 or unit == "bytes" else f"{value:.1f} {unit}"
