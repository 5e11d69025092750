"""Work of a slave while its master is away (`enableSlaveActingMaster`)."""
