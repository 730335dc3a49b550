"""``python -m benchmarks``."""

from benchmarks.runner import main

main()
