"""What the connection string of another node may say."""

from __future__ import annotations

import pgqpy.dsn
from pgqpy.errors import CascadeError


def usable(location: str) -> str:
    """Return the location of a node. Raises CascadeError if it could lead passwords astray: it was
    read in a database whose administrators need not be trusted with those of others."""
    if refused := pgqpy.dsn.astray(location):
        raise CascadeError(
            f"the location of a node may not set {refused}",
            hint="register another one, pgq_node.register_location(), or create the node with"
            " --location; files and credentials are set by each program's environment, such as"
            " PGSSLCERT",
        )
    return location
