#!/usr/bin/env python3
"""Bring a profile's fixes into the installed packages, all or nothing: ``python apply_all.py --profile P [FIX…]``."""

import os
import sys

if sys.version_info < (3, 10):  # noqa: UP036  a user may start it with any Python
    sys.exit("apply_all.py needs Python 3.10 or later, this is " + sys.version.split()[0])

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from fixpack.cli.apply_main import main

if __name__ == "__main__":
    sys.exit(main())
