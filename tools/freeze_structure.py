"""Copy the structure section of sql/ into the newest revision.

Only as long as that revision is unreleased. Once it is in users' databases it
is never changed again: what changes then in sql/ needs a new revision.
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
