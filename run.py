"""The training command: python run.py --variant clipped"""

import sys

from grpojax.config import RunConfig
from grpojax.flags import exit_code, parse_settings
from grpojax.runner import run


def main() -> int:
    """Parse, train, show."""
    return exit_code(lambda: run(*parse_settings(RunConfig, None, "run.py", __doc__)))


if __name__ == "__main__":
    sys.exit(main())
