"""What is sent to PostgreSQL and read from it: statements, COPY, the texts of rows."""
