"""What consumers are made of: division of queues, pulling ahead, handling, places, sending back."""
