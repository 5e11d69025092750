"""Settings of brokers and name servers, under Apache's keys. This file imports nothing, so that
clients can load the TLS settings alone."""
