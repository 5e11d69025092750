"""What consumers are made of: division of queues, reading, handling, offsets,
sending back."""
