"""A span that does nothing, and the trace that an event or a task carries."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

EVENTS = "pgq"
TASKS = "pgq_task"

#: The names of W3C's headers.
_HEADERS = ("traceparent", "tracestate")


#: An ev_extra4 with nothing else.
_TEXT = re.compile(r'\{"traceparent":"[0-9a-f-]{55}"\}')


class Span:
    """A block that is measured; this class, for when telemetry is off, does nothing."""

    #: The number of events or tasks, to be set within the block if they may be several.
    count: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass


OFF = Span()


def carried(item: Any) -> dict[str, str]:
    """Return W3C's headers of an event's or a task's trace; empty if it has none."""
    if hasattr(item, "headers"):
        return _headers_in(item.headers)
    try:
        return carried_by(item.extra4)
    except ValueError:  # Its texts are not UTF-8.
        return {}


def carried_by(extra4: str | None) -> dict[str, str]:
    """Return W3C's headers in an event's ev_extra4."""
    if extra4 is None or '"traceparent"' not in extra4:
        return {}
    if _TEXT.fullmatch(extra4):
        return {"traceparent": extra4[16:-2]}
    try:
        return _headers_in(json.loads(extra4))
    except ValueError:
        return {}


def _headers_in(found: object) -> dict[str, str]:
    if not isinstance(found, Mapping) or "traceparent" not in found:
        return {}
    return {name: value for name in _HEADERS if isinstance(value := found.get(name), str)}
