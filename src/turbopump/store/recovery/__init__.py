"""Opening a store after any end: what is known of the last one, and what the log still says."""
