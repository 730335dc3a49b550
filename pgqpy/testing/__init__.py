"""Help for tests of applications that use pgqpy: a database for each test, and draining consumers.

`pgqpy.pytest_plugin` makes fixtures of it; see docs/testing.md.
"""

from pgqpy.testing._eager import eager, run_job
from pgqpy.testing._scratch import ScratchDatabase

__all__ = ["ScratchDatabase", "eager", "run_job"]
