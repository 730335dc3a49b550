"""Other queues, each at work as its own documentation wants it."""
