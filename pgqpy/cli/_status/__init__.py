"""``pgqpy status``."""
