"""Turns a checkpoint into an Orbax one, or back into a Hugging Face folder."""

import argparse
import sys

from grpojax.errors import InputError
from grpojax.qwen.tokenizer import KINDS
from grpojax.qwen.weights import DTYPES, FORMATS, convert_checkpoint


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit code, 2 for input that cannot be used."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", help="folder, .pth file, hub name or short name")
    parser.add_argument("path", help="the new folder")
    parser.add_argument("--to", default="orbax", choices=FORMATS)
    parser.add_argument("--dtype", choices=DTYPES, help="of the written parameters; default: the checkpoint's")
    parser.add_argument("--kind", choices=KINDS, help="of the tokenizer; default: what the end-of-text ids say")
    options = parser.parse_args(arguments)
    try:
        convert_checkpoint(options.source, options.path, options.to, options.dtype, options.kind)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"wrote {options.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
