"""The way of a message to a broker: choice of the queue, frame, attempts, counts."""
