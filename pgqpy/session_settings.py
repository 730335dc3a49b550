"""The settings that a session of ours relies on: a role or a database may have others.

All that open a connection set these. On a connection that a user gave us nothing may depend on
them, nor behind a pooler, which lends sessions that others have set up: there, arrays go in binary
(see `pgqpy.arrays`).
"""

from __future__ import annotations

#: By name. What libpq must know when it connects is client_encoding alone: see `ENCODING`.
SETTINGS = {
    # A NULL in the text of an array is no text.
    "array_nulls": "on",
    "bytea_output": "hex",
    # What psycopg reads: of dates any order of ISO's style.
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    # Of numbers all digits.
    "extra_float_digits": "1",
    # What is quoted here is quoted as the server reads it.
    "standard_conforming_strings": "on",
    "quote_all_identifiers": "off",
    "transform_null_equals": "off",
}

#: Text is Unicode, whatever the environment, the role or the database says.
ENCODING = {"client_encoding": "UTF8"}

#: Sets all of them for the session.
PIN = "select {}".format(
    ", ".join(
        f"pg_catalog.set_config('{name}', '{value}', false)" for name, value in SETTINGS.items()
    )
).encode()
