"""Rows of an application's own table, processed as tasks."""
