"""Client libraries under comparison: our producer and Apache's Java producer on one and the same
broker."""
