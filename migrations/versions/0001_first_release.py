"""The first release.

Its SQL was copied from sql/ when the release was made, and is not changed any
more: later revisions build on exactly this.
"""

from pathlib import Path

from alembic import op

from pgqpy.schema.migration import execute_script

revision = "0001"
down_revision = None


def upgrade() -> None:
    structure = Path(__file__).with_suffix(".sql").read_text(encoding="utf-8")
    execute_script(op.get_context(), structure)


def downgrade() -> None:
    """Nothing: below the first revision the schemas are dropped, with the version table."""
