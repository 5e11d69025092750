# message/entry.py: layout of a stored entry, and the checks that all compiled readers share. `entry` has at least FIXED_SIZE bytes.
# Positions behind a host are those with v4 hosts.

cdef enum:
    MAGIC_V1 = 0xDAA320A7
    MAGIC_V2 = 0xDAA320AB
    MAGIC_AT = 4
    BODY_CRC_AT = 8
    QUEUE_ID_AT = 12
    QUEUE_OFFSET_AT = 20
    PHYSICAL_OFFSET_AT = 28
    SYS_FLAG_AT = 36
    FLAG_BITS_AT = 39  # the last byte of sysFlag
    STORE_TIMESTAMP_AT = 56
    RECONSUME_TIMES_AT = 72
    BODY_SIZE_AT = 84
    BODY_AT = 88
    V6_EXTRA = 12
    FIXED_SIZE = 91
    CRC_SUFFIX_SIZE = 20
    TOPIC_SIZE_MAX_V1 = 127
    UNIT_SIZE = 20  # of a queue


cdef inline bint _is_magic(uint32_t magic) noexcept:
    return magic == MAGIC_V1 or magic == MAGIC_V2


cdef inline Py_ssize_t _body_at(const uint8_t *entry) noexcept:
    """Return the position of the body, for hosts of any kind."""
    return BODY_AT + (V6_EXTRA if entry[FLAG_BITS_AT] & 0x10 else 0) + (V6_EXTRA if entry[FLAG_BITS_AT] & 0x20 else 0)


cdef inline bint _has_crc(const uint8_t *entry, Py_ssize_t size) noexcept:
    """Return True if the entry ends with a whole-entry CRC."""
    return memcmp(entry + size - CRC_SUFFIX_SIZE, b"__CRC32#\x01", 9) == 0


cdef inline bint _crc_fits(const uint8_t *entry, Py_ssize_t size) except -1:
    """Return True if the CRC at the end of the entry fits the bytes before that CRC."""
    cdef const uint8_t *suffix = entry + size - CRC_SUFFIX_SIZE
    cdef int64_t said = 0
    cdef int i
    if suffix[19] != 2:
        return False
    for i in range(18, 8, -1):  # the least significant digit comes first
        if not c"0" <= suffix[i] <= c"9":
            return False
        said = said * 10 + suffix[i] - 48
    return said == _crc(entry, size - CRC_SUFFIX_SIZE)


cdef inline bint _body_fits(const uint8_t *entry, Py_ssize_t body_at, Py_ssize_t body_size) except -1:
    """Return True if the CRC of the body is right. An empty body has no CRC."""
    return body_size == 0 or _get32(entry + BODY_CRC_AT) == _crc(entry + body_at, body_size)
