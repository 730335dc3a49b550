"""The first release.

Until the release, its structure is that of sql/. `make freeze` then copies it beside this file.
From then on it does not change: later revisions build on exactly that structure.
"""

from pathlib import Path

from alembic import op

from pgqpy.schema import Manifest
from pgqpy.schema._migration import execute_script

revision = "0001"
down_revision = None


def upgrade() -> None:
    frozen = Path(__file__).with_suffix(".sql")
    structure = (
        frozen.read_text(encoding="utf-8") if frozen.exists() else Manifest.load().sql("structure")
    )
    execute_script(op.get_context(), structure)


def downgrade() -> None:
    """Do nothing: below the first revision the schemas are dropped, with the version table."""
