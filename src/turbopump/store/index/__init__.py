"""The key index: from a message key to the messages that have it."""
