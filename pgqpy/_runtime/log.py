"""The library's logger. Messages carry their values as fields (``extra``) for structured logs."""

from __future__ import annotations

import logging

logger = logging.getLogger("pgqpy")
