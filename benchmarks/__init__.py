"""Commands that compare what pgqpy does with doing the same by hand, or with PgQ's C code.

Each (``python -m benchmarks.insert --help``) starts a server of its own, lets the contestants
take turns, and prints medians and, what matters more, their ratio. Times depend on the machine
and on what else runs on it; ratios from one run far less. Nothing here is a test.
"""
