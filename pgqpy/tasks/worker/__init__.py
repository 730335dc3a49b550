"""Workers of tasks: what is claimed, what becomes of it, and how they wait for more."""
