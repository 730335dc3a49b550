"""Help for the tests of whoever uses pgqpy: databases for one test, and consumers that are drained.

`pgqpy.pytest_plugin` makes fixtures of it; see docs/testing.md.
"""

from pgqpy.testing.scratch import ScratchDatabase

__all__ = ["ScratchDatabase"]
