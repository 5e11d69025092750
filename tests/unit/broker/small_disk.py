"""Where a broker in virtual time has its store, and how long its segments are."""

from pathlib import Path

SEGMENT = 64 * 1024
ROOT = Path("/store")
