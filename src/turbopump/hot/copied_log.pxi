# store/copied_log.py: entries that a slave takes together, checked and packed for its queues and
# its key index.


def packed_run(data, at, end, position, topics):
    try:
        return _packed_run(data, _int64(at), _int64(end), _int64(position), topics)
    except Exception:
        return plain["packed_run"](data, at, end, position, topics)


cdef struct _RunQueue:
    _Span topic
    uint32_t hash_before  # of "topic#"
    uint32_t queue_id
    int64_t first
    int64_t count
    uint8_t *units


cdef struct _RunEntry:
    int queue
    uint32_t size
    int64_t tags


cdef object _packed_run(object data, int64_t at, int64_t end, int64_t position, dict topics):
    cdef Py_buffer view
    if at < 0 or not 0 <= position <= 1 << 62 or topics is None:
        raise _NotUsual
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        end = end if end < view.len else view.len
        return _run_of(<const uint8_t *>view.buf, at, end, position, topics)
    finally:
        PyBuffer_Release(&view)


cdef object _run_of(const uint8_t *data, int64_t at, int64_t end, int64_t position, dict topics):
    cdef _RunQueue[64] queues  # _QUEUES_OF_RUN
    cdef _RunEntry[1024] entries  # _ENTRIES_OF_RUN
    cdef int count = 0, queue_count = 0, number = 0, i
    cdef int64_t offset = position, stored = 0, size, body_size, text_at, queue_offset, begin
    cdef uint32_t queue_id, hashed
    cdef const uint8_t *pos
    cdef _Span topic
    cdef _Found found
    cdef _RunQueue *queue
    cdef uint8_t *unit
    cdef list names = [], keys = [], packed = []
    cdef object offset_, stored_
    while count < 1024 and at + FIXED_SIZE <= end:
        pos = data + at
        size = _get32(pos)
        body_size = _get32(pos + BODY_SIZE_AT)
        if (_get32(pos + MAGIC_AT) != MAGIC_V1 or <int64_t>_get64(pos + PHYSICAL_OFFSET_AT) != offset
                or size < FIXED_SIZE or size > end - at or body_size > size - FIXED_SIZE
                or pos[FLAG_BITS_AT] & 0xB4
                or (pos[QUEUE_ID_AT] | pos[QUEUE_OFFSET_AT] | pos[SYS_FLAG_AT] | pos[STORE_TIMESTAMP_AT]) & 0x80):
            break
        topic = _Span(pos + BODY_AT + 1 + body_size, pos[BODY_AT + body_size])
        text_at = FIXED_SIZE + body_size + topic.size
        if text_at > size:
            raise _NotUsual
        if not _crc_is_right(pos, size, body_size, text_at):
            break
        queue_id = _get32(pos + QUEUE_ID_AT)
        queue_offset = <int64_t>_get64(pos + QUEUE_OFFSET_AT)
        # A message nearly always is of the queue of the one before it, or of the one that followed
        # that last time.
        for i in range(queue_count):
            queue = &queues[number]
            if (queue.queue_id == queue_id and queue.topic.size == topic.size
                    and memcmp(queue.topic.at, topic.at, topic.size) == 0):
                break
            number = number + 1 if number + 1 < queue_count else 0
        else:
            name = topics.get((<const char *>topic.at)[:topic.size])
            if name is None or queue_count == 64 or name == "SCHEDULE_TOPIC_XXXX":
                break
            if not (PyUnicode_CheckExact(name) and PyUnicode_IS_COMPACT_ASCII(name)):
                raise _NotUsual
            number = queue_count
            queue = &queues[number]
            hashed = _hash_before(topic.at, topic.size)
            queue[0] = _RunQueue(topic, hashed, queue_id, queue_offset, 0, NULL)
            names.append(name)
            queue_count += 1
        if queue_offset != queue.first + queue.count:
            break
        _find(pos + text_at, pos + size, &found)
        if not found.is_ascii:
            if not (_is_ascii(found.unique) and _is_ascii(found.tags) and _is_ascii(found.keys)):
                raise _NotUsual
        stored = <int64_t>_get64(pos + STORE_TIMESTAMP_AT)
        if found.unique.size or found.keys.size:
            offset_, stored_ = offset, stored
            if found.unique.size:
                hashed = _hash_on(queue.hash_before, found.unique.at, found.unique.size)
                keys.append((_index_hash(hashed), offset_, stored_))
            begin = 0  # of this key
            for i in range(found.keys.size + 1 if found.keys.size else 0):
                if i == found.keys.size or found.keys.at[i] == c" ":
                    if i > begin:
                        hashed = _hash_on(queue.hash_before, found.keys.at + begin, i - begin)
                        keys.append((_index_hash(hashed), offset_, stored_))
                    begin = i + 1
        hashed = _hash_on(0, found.tags.at, found.tags.size)
        entries[count] = _RunEntry(number, <uint32_t>size, <int32_t>hashed)
        queue.count += 1
        count += 1
        offset += size
        at += size
    for number in range(queue_count):
        queue = &queues[number]
        units = PyBytes_FromStringAndSize(NULL, queue.count * UNIT_SIZE)
        queue.units = <uint8_t *>PyBytes_AS_STRING(units)
        packed.append((names[number], queue.queue_id, queue.first, units))
    size = offset - position
    offset = position
    for i in range(count):
        queue = &queues[entries[i].queue]
        unit = _put32(_put64(queue.units, <uint64_t>offset), entries[i].size)
        queue.units = _put64(unit, <uint64_t>entries[i].tags)
        offset += entries[i].size
    return size, stored, keys, packed


cdef inline bint _crc_is_right(
    const uint8_t *pos, int64_t size, int64_t body_size, int64_t text_at
) except -1:
    """Return True if the whole-entry CRC is right. Without such a CRC, the CRC of the body must be right."""
    if _has_crc(pos, size):
        return _crc_fits(pos, size)
    if text_at + (pos[text_at - 2] << 8 | pos[text_at - 1]) != size:
        return False
    return _body_fits(pos, BODY_AT, body_size)
