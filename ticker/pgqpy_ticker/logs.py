"""The daemon's log."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import IO, Any

from pgqpy import log

LOGGER = "pgqpy.ticker"


class Log(logging.LoggerAdapter[logging.Logger]):
    """A logger for one database; ``extra`` adds fields to one line."""

    def __init__(self, **fields: object) -> None:
        super().__init__(logging.getLogger(LOGGER), fields)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


def setup(level: str, form: str, stream: IO[str] | None = None) -> None:
    """Send this package's lines to ``stream``, by default stderr.

    ``form`` is auto, text, logfmt or json.
    """
    log.setup(LOGGER, level, form, stream)
