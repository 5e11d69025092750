"""The commit log: entries, how they are appended, flushed, read and dispatched."""
