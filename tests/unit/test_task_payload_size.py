"""A payload that is too large is refused here: the server would need a minute to refuse it."""

from __future__ import annotations

import pytest

from pgqpy.errors import PayloadTooLarge
from pgqpy.tasks._statements import jsonb

HALF = "x" * 2**27


@pytest.mark.parametrize("payload", [HALF + HALF, [{HALF: "ä" * 2**26}]], ids=["text", "parts"])
def test_a_payload_of_256_mib_is_refused_unsent(payload: object) -> None:
    with pytest.raises(PayloadTooLarge, match="more than 268,435,455 bytes") as no:
        jsonb(payload)
    assert no.value.sqlstate == "54000"


def test_a_payload_that_is_large_as_text_only_is_sent() -> None:
    assert len(jsonb(["\\" * 2**27])) > 2**28
