"""Messages to PostgreSQL and from it: statements, COPY, the texts of rows."""
