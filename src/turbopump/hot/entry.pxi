# message/entry.py: the check of a stored entry that all compiled readers share. `entry` has at least 91 bytes.


cdef inline bint _is_magic(uint32_t magic) noexcept:
    return magic == 0xDAA320A7 or magic == 0xDAA320AB


cdef inline Py_ssize_t _body_at(const uint8_t *entry) noexcept:
    """Where the body begins, with hosts of any kind."""
    return 88 + (12 if entry[39] & 0x10 else 0) + (12 if entry[39] & 0x20 else 0)


cdef inline bint _has_crc(const uint8_t *entry, Py_ssize_t size) noexcept:
    """Whether the entry ends with a CRC over all of it."""
    return memcmp(entry + size - 20, b"__CRC32#\x01", 9) == 0


cdef inline bint _crc_fits(const uint8_t *entry, Py_ssize_t size) except -1:
    """Whether the CRC that the entry ends with is that of the bytes before it."""
    cdef const uint8_t *suffix = entry + size - 20
    cdef int64_t said = 0
    cdef int i
    if suffix[19] != 2:
        return False
    for i in range(18, 8, -1):  # the least significant digit comes first
        if not c"0" <= suffix[i] <= c"9":
            return False
        said = said * 10 + suffix[i] - 48
    return said == _crc(entry, size - 20)


cdef inline bint _body_fits(const uint8_t *entry, Py_ssize_t body_at, Py_ssize_t body_size) except -1:
    """Whether the CRC of the body is right; of an empty one nobody asks."""
    return body_size == 0 or _get32(entry + 8) == _crc(entry + body_at, body_size)
