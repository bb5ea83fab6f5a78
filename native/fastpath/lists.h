/* Reading a caller's list of Python objects in one pass, and making one: lists.c. */
#ifndef TS_LISTS_H
#define TS_LISTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* join(bodies, offsets) -> (bytes, largest) or None. Join a list of bytes objects. `largest` is the
 * size of the largest. `offsets`, int64 with one item more than the list, gets where each body
 * begins and the last one ends. Return None if the list contains anything else. */
PyObject *ts_join(PyObject *module, PyObject *const *args, Py_ssize_t count);

/* split(bytes, offsets) -> list of bytes. Split any buffer: object k is the bytes from offsets[k]
 * to offsets[k + 1]. Raise ValueError if these are not within the buffer. */
PyObject *ts_split(PyObject *module, PyObject *const *args, Py_ssize_t count);

/* read_handles(given, begin, named, names, PutReceipt, ReceiptOrigin) -> int. Read a list of
 * receipts and handles from index `begin` on. Each gets a ts_handle at its index in `named`, and
 * its texts are appended to the bytearray `names`. Return the index of the first object that is
 * neither a timer's receipt nor a handle in the form that this engine writes, or the list's length.
 * log_offset is -1 for a handle. */
PyObject *ts_read_handles(PyObject *module, PyObject *const *args, Py_ssize_t count);

#endif
