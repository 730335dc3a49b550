"""Rows of an application's own table, worked off as tasks."""
