# Bytes and numbers in memory, big endian as all of RocketMQ's, and CRC-32 of them. A `_put…` writes where there is room and gives
# the place behind it; nothing here checks a length.

from isal.isal_zlib import crc32 as _crc32


cdef inline int64_t _int64(object value) except? -1:
    if not PyLong_Check(value):  # Cython would take a float
        raise _not_usual
    return <int64_t>value


cdef inline int32_t _int32(object value) except? -1:
    if not PyLong_Check(value):
        raise _not_usual
    return <int32_t>value


cdef inline uint8_t *_put32(uint8_t *at, uint32_t value) noexcept:
    at[0] = value >> 24
    at[1] = (value >> 16) & 0xFF
    at[2] = (value >> 8) & 0xFF
    at[3] = value & 0xFF
    return at + 4


cdef inline uint8_t *_put64(uint8_t *at, uint64_t value) noexcept:
    return _put32(_put32(at, <uint32_t>(value >> 32)), <uint32_t>(value & 0xFFFFFFFF))


cdef inline uint32_t _get32(const uint8_t *at) noexcept:
    return <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3]


cdef inline uint64_t _get64(const uint8_t *at) noexcept:
    return <uint64_t>_get32(at) << 32 | _get32(at + 4)


cdef inline uint8_t *_put(uint8_t *at, const void *data, Py_ssize_t size) noexcept:
    memcpy(at, data, size)
    return at + size


cdef inline uint8_t *_put_bytes(uint8_t *at, bytes data) noexcept:
    return _put(at, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef inline uint8_t *_put_decimal(uint8_t *at, int64_t value) noexcept:
    cdef uint8_t digits[20]
    cdef int count = 0
    cdef uint64_t rest = <uint64_t>value
    if value < 0:
        at[0] = c"-"
        at += 1
        rest = 0 - rest
    while True:
        digits[count] = <uint8_t>(48 + rest % 10)
        rest //= 10
        count += 1
        if rest == 0:
            break
    while count:
        count -= 1
        at[0] = digits[count]
        at += 1
    return at


cdef struct _Span:
    const uint8_t *at
    Py_ssize_t size


cdef inline _Span _span(bytes data):
    return _Span(<const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef class _Bytes:
    """Bytes in memory as an object, while a function that takes one is called."""

    cdef const void *at
    cdef Py_ssize_t size

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, <void *>self.at, self.size, True, flags)


cdef _Bytes _bytes = _Bytes.__new__(_Bytes)


cdef inline uint32_t _crc(const void *at, Py_ssize_t size) except? 0xFFFFFFFF:
    """CRC-32 without its top bit."""
    _bytes.at, _bytes.size = at, size
    return <uint32_t>_crc32(_bytes) & 0x7FFFFFFF
