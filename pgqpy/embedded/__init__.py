"""PostgreSQL without an installation: `Server`, for demos and tests."""

from pgqpy.embedded._programs import EmbeddedError, find_bin_dir
from pgqpy.embedded._server import Server

__all__ = ["EmbeddedError", "Server", "find_bin_dir"]
