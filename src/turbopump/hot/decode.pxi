# spark/entries.py, spark/property_columns.py: positions and properties of many stored entries.


def walk_entries(data, begin, limit):
    try:
        return _walk_entries(data, _int64(begin), _int64(limit))
    except Exception:
        return plain["walk_entries"](data, begin, limit)


cdef object _walk_entries(object data, int64_t at, int64_t limit):
    cdef Py_buffer view
    cdef int64_t end, size
    cdef Py_ssize_t count = 0
    cdef bytes positions
    cdef int64_t *out
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        end = view.len
        if at < 0 or at > end:
            raise _NotUsual
        positions = PyBytes_FromStringAndSize(NULL, ((end - at) // FIXED_SIZE) * 8)
        out = <int64_t *>PyBytes_AS_STRING(positions)
        while at < limit and end - at >= FIXED_SIZE:
            size = <int64_t><int32_t>_get32(<const uint8_t *>view.buf + at)
            if size < FIXED_SIZE or size > end - at:
                break
            out[count] = at
            count += 1
            at += size
    finally:
        PyBuffer_Release(&view)
    return positions[:count * 8], at


def split_properties(data, offsets):
    try:
        return _split_properties(data, offsets)
    except Exception:
        return plain["split_properties"](data, offsets)


cdef object _split_properties(object data, object offsets):
    cdef Py_buffer text, ends
    cdef dict known = {}
    PyObject_GetBuffer(data, &text, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(offsets, &ends, PyBUF_SIMPLE)
        try:
            return _split(<const uint8_t *>text.buf, text.len, <const int32_t *>ends.buf, ends.len, known)
        finally:
            PyBuffer_Release(&ends)
    finally:
        PyBuffer_Release(&text)


cdef object _split(const uint8_t *start, Py_ssize_t size, const int32_t *offsets, Py_ssize_t offsets_size, dict known):
    """Split the properties of messages. A message nearly always has the same names as the previous one, so a name is compared, not looked up."""
    cdef Py_ssize_t rows = offsets_size // 4 - 1, row, room = 0, count = 0, before = 0, begun, i
    cdef const uint8_t *pos
    cdef const uint8_t *end
    cdef const uint8_t *name_end
    cdef const uint8_t *value_end
    cdef int32_t name
    if offsets_size % 4 or rows < 0 or offsets[0] < 0 or offsets[rows] > size:
        raise _NotUsual
    for row in range(rows):
        if offsets[row + 1] < offsets[row]:
            raise _NotUsual
        for i in range(offsets[row], offsets[row + 1]):
            room += start[i] == 2
        room += 1
    cdef bytes counts = PyBytes_FromStringAndSize(NULL, rows * 4)
    cdef bytes names = PyBytes_FromStringAndSize(NULL, room * 4)
    cdef bytes values = PyBytes_FromStringAndSize(NULL, room * 8)
    cdef int32_t *counts_at = <int32_t *>PyBytes_AS_STRING(counts)
    cdef int32_t *names_at = <int32_t *>PyBytes_AS_STRING(names)
    cdef int32_t *values_at = <int32_t *>PyBytes_AS_STRING(values)
    cdef list texts = []
    cdef int32_t last_name_size
    # where each name begins; and in which row a name was last, to see whether a row has it twice
    cdef bytes firsts = PyBytes_FromStringAndSize(NULL, room * 4), seen = PyBytes_FromStringAndSize(NULL, room * 4)
    cdef int32_t *firsts_at = <int32_t *>PyBytes_AS_STRING(firsts)
    cdef int32_t *seen_at = <int32_t *>PyBytes_AS_STRING(seen)
    cdef bint repeated = False
    memset(seen_at, 0xFF, room * 4)
    for row in range(rows):
        pos = start + offsets[row]
        end = start + offsets[row + 1]
        begun = count
        while pos < end:
            value_end = <const uint8_t *>memchr(pos, 2, end - pos)
            if value_end == NULL:
                value_end = end
            name_end = <const uint8_t *>memchr(pos, 1, value_end - pos)
            if name_end != NULL and name_end > pos and name_end + 1 < value_end:
                i = before + count - begun
                last_name_size = <int32_t>(name_end - pos)
                if (i < begun and values_at[2 * i] - 1 - firsts_at[i] == last_name_size
                        and memcmp(start + firsts_at[i], pos, last_name_size) == 0):
                    name = names_at[i]
                else:
                    text = <bytes>(<const char *>pos)[:last_name_size]
                    found = known.get(text)
                    if found is None:
                        found = known[text] = len(texts)
                        texts.append(text)
                    name = found
                repeated |= seen_at[name] == row
                seen_at[name] = <int32_t>row
                names_at[count] = name
                firsts_at[count] = <int32_t>(pos - start)
                values_at[2 * count] = <int32_t>(name_end + 1 - start)
                values_at[2 * count + 1] = <int32_t>(value_end - start)
                count += 1
            pos = value_end + 1
        counts_at[row] = <int32_t>(count - begun)
        before = begun
    return counts, names[:count * 4], values[:count * 8], texts, repeated
