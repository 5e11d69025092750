"""Consuming without owning queues: the broker lends a message for a time, and takes it back unless
it is acknowledged."""
