"""Where a message was: records in Apache's encoding, sent beside the messages themselves."""
