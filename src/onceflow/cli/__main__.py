"""`python -m onceflow.cli`: the command where the script is not on the path."""

import sys

from onceflow.cli import main

sys.exit(main())
