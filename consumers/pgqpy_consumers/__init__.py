"""Ready-made consumers of pgqpy queues."""
