"""Entry point of ``python -m turbopump``, equivalent to the command ``turbopump``."""

import sys

from turbopump.cli import main

if __name__ == "__main__":
    sys.exit(main())
