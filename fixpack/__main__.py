"""``python -m fixpack``."""

import sys

from fixpack.cli import main

sys.exit(main())
