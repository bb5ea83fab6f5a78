/* What a caller's list of Python objects holds, read in one walk; and a list made: lists.c. */
#ifndef TS_LISTS_H
#define TS_LISTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* join(bodies, offsets) -> (bytes, largest) or None. Of a list of bytes: all behind one another, the
 * size of the largest, and where each begins and the last one ends in `offsets`, int64 of one more
 * than there are. None where there is anything else in it. */
PyObject *ts_join(PyObject *module, PyObject *const *args, Py_ssize_t count);

/* split(bytes, offsets) -> list of bytes. The other way round, of any buffer: object k is what lies
 * from offsets[k] to offsets[k + 1]. ValueError where that is not in it. */
PyObject *ts_split(PyObject *module, PyObject *const *args, Py_ssize_t count);

/* read_handles(given, begin, named, names, PutReceipt, ReceiptOrigin) -> int. Of a list of receipts and
 * handles, from `begin` on, what they name: a ts_handle each, in their places in `named`, texts added
 * to the bytearray `names`. Up to where it stops: at the end, or at the first that is neither a
 * timer's receipt nor a handle as this engine writes it. log_offset: -1 of a handle. */
PyObject *ts_read_handles(PyObject *module, PyObject *const *args, Py_ssize_t count);

#endif
