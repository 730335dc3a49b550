"""Events as signed HTTP requests, by the Standard Webhooks specification (standardwebhooks.com)."""

try:
    from pgqpy_consumers.webhook.consumer import Webhook
except ModuleNotFoundError as error:
    if error.name != "httpx":
        raise
    raise ImportError('webhooks need httpx: pip install "pgqpy[webhook]"') from error
from pgqpy_consumers.webhook._request import EndpointGone, Refused, Signer

__all__ = ["EndpointGone", "Refused", "Signer", "Webhook"]
