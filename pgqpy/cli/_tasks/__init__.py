"""Commands about task queues."""
