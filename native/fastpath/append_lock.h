/* The append lock as a Python type. */
#ifndef TS_APPEND_LOCK_H
#define TS_APPEND_LOCK_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyTypeObject ts_append_lock_type;

#endif
