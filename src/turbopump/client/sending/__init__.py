"""Sending of messages: choice of the queue, frame, attempts, statistics."""
