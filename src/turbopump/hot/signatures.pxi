# auth/signatures.py: what the signature in a JSON header is of.

cdef enum:
    _FIELDS_MAX = 64

cdef struct _Field:
    const uint8_t *name
    Py_ssize_t name_size
    const uint8_t *value
    Py_ssize_t raw_size
    Py_ssize_t size


def signed_in_header(header, body, version):
    try:
        return _signed_in_header(header, body, version)
    except Exception:
        return plain["signed_in_header"](header, body, version)


cdef object _signed_in_header(object header, object body, object version):
    """Return the signed part of a usual header: no white space, no field twice, at most 64 fields, names in ASCII, no surrogates."""
    if not PyBytes_CheckExact(header) or not PyBytes_CheckExact(body) or not PyLong_Check(version):
        raise _NotUsual
    cdef const uint8_t *pos = <const uint8_t *>PyBytes_AS_STRING(header)
    cdef const uint8_t *end = pos + PyBytes_GET_SIZE(header)
    cdef const uint8_t *name
    cdef _Field fields[_FIELDS_MAX]
    cdef int count = -1
    cdef Py_ssize_t name_size
    if pos == end or pos[0] != 123:  # {
        raise _NotUsual
    while True:  # at { or at a comma
        pos += 1
        name = pos + 1
        pos = _after_name(pos, end)
        name_size = pos - 2 - name
        if name_size == 9 and memcmp(name, b"extFields", 9) == 0:
            if count >= 0:
                raise _NotUsual
            pos = _read_fields(pos, end, fields, &count)
        else:
            pos = _after_value(pos, end)
        if pos == end:
            raise _NotUsual
        if pos[0] == 125:  # }
            break
        if pos[0] != 44:
            raise _NotUsual
    if pos + 1 != end:
        raise _NotUsual
    return _signed_of(fields, count, body, version)


cdef const uint8_t *_after_name(const uint8_t *pos, const uint8_t *end) except NULL:
    """Return the position behind a name and its colon. The name must be in ASCII without escapes."""
    if pos == end or pos[0] != 34:
        raise _NotUsual
    pos += 1
    while pos < end and pos[0] != 34:
        if pos[0] < 0x20 or pos[0] > 0x7E or pos[0] == 92:
            raise _NotUsual
        pos += 1
    if end - pos < 2 or pos[1] != 58:
        raise _NotUsual
    return pos + 2


cdef const uint8_t *_after_value(const uint8_t *pos, const uint8_t *end) except NULL:
    """Return the position behind a value: a text in ASCII without escapes, a whole number, or a word."""
    cdef const uint8_t *begin
    if pos == end:
        raise _NotUsual
    if pos[0] == 34:
        pos += 1
        while pos < end and pos[0] != 34:
            if pos[0] < 0x20 or pos[0] > 0x7E or pos[0] == 92:
                raise _NotUsual
            pos += 1
        if pos == end:
            raise _NotUsual
        return pos + 1
    if end - pos >= 4 and (memcmp(pos, b"null", 4) == 0 or memcmp(pos, b"true", 4) == 0):
        return pos + 4
    if end - pos >= 5 and memcmp(pos, b"false", 5) == 0:
        return pos + 5
    if pos[0] == 45:
        pos += 1
    begin = pos
    while pos < end and 48 <= pos[0] <= 57:
        pos += 1
    if pos == begin or pos - begin > 18 or (begin[0] == 48 and pos - begin > 1):
        raise _NotUsual
    return pos


cdef const uint8_t *_read_fields(const uint8_t *pos, const uint8_t *end, _Field *fields, int *counted) except NULL:
    """Read the fields and sort them by name. Return the position behind the closing brace."""
    cdef int count = 0, at
    cdef _Field one
    cdef bint is_ascii = True
    cdef const uint8_t *begin = pos
    if end - pos < 2 or pos[0] != 123:
        raise _NotUsual
    if pos[1] == 125:
        counted[0] = 0
        return pos + 2
    while True:
        pos += 1
        one.name = pos + 1
        pos = _after_name(pos, end)
        one.name_size = pos - 2 - one.name
        if count == _FIELDS_MAX or pos == end or pos[0] != 34:
            raise _NotUsual
        pos += 1
        one.value = pos
        one.size = 0
        while pos < end and pos[0] != 34:
            if pos[0] < 0x20:
                raise _NotUsual
            if pos[0] == 92:
                if end - pos < 7:
                    raise _NotUsual
                one.size += _unescaped(&pos, NULL)
            else:
                is_ascii &= pos[0] < 0x80
                one.size += 1
                pos += 1
        one.raw_size = pos - one.value
        if end - pos < 2:
            raise _NotUsual
        pos += 1
        at = count
        while at > 0 and _comes_before(&one, &fields[at - 1]):
            fields[at] = fields[at - 1]
            at -= 1
        fields[at] = one
        count += 1
        if pos[0] == 125:
            break
        if pos[0] != 44:
            raise _NotUsual
    if not is_ascii:
        (<const char *>begin)[:pos - begin].decode("utf-8")
    counted[0] = count
    return pos + 1


cdef bint _comes_before(const _Field *one, const _Field *other) except -1:
    cdef Py_ssize_t shorter = one.name_size if one.name_size < other.name_size else other.name_size
    cdef int found = memcmp(one.name, other.name, shorter)
    if found == 0:
        if one.name_size == other.name_size:
            raise _NotUsual
        return one.name_size < other.name_size
    return found < 0


cdef Py_ssize_t _unescaped(const uint8_t **at, uint8_t *out) except -1:
    """Move ``at`` behind an escape, and write its UTF-8 bytes to ``out`` unless NULL. Return their number. Six bytes must be readable."""
    cdef const uint8_t *pos = at[0]
    cdef uint8_t kind = pos[1]
    cdef uint32_t code = 0, digit
    cdef int i
    if kind == 117:  # u
        for i in range(2, 6):
            digit = pos[i]
            if 48 <= digit <= 57:
                digit -= 48
            elif 97 <= digit <= 102:
                digit -= 87
            elif 65 <= digit <= 70:
                digit -= 55
            else:
                raise _NotUsual
            code = code << 4 | digit
        if 0xD800 <= code <= 0xDFFF:
            raise _NotUsual
        at[0] = pos + 6
    else:
        if kind == 34 or kind == 92 or kind == 47:
            code = kind
        elif kind == 98:
            code = 8
        elif kind == 102:
            code = 12
        elif kind == 110:
            code = 10
        elif kind == 114:
            code = 13
        elif kind == 116:
            code = 9
        else:
            raise _NotUsual
        at[0] = pos + 2
    if code < 0x80:
        if out != NULL:
            out[0] = <uint8_t>code
        return 1
    if code < 0x800:
        if out != NULL:
            out[0] = <uint8_t>(0xC0 | code >> 6)
            out[1] = <uint8_t>(0x80 | (code & 0x3F))
        return 2
    if out != NULL:
        out[0] = <uint8_t>(0xE0 | code >> 12)
        out[1] = <uint8_t>(0x80 | (code >> 6 & 0x3F))
        out[2] = <uint8_t>(0x80 | (code & 0x3F))
    return 3


cdef object _signed_of(const _Field *fields, int count, object body, object version):
    cdef Py_ssize_t size = 0, body_size = PyBytes_GET_SIZE(body)
    cdef int i, key_at = -1, signature_at = -1, left_out = -1
    cdef bint is_old = version <= 399
    cdef const uint8_t *pos
    cdef const uint8_t *end
    cdef uint8_t *out
    cdef bytes content
    for i in range(count):
        if fields[i].name_size == 9 and memcmp(fields[i].name, b"AccessKey", 9) == 0:
            key_at = i
        elif fields[i].name_size == 9 and memcmp(fields[i].name, b"Signature", 9) == 0:
            signature_at = i
            continue
        elif is_old and fields[i].name_size == 17 and memcmp(fields[i].name, b"_UNIQUE_KEY_QUERY", 17) == 0:
            left_out = i
            continue
        size += fields[i].size
    if key_at < 0 or signature_at < 0:
        return None
    content = PyBytes_FromStringAndSize(NULL, size + body_size)
    out = <uint8_t *>PyBytes_AS_STRING(content)
    for i in range(count):
        if i == signature_at or i == left_out:
            continue
        if fields[i].size == fields[i].raw_size:
            memcpy(out, fields[i].value, fields[i].size)
            out += fields[i].size
            continue
        pos = fields[i].value
        end = pos + fields[i].raw_size
        while pos < end:
            if pos[0] == 92:
                out += _unescaped(&pos, out)
            else:
                out[0] = pos[0]
                out += 1
                pos += 1
    memcpy(out, PyBytes_AS_STRING(body), body_size)
    return _plain_text(&fields[key_at]), _plain_text(&fields[signature_at]), content


cdef object _plain_text(const _Field *one):
    if one.size != one.raw_size:
        raise _NotUsual
    return (<const char *>one.value)[:one.raw_size].decode("utf-8")
