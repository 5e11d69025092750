# Bytes and numbers in memory, big endian as all of RocketMQ's, and CRC-32 of them. A `_put…` writes where there is room and gives
# the place behind it; nothing here checks a length.

from isal.isal_zlib import crc32 as _crc32

cdef extern from *:
    """
    static uint32_t turbopump_crcs[8][256];

    static void turbopump_make_crcs(void) {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t crc = i;
            for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
            turbopump_crcs[0][i] = crc;
        }
        for (int i = 0; i < 256; i++)
            for (int n = 1; n < 8; n++) {
                uint32_t crc = turbopump_crcs[n - 1][i];
                turbopump_crcs[n][i] = crc >> 8 ^ turbopump_crcs[0][crc & 0xFF];
            }
    }

    /* Eight bytes at a time by eight tables. */
    static uint32_t turbopump_crc(const uint8_t *at, Py_ssize_t size) {
        uint32_t crc = 0xFFFFFFFFu;
        for (; size >= 8; size -= 8, at += 8) {
            crc ^= (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
            crc = turbopump_crcs[7][crc & 0xFF] ^ turbopump_crcs[6][crc >> 8 & 0xFF] ^ turbopump_crcs[5][crc >> 16 & 0xFF]
                ^ turbopump_crcs[4][crc >> 24] ^ turbopump_crcs[3][at[4]] ^ turbopump_crcs[2][at[5]]
                ^ turbopump_crcs[1][at[6]] ^ turbopump_crcs[0][at[7]];
        }
        for (; size > 0; size--, at++) crc = crc >> 8 ^ turbopump_crcs[0][(crc ^ *at) & 0xFF];
        return ~crc;
    }
    """
    void _make_crcs "turbopump_make_crcs"() noexcept
    uint32_t _crc_of_few "turbopump_crc"(const uint8_t *at, Py_ssize_t size) noexcept

_make_crcs()


cdef inline int64_t _int64(object value) except? -1:
    if not PyLong_Check(value):  # Cython would take a float
        raise _NotUsual
    return <int64_t>value


cdef inline int32_t _int32(object value) except? -1:
    if not PyLong_Check(value):
        raise _NotUsual
    return <int32_t>value


cdef extern from *:
    """
    #if defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    #define turbopump_big32 __builtin_bswap32
    #define turbopump_big64 __builtin_bswap64
    #else
    static uint32_t turbopump_big32(uint32_t value) {
        uint8_t at[4] = {value >> 24, value >> 16, value >> 8, value};
        memcpy(&value, at, 4);
        return value;
    }
    static uint64_t turbopump_big64(uint64_t value) {
        uint32_t at[2] = {turbopump_big32((uint32_t)(value >> 32)), turbopump_big32((uint32_t)value)};
        memcpy(&value, at, 8);
        return value;
    }
    #endif
    """
    uint32_t _big32 "turbopump_big32"(uint32_t value) noexcept
    uint64_t _big64 "turbopump_big64"(uint64_t value) noexcept


cdef inline uint8_t *_put32(uint8_t *at, uint32_t value) noexcept:
    value = _big32(value)
    memcpy(at, &value, 4)
    return at + 4


cdef inline uint8_t *_put64(uint8_t *at, uint64_t value) noexcept:
    value = _big64(value)
    memcpy(at, &value, 8)
    return at + 8


cdef inline uint32_t _get32(const uint8_t *at) noexcept:
    cdef uint32_t value
    memcpy(&value, at, 4)
    return _big32(value)


cdef inline uint64_t _get64(const uint8_t *at) noexcept:
    cdef uint64_t value
    memcpy(&value, at, 8)
    return _big64(value)


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
    """Bytes in memory as an object, for the time of one call that needs an object."""

    cdef const void *at
    cdef Py_ssize_t size

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, <void *>self.at, self.size, True, flags)


cdef _Bytes _bytes = _Bytes.__new__(_Bytes)


cdef inline uint32_t _crc(const void *at, Py_ssize_t size) except? 0xFFFFFFFF:
    """Return the CRC-32 without its top bit. A call of the fast function costs as much as 200 bytes by tables."""
    if size < 256:
        return _crc_of_few(<const uint8_t *>at, size) & 0x7FFFFFFF
    _bytes.at, _bytes.size = at, size
    return <uint32_t>_crc32(_bytes) & 0x7FFFFFFF
