"""Single values as text for people: numbers, intervals, foreign names.

Names and payloads come from outside, so they must not act as terminal control sequences.
"""

from __future__ import annotations

from datetime import datetime, timedelta


def shown(value: object) -> str:
    """Return the text of a cell."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return rate(value)
        case timedelta():
            return duration(value)
        case datetime():
            return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        case _:
            return printable(str(value))


def duration(value: timedelta) -> str:
    """Format an interval in at most two units: ``12 ms``, ``3.4 s``, ``5 min 10 s``, ``3 d 4
    h``."""
    seconds = value.total_seconds()
    if seconds < 0:
        return f"-{duration(-value)}"
    if round(seconds, 3) < 1:
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
    """Format an interval in one unit, for narrow columns: ``12 ms``, ``3.4 s``, ``5 min``, ``3
    d``."""
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
