# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=False, binding=False
"""Compiled twins of the functions that sends and reads call most. Each plain twin is marked ``@has_twin`` (turbopump/compiled.py), and
its docstring describes both. The compiled function leaves unusual input to the plain twin, which also raises the errors.

A function first checks that all bytes behind a pointer lie inside an object of known length. A map is written only between its acquired
bounds. Cost of the plain twin and of the compiled one, for a message of 1 KiB (docs/explanations/decisions/0005):

    write_entry      1.7 µs  0.72 (half of it the two CRCs)   read_batch   2.5 µs  0.14 a message of a batch
    send_properties  0.94    0.17                             write_batch  2.3     0.61 a message
    key_hash         0.66    0.10                             batch_reply  9.8     0.64 for a batch of 32
    send_reply       1.1     0.28                             put_entries  0.48    0.06 an entry
    gather           1.6     0.08 an entry of 1 KiB
    identified_item  0.5     0.1                              good_positions 1.2 0.03 an entry of 100 bytes
    unread_messages  3.2     0.50 a message of a pull         property_texts  1.1 0.11 a message looked at by a filter
    walk_entries     0.15    0.01 an entry                    split_properties  0.25 0.03 a message, of four properties each
    signed_in_header 6.2     1.8 a header of 14 fields, with a body of 1 KiB
    packed_run       9.3     0.8 an entry of 1 KiB (beside other work)

The module has one file for each use, named like the module of the plain twins. To change a function, change the plain twin first, then the
compiled one.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.tuple cimport PyTuple_Check, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memset

cdef extern from "Python.h":
    bint PyLong_Check(object)
    bint PyUnicode_CheckExact(object)
    bint PyUnicode_IS_COMPACT_ASCII(object)
    Py_ssize_t PyUnicode_GET_LENGTH(object)
    void *PyUnicode_1BYTE_DATA(object)

plain = {}
"""Plain twins by name. ``has_twin`` adds them."""


class _NotUsual(Exception):
    """Raised to leave a call to the plain twin. Always raise a new instance: an old one grows by a traceback each time."""


include "memory.pxi"
include "entry.pxi"
include "codec.pxi"
include "batch.pxi"
include "properties.pxi"
include "packed_batch.pxi"
include "index_file.pxi"
include "send_reply.pxi"
include "entry_check.pxi"
include "matching.pxi"
include "unread.pxi"
include "copied_log.pxi"
include "decode.pxi"
include "signatures.pxi"
include "sigbus.pxi"
