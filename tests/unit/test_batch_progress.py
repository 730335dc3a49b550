"""A batch's progress as the name of a session, there and back."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pgqpy.consumer.progress import BatchProgress

SECONDS = timedelta(seconds=12)


@pytest.mark.parametrize(
    "progress", [BatchProgress(42, SECONDS), BatchProgress(2**62, SECONDS, 99_999, 100_000)]
)
@pytest.mark.parametrize("consumer", ["report", "ein ausführlicher Bericht " * 9])
def test_what_a_session_is_called_tells_the_progress(
    progress: BatchProgress, consumer: str
) -> None:
    name = progress.session_name(consumer)
    # The server cuts longer ones.
    assert len(name) <= 63
    assert BatchProgress.from_session_name(name) == progress


@pytest.mark.parametrize(
    "name",
    [
        *("", "psql", "pgqpy report", "pgqpy batch x, 1 s: report"),
        # More than an interval or a bigint holds.
        *("pgqpy batch 1, 99999999999999999 s: x", f"pgqpy batch {10**25}, 1 s: x"),
    ],
)
def test_other_sessions_tell_none(name: str) -> None:
    assert BatchProgress.from_session_name(name) is None
