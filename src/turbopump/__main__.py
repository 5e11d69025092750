"""`python -m turbopump`: the same as the command `turbopump`."""

import sys

from turbopump.cli import main

if __name__ == "__main__":
    sys.exit(main())
