"""The Alembic environment. `pgqpy.schema._migration` calls it and decides everything.

It hands over, as the configuration's attributes:

* ``connection``, in a transaction, when there is one (else SQL is printed);
* ``before`` and ``after``, scripts around the revisions in that transaction.
"""

from alembic import context

from pgqpy.schema._database import VERSION_SCHEMA, VERSION_TABLE
from pgqpy.schema._migration import execute_script

attributes = context.config.attributes
if context.is_offline_mode():
    context.configure(
        dialect_name="postgresql",
        version_table=VERSION_TABLE,
        version_table_schema=VERSION_SCHEMA,
    )
else:
    context.configure(
        connection=attributes["connection"],
        version_table=VERSION_TABLE,
        version_table_schema=VERSION_SCHEMA,
    )
with context.begin_transaction():
    execute_script(context.get_context(), attributes["before"])
    context.run_migrations()
    execute_script(context.get_context(), attributes["after"])
