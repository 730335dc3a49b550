"""Signatures by which a receiver verifies the sender of a request and that it is unchanged.

Standard Webhooks: HMAC-SHA256 of "id.timestamp.body", in base64, after "v1,".
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence

PREFIX = "whsec_"


class Signer:
    """Signs with each of several secrets, so that a secret can be replaced while requests go on."""

    def __init__(self, secrets: Sequence[str]) -> None:
        """Each is ``whsec_`` and 24 to 64 bytes in base64. Raises ValueError, which quotes none."""
        self._keys = [_key(secret) for secret in secrets]

    def headers(self, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
        """The three headers; ``timestamp`` is in seconds since 1970."""
        signed = f"{message_id}.{timestamp}.".encode() + body
        signatures = [
            f"v1,{base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()}"
            for key in self._keys
        ]
        headers = {"webhook-id": message_id, "webhook-timestamp": str(timestamp)}
        return headers | ({"webhook-signature": " ".join(signatures)} if signatures else {})


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        raise ValueError("a secret is no base64") from None
    if not 24 <= len(key) <= 64:
        raise ValueError(f"a secret has {len(key)} bytes; it must have 24 to 64")
    return key
