"""Runs the command line: ``python -m qkcore``."""

import sys

from .cli import main

sys.exit(main())
