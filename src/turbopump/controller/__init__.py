"""Controller: it decides which replica of a broker name is the master."""
