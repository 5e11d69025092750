"""What brokers ask of a client on behalf of an operator: its state, its places, one message handled
now."""
