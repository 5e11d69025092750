"""Repair of damage on the disk: queue units, index files, unreadable sectors, scrubbing."""
