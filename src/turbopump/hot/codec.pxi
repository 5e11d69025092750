# message/codec.py: an entry of the commit log, written into the map. A batch writes its entries with the same `_put_entry`.


def write_entry(
    buffer, at, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp, born_host,
    store_timestamp, store_host, reconsume_times, prepared_transaction_offset, body, topic, properties, with_crc,
):
    try:
        return _write_entry(
            buffer, _int64(at), _int32(queue_id), _int32(flag), _int64(queue_offset), _int64(physical_offset), _int32(sys_flag),
            _int64(born_timestamp), born_host, _int64(store_timestamp), store_host, _int32(reconsume_times),
            _int64(prepared_transaction_offset), body, topic, properties, with_crc,
        )
    except Exception:
        return plain["write_entry"](
            buffer, at, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp, born_host,
            store_timestamp, store_host, reconsume_times, prepared_transaction_offset, body, topic, properties, with_crc,
        )


cdef object _write_entry(
    object buffer, Py_ssize_t at, int32_t queue_id, int32_t flag, int64_t queue_offset, int64_t physical_offset,
    int32_t sys_flag, int64_t born_timestamp, object born_host, int64_t store_timestamp, object store_host,
    int32_t reconsume_times, int64_t prepared_transaction_offset, object body, object topic, object properties, bint with_crc,
):
    if not (PyBytes_CheckExact(body) and PyBytes_CheckExact(topic) and PyBytes_CheckExact(properties)
            and PyBytes_CheckExact(born_host) and PyBytes_CheckExact(store_host)):
        raise _NotUsual
    cdef _Entry entry = _Entry(
        queue_id, queue_offset, physical_offset, sys_flag, born_timestamp, _span(born_host), store_timestamp, _span(store_host),
        reconsume_times, prepared_transaction_offset, _span(topic), with_crc,
        flag, _span(body), _span(properties), with_crc and _is_unended(_span(properties)), _Span(NULL, 0),
    )
    cdef Py_ssize_t size = _entry_size(&entry)
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
    try:
        if at < 0 or at > view.len or size > view.len - at:
            raise _NotUsual
        _put_entry(<uint8_t *>view.buf + at, size, &entry)
    finally:
        PyBuffer_Release(&view)
    return size


cdef struct _Entry:
    int32_t queue_id
    int64_t queue_offset
    int64_t physical_offset
    int32_t sys_flag
    int64_t born_timestamp
    _Span born_host
    int64_t store_timestamp
    _Span store_host
    int32_t reconsume_times
    int64_t prepared_transaction_offset
    _Span topic
    bint with_crc
    # from here on of each message of a batch
    int32_t flag
    _Span body
    _Span properties
    bint unended  # a separator is put behind the properties
    _Span added  # more properties


cdef inline bint _is_unended(_Span properties) noexcept:
    return properties.size > 0 and properties.at[properties.size - 1] != 2


cdef inline Py_ssize_t _stored_properties_size(const _Entry *entry) noexcept:
    return entry.properties.size + entry.unended + entry.added.size + (CRC_SUFFIX_SIZE if entry.with_crc else 0)


cdef Py_ssize_t _entry_size(const _Entry *entry) except -1:
    """Return the size of the entry in bytes."""
    cdef Py_ssize_t properties_size = _stored_properties_size(entry)
    if entry.topic.size > 0xFFFF or properties_size > 0xFFFF or entry.body.size > 0x40000000:
        raise _NotUsual
    return (
        FIXED_SIZE - 16 + entry.born_host.size + entry.store_host.size + entry.body.size + entry.topic.size + (entry.topic.size > TOPIC_SIZE_MAX_V1)
        + properties_size
    )


cdef int _put_entry(uint8_t *start, Py_ssize_t size, const _Entry *entry) except -1:
    """Write the entry to ``start``. ``size`` is its size from ``_entry_size``, and the caller has made room."""
    cdef Py_ssize_t properties_size = _stored_properties_size(entry)
    cdef bint is_v2 = entry.topic.size > TOPIC_SIZE_MAX_V1
    cdef uint32_t entry_crc
    cdef int digit
    cdef uint8_t *pos = _put32(start, <uint32_t>size)
    pos = _put32(pos, MAGIC_V2 if is_v2 else MAGIC_V1)
    pos = _put32(pos, _crc(entry.body.at, entry.body.size))
    pos = _put32(pos, <uint32_t>entry.queue_id)
    pos = _put32(pos, <uint32_t>entry.flag)
    pos = _put64(pos, <uint64_t>entry.queue_offset)
    pos = _put64(pos, <uint64_t>entry.physical_offset)
    pos = _put32(pos, <uint32_t>entry.sys_flag)
    pos = _put64(pos, <uint64_t>entry.born_timestamp)
    pos = _put(pos, entry.born_host.at, entry.born_host.size)
    pos = _put64(pos, <uint64_t>entry.store_timestamp)
    pos = _put(pos, entry.store_host.at, entry.store_host.size)
    pos = _put32(pos, <uint32_t>entry.reconsume_times)
    pos = _put64(pos, <uint64_t>entry.prepared_transaction_offset)
    pos = _put32(pos, <uint32_t>entry.body.size)
    pos = _put(pos, entry.body.at, entry.body.size)
    if is_v2:
        pos[0] = (entry.topic.size >> 8) & 0xFF
        pos += 1
    pos[0] = entry.topic.size & 0xFF
    pos = _put(pos + 1, entry.topic.at, entry.topic.size)
    pos[0] = (properties_size >> 8) & 0xFF
    pos[1] = properties_size & 0xFF
    pos = _put(pos + 2, entry.properties.at, entry.properties.size)
    if entry.unended:
        pos[0] = 2
        pos += 1
    if entry.added.size:
        pos = _put(pos, entry.added.at, entry.added.size)
    if entry.with_crc:
        entry_crc = _crc(start, pos - start)
        pos = _put(pos, b"__CRC32#\x01", 9)
        for digit in range(10):
            pos[digit] = <uint8_t>(48 + entry_crc % 10)
            entry_crc //= 10
        pos[10] = 2
    return 0
