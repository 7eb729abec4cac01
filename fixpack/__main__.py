"""``python -m fixpack``."""

import sys

if sys.version_info < (3, 10):  # noqa: UP036  a user may start it with any Python
    sys.exit("fixpack needs Python 3.10 or later, this is " + sys.version.split()[0])

from fixpack.cli import main

sys.exit(main())
