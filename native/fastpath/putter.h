/* Putter: the state that the fast paths of put and put_many need, and the code that they share. */
#ifndef TS_PUTTER_H
#define TS_PUTTER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <time.h>

#include "timerstore.h"

typedef struct {
    PyObject_HEAD
    ts_log *log;
    PyObject *slow;           /* TimerStore.put, bound */
    PyObject *slow_many;      /* TimerStore.put_many, bound */
    PyObject *topics;         /* dict: topic -> (address of its ts_route, origin, body_bytes_max,
                               * dict: level -> (address of its ts_route, property text, delay
                               * ms)) */
    PyObject *wake_dispatch;
    PyObject *is_dispatch_silent; /* whether it was not woken since it last began to run */
    PyObject *wake_flush;
    PyObject *sync;           /* None, or a method of TimerStore that makes the log durable up to
                               * an offset */
    PyObject *group_commit;   /* of the log: a put waits there for the sync of another thread */
    PyObject *calls;          /* dict of TimerStore: running call -> ident of its thread */
    PyObject *left;           /* tells a thread that closes the store that the call ended */
    PyObject *failpoints;     /* dict of the module: its "hook" is None outside tests */
    PyObject *check_alive;    /* of the log: raises if a file was truncated */
    PyTypeObject *receipt;    /* PutReceipt, a tuple of nine */
    PyObject *last;           /* the receipt that was returned last, or NULL */
    PyTypeObject *batch;      /* PutBatch, with slots */
    PyObject *empty;          /* numpy.empty */
    const int32_t *hits;      /* number of faults in truncated maps (os/map_guard.c) */
    int32_t hits_seen;
    long long delay_ms_max;   /* -1: no timers */
    int blocked;              /* closed, or inherited by a child process */
    int inside;               /* calls that wait for a sync; each is in `calls`, so close waits
                               * for it */
} Putter;

extern PyObject *ts_name_deliver_ms, *ts_name_hook, *ts_zero;

/* put_one.c */
int ts_put_one_prepare(void);
PyObject *ts_putter_put(Putter *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *ts_putter_begin_put(Putter *self, PyObject *const *args, Py_ssize_t count,
                              PyObject *names);

/* put_many.c */
int ts_many_prepare(void);
PyObject *ts_putter_put_many(Putter *self, PyObject *const *args, Py_ssize_t count,
                             PyObject *names);
PyObject *ts_putter_begin_put_many(Putter *self, PyObject *const *args, Py_ssize_t count,
                                   PyObject *names);

static inline int64_t ts_now_ms_of_system(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Call `slow` or `slow_many`. A Putter that was never initialised, or was collected, has neither.
 */
static inline PyObject *ts_call_slow(PyObject *slow, PyObject *const *args, Py_ssize_t count,
                                     PyObject *names)
{
    PyObject *answer;

    if (slow == NULL) {
        PyErr_SetString(PyExc_ReferenceError,
                        "Putter: wanted one of an open store, got one without a store");
        return NULL;
    }
    Py_INCREF(slow); /* a collector may clear it during the call */
    answer = PyObject_Vectorcall(slow, args, (size_t)count, names);
    Py_DECREF(slow);
    return answer;
}

static inline int ts_call(PyObject *callable)
{
    PyObject *answer = PyObject_CallNoArgs(callable);

    Py_XDECREF(answer);
    return answer == NULL ? -1 : 0;
}

/* Return the entry of a topic that has a fast path now, else NULL. */
static inline PyObject *ts_topic_entry(const Putter *self, PyObject *topic)
{
    PyObject *entry;

    if (self->blocked || self->topics == NULL || !PyUnicode_CheckExact(topic))
        return NULL;
    entry = PyDict_GetItemWithError(self->topics, topic);
    if (entry == NULL || PyDict_GetItemWithError(self->failpoints, ts_name_hook) != Py_None)
        return NULL;
    return entry;
}

/* Return when the message is due: 0 now, -1 if the slow path must read the arguments. */
int64_t ts_due_ms_of(const Putter *self, PyObject *const *values, PyObject *names, int64_t now_ms);

/* Finish a put whose last record is at log_offset. If puts are durable, wait for the sync, unless
 * the caller waits itself. Otherwise wake the services that must handle a message with this due
 * time. Raise if a file was truncated, because the log's memory may have been zeros. */
int ts_finish_put(Putter *self, int64_t log_offset, int64_t due_ms, int64_t now_ms, int waits);

#endif
