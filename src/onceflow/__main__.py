"""`python -m onceflow` is `onceflow`."""

import sys

from onceflow.cli import main

sys.exit(main())
