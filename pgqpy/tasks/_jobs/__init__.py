"""Functions as jobs, by which a program pushes and runs tasks."""
