/* The bytes of a connection, in the clear or, in a program that was compiled with -DTLS, over TLS. */
#pragma once
#include <stddef.h>
#include <sys/types.h>

struct transport {
    int fd;
    void *tls; /* an SSL, or NULL */
};

/* On a connected, blocking socket; any certificate will do. */
void transport_open(struct transport *transport, int fd, int tls);
/* As read and write of a socket that does not block. */
ssize_t transport_read(struct transport *transport, void *to, size_t size);
ssize_t transport_write(struct transport *transport, const void *from, size_t size);
/* Whether bytes were taken from the socket and not yet read. */
int transport_holds(const struct transport *transport);
