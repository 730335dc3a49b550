"""Copy the structure section of sql/ beside the first revision: a step of its release.

From then on the copy is in users' databases and is never changed again: a change of the
structure needs a new revision.
"""

from pgqpy.schema import MIGRATIONS_DIR, Manifest, history


def main() -> None:
    newest = history()[-1]
    (revision,) = (MIGRATIONS_DIR / "versions").glob(f"{newest.id}_*.py")
    target = revision.with_suffix(".sql")
    target.write_text(Manifest.load().sql("structure"), encoding="utf-8")
    print(f"wrote {target}")


if __name__ == "__main__":
    main()
