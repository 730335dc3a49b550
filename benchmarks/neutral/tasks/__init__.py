"""Tasks in the neutral benchmark."""
