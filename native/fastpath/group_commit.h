/* GroupCommit: choose the thread that syncs the log, and let the others wait without the GIL. */
#ifndef TS_GROUP_COMMIT_H
#define TS_GROUP_COMMIT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyTypeObject ts_group_commit_type;

/* Whether another thread leads a round, so that the calling thread may wait for its end. False if
 * the thread has the write lock, which the leader needs. */
int ts_group_commit_is_led_elsewhere(PyObject *group_commit);

/* Wait for the end of the round of another thread. Return 1 if the log is durable below log_offset,
 * 0 if the caller must look again and may have to lead, or -1 with the exception of a signal handler
 * set. */
int ts_group_commit_wait(PyObject *group_commit, int64_t log_offset);

/* Leave after an exception, whether the thread was leading or had to look again: wake all waiters.
 */
void ts_group_commit_abandon(PyObject *group_commit);

#endif
