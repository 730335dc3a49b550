"""PgQ for Python and Spark: transactional event queues in PostgreSQL."""

__version__ = "0.1.0"
