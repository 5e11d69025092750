"""Putting right what is damaged on the disk: units, index files, unreadable sectors, scrubbing."""
