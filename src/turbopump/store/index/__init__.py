"""Key index: finds the messages that have a key."""
