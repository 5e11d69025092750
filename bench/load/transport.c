#include "transport.h"

#include <errno.h>
#include <unistd.h>

#include "replies.h"

#ifdef TLS
#include <openssl/err.h>
#include <openssl/ssl.h>

void transport_open(struct transport *transport, int fd, int tls)
{
    static SSL_CTX *context;
    *transport = (struct transport){fd, NULL};
    if (!tls)
        return;
    if (context == NULL) {
        context = SSL_CTX_new(TLS_client_method());
        SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    }
    SSL *ssl = SSL_new(context);
    SSL_set_fd(ssl, fd);
    if (SSL_connect(ssl) != 1)
        die("TLS handshake: %s", ERR_reason_error_string(ERR_peek_error()));
    transport->tls = ssl;
}

static ssize_t outcome(SSL *ssl, int result)
{
    if (result > 0)
        return result;
    int why = SSL_get_error(ssl, result);
    if (why == SSL_ERROR_ZERO_RETURN)
        return 0;
    errno = why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE ? EAGAIN : EPROTO;
    return -1;
}

ssize_t transport_read(struct transport *transport, void *to, size_t size)
{
    if (transport->tls == NULL)
        return read(transport->fd, to, size);
    return outcome(transport->tls, SSL_read(transport->tls, to, (int)size));
}

ssize_t transport_write(struct transport *transport, const void *from, size_t size)
{
    if (transport->tls == NULL)
        return write(transport->fd, from, size);
    return outcome(transport->tls, SSL_write(transport->tls, from, (int)size));
}

int transport_holds(const struct transport *transport)
{
    return transport->tls != NULL && SSL_has_pending(transport->tls);
}

#else

void transport_open(struct transport *transport, int fd, int tls)
{
    if (tls)
        die("compiled without TLS");
    *transport = (struct transport){fd, NULL};
}

ssize_t transport_read(struct transport *transport, void *to, size_t size) { return read(transport->fd, to, size); }

ssize_t transport_write(struct transport *transport, const void *from, size_t size) { return write(transport->fd, from, size); }

int transport_holds(const struct transport *transport)
{
    (void)transport;
    return 0;
}

#endif
