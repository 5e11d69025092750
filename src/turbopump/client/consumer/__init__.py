"""What consumers are made of: division of queues, pulling and popping, handling, offsets, sending back."""
