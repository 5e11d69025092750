"""Operating systems that servers need."""

import sys

from turbopump.errors import ConfigError


def require_unix(what: str) -> None:
    """Raise ConfigError on Windows, which lacks what the store of a broker needs."""
    if sys.platform == "win32":
        raise ConfigError(
            f"{what} needs Linux or macOS: run it in WSL, in a container or on another machine; "
            "clients and the commands for them run on Windows too"
        )
