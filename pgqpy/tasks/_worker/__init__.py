"""Workers of tasks: claims, outcomes, and waiting for more."""
