/* Lock, a type of Python's; and what it shares with the append lock. */
#ifndef TS_LOCK_H
#define TS_LOCK_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyTypeObject ts_lock_type;

/* Raise the error that the function given to set_reentrant_error makes; return -1. Called when a thread asks for
 * a lock that it holds, or for any lock that is taken while the interpreter ends. */
int ts_raise_reentrant(void);

/* Whether the interpreter is ending: a lock that is not free stays so, for its thread was stopped. */
int ts_is_exiting(void);

PyObject *ts_set_reentrant_error(PyObject *module, PyObject *make_error);

#endif
