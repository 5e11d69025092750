"""What a broker and a name server can be told, in Apache's keys. It imports nothing: clients want
the settings of TLS and not those of servers."""
