"""``python -m pgqpy`` is the command line, for when the script is not on the path."""

from pgqpy.cli import main

if __name__ == "__main__":
    main(prog_name="python -m pgqpy")
