"""python -m grpojax COMMAND ...: the same as the installed `grpojax` command."""

import sys

from grpojax.cli import main

sys.exit(main())
