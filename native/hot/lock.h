/* Lock, a type of Python's; and what it shares with the append lock. */
#ifndef TS_LOCK_H
#define TS_LOCK_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyTypeObject ts_lock_type;

/* How many locks of both types this thread has, without the wide ones; and without the long ones, too. */
extern _Thread_local int ts_held_locks, ts_short_locks;

/* Raises what was given to refuse_by, for a thread that asked for a lock which it has; -1. */
int ts_refuse(void);

/* Whether the interpreter is ending: a lock that is not free stays so, for its thread was stopped. */
int ts_is_exiting(void);

PyObject *ts_refuse_by(PyObject *module, PyObject *make_error);
PyObject *ts_count_held(PyObject *module, PyObject *unused);
PyObject *ts_count_short(PyObject *module, PyObject *unused);
PyObject *ts_count_syncs(PyObject *module, PyObject *more);

#endif
