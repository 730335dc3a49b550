"""What a check says: a verdict, the reason, and what mends it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How something is, from the best to the worst."""

    OK = "ok"
    NOTE = "note"  # worth knowing; also if the role may not look
    WARNING = "warning"  # becomes a problem if it stays so
    PROBLEM = "problem"  # events, tasks or rotation wait for it

    @property
    def rank(self) -> int:
        """Its place in that order."""
        return list(Verdict).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found: the verdict, the reason, and a command or statement that mends it."""

    check: str
    verdict: Verdict
    message: str
    remedy: str | None = None


def ok(message: str) -> Finding:
    return Finding("", Verdict.OK, message)


def note(message: str, remedy: str | None = None) -> Finding:
    return Finding("", Verdict.NOTE, message, remedy)


def warning(message: str, remedy: str) -> Finding:
    return Finding("", Verdict.WARNING, message, remedy)


def problem(message: str, remedy: str) -> Finding:
    return Finding("", Verdict.PROBLEM, message, remedy)
