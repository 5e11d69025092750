# message/batch.py: one message of a batch's body.


def identified_item(flag, body, msg_id, more):
    try:
        return _identified_item(_int32(flag), body, msg_id, more)
    except Exception:
        return plain["identified_item"](flag, body, msg_id, more)


cdef bytes _identified_item(int32_t flag, object body, object msg_id, object more):
    if not (PyBytes_CheckExact(body) and PyBytes_CheckExact(more) and PyUnicode_CheckExact(msg_id)
            and PyUnicode_IS_COMPACT_ASCII(msg_id)):
        raise _NotUsual
    cdef Py_ssize_t id_size = PyUnicode_GET_LENGTH(msg_id), body_size = PyBytes_GET_SIZE(body)
    cdef Py_ssize_t properties_size = 10 + id_size + PyBytes_GET_SIZE(more), size = 22 + body_size + properties_size
    if properties_size > 0xFFFF or size > 0x7FFFFFFF:
        raise _NotUsual
    cdef bytes item = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t *pos = _put32(<uint8_t *>PyBytes_AS_STRING(item), <uint32_t>size)
    pos = _put32(_put64(pos, 0), <uint32_t>flag)
    pos = _put_bytes(_put32(pos, <uint32_t>body_size), body)
    pos[0] = properties_size >> 8
    pos[1] = properties_size & 0xFF
    pos = _put(pos + 2, b"UNIQ_KEY\x01", 9)
    pos = _put(pos, PyUnicode_1BYTE_DATA(msg_id), id_size)
    pos[0] = 2
    _put_bytes(pos + 1, more)
    return item
