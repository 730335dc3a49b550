"""PostgreSQL without an installation: `Server`, for demos and tests."""

from pgqpy.embedded.binaries import find_bin_dir
from pgqpy.embedded.errors import EmbeddedError
from pgqpy.embedded.server import Server

__all__ = ["EmbeddedError", "Server", "find_bin_dir"]
