# broker/handlers/send.py: the answer to a send, from its template.


def send_reply(head, tail, host, opaque, queue_id, offset, queue_offset, unique):
    cdef uint8_t digits[8]
    try:
        _put64(digits, <uint64_t>_int64(offset))
        if digits[0] & 0x80:
            raise _NotUsual
        return _reply(head, tail, host, _int64(opaque), _int64(queue_id), digits, 1, _int64(queue_offset), unique)
    except Exception:
        return plain["send_reply"](head, tail, host, opaque, queue_id, offset, queue_offset, unique)


def batch_reply(head, tail, host, opaque, queue_id, units, queue_offset, unique):
    try:
        if not PyBytes_CheckExact(units) or PyBytes_GET_SIZE(units) % UNIT_SIZE:
            raise _NotUsual
        return _reply(
            head, tail, host, _int64(opaque), _int64(queue_id),
            <const uint8_t *>PyBytes_AS_STRING(units), PyBytes_GET_SIZE(units) // UNIT_SIZE, _int64(queue_offset), unique,
        )
    except Exception:
        return plain["batch_reply"](head, tail, host, opaque, queue_id, units, queue_offset, unique)


cdef bytes _reply(
    object head, object tail, object host, int64_t opaque, int64_t queue_id, const uint8_t *unit, Py_ssize_t count,
    int64_t queue_offset, object unique
):
    """Return the answer to a send of ``count`` messages. Every 20 bytes of ``unit`` begin with a log offset of 8 bytes."""
    if not (PyBytes_CheckExact(head) and PyBytes_CheckExact(tail) and PyBytes_CheckExact(host)
            and (unique is None or PyUnicode_CheckExact(unique) and PyUnicode_IS_COMPACT_ASCII(unique))):
        raise _NotUsual
    cdef const uint8_t *text = NULL
    cdef Py_ssize_t unique_size = 0, i, digit
    cdef uint8_t c
    if unique is not None:
        text, unique_size = <const uint8_t *>PyUnicode_1BYTE_DATA(unique), PyUnicode_GET_LENGTH(unique)
    for i in range(unique_size):
        c = text[i] | 0x20
        if not (c"0" <= text[i] <= c"9" or c"a" <= c <= c"z"):
            unique_size = 0
            break
    cdef uint8_t numbers[128]
    cdef uint8_t *pos = numbers
    pos = _put(pos, b'","queueId":"', 13)
    pos = _put_decimal(pos, queue_id)
    pos = _put(pos, b'","queueOffset":"', 17)
    pos = _put_decimal(pos, queue_offset)
    if unique is not None:
        pos = _put(pos, b'","transactionId":"', 19)
    cdef Py_ssize_t numbers_size = pos - numbers
    cdef uint8_t ending[64]
    pos = _put(ending, b'"},"flag":1,"language":"PYTHON","opaque":', 41)
    pos = _put_decimal(pos, opaque)
    cdef Py_ssize_t ending_size = pos - ending
    cdef Py_ssize_t size = (
        PyBytes_GET_SIZE(head) + count * (PyBytes_GET_SIZE(host) + 17) - (count > 0) + numbers_size + unique_size + ending_size
        + PyBytes_GET_SIZE(tail)
    )
    if size > 0xFFFFFF:
        raise _NotUsual
    cdef bytes frame = PyBytes_FromStringAndSize(NULL, size + 8)
    pos = _put32(<uint8_t *>PyBytes_AS_STRING(frame), <uint32_t>(size + 4))
    pos = _put32(pos, <uint32_t>size)
    pos = _put_bytes(pos, head)
    for i in range(count):
        if i:
            pos[0] = c","
            pos += 1
        pos = _put_bytes(pos, host)
        for digit in range(16):
            c = unit[digit // 2] >> 4 if digit % 2 == 0 else unit[digit // 2] & 15
            pos[digit] = 48 + c if c < 10 else 55 + c
        pos += 16
        unit += UNIT_SIZE
    pos = _put(pos, numbers, numbers_size)
    pos = _put(pos, text, unique_size)
    pos = _put(pos, ending, ending_size)
    _put_bytes(pos, tail)
    return frame
