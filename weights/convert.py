"""Turns a checkpoint into an Orbax one, or back into a Hugging Face folder: the same as `grpojax convert`."""

import sys

from grpojax import cli


def main(arguments: list[str]) -> int:
    """Runs the command; returns its exit code, 2 for bad input."""
    return cli.main(["convert", *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
