"""Commands about event queues."""
