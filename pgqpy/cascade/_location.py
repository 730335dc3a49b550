"""What the connection string of another node may say."""

from __future__ import annotations

import pgqpy.dsn
from pgqpy.errors import CascadeError

#: Where to connect, and how. Others choose a file of this machine, hand on its credentials, or
#: (hostaddr) send the password that a password file has for one host to another.
_ALLOWED = frozenset(
    (
        *("host", "port", "dbname", "user", "password", "service", "options"),
        *("application_name", "client_encoding", "connect_timeout", "tcp_user_timeout"),
        *("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count"),
        *("target_session_attrs", "load_balance_hosts", "channel_binding", "require_auth"),
        *("sslmode", "sslnegotiation", "sslsni", "sslrootcert", "gssencmode"),
    )
)


def usable(location: str) -> str:
    """Return the location of a node. Raises CascadeError if it could lead passwords astray: it was
    read in a database whose administrators need not be trusted with those of others."""
    names = pgqpy.dsn.parse(location).keys()
    refused = names - _ALLOWED
    if "service" in names:
        # The service may have a password, for the host that it names.
        refused |= names & {"host", "port"}
    if refused:
        raise CascadeError(
            f"the location of a node may not set {', '.join(sorted(refused))}"
            + (" beside service" if refused <= _ALLOWED else ""),
            hint="register another one, pgq_node.register_location(), or create the node with"
            " --location; files and credentials are set by each program's environment, such as"
            " PGSSLCERT",
        )
    return location
