/* Lock as a Python type, and what it shares with the append lock. */
#ifndef TS_LOCK_H
#define TS_LOCK_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyTypeObject ts_lock_type;

/* Return whether this thread holds a Lock. */
int ts_lock_is_mine(PyObject *lock);

/* Raise the error that the function passed to set_reentrant_error makes. Return -1. Called when a
 * thread asks for a lock that it holds, or for a lock that is not free while the interpreter ends.
 */
int ts_raise_reentrant(void);

/* Return whether the interpreter is ending. A lock that is not free then stays so, because its
 * thread was stopped. */
int ts_is_exiting(void);

PyObject *ts_set_reentrant_error(PyObject *module, PyObject *make_error);

#endif
