"""Commands that run ready-made consumers, and manage what these work on."""
