"""Events in the neutral benchmark."""
