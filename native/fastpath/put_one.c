/* The fast path of put(), in C, without releasing the GIL.
 *
 * A put is too short to release the GIL or to enter C through cffi (docs/decisions/0002-group-commit.md). So
 * this folder
 * uses Python.h; the other folders do not.
 *
 * The fast path handles one case: topic and body by position; no other argument except deliver_ms,
 * delay, or a level that was used before; a topic with one queue that was used before; plain bytes
 * that fit; the system's clock; a free append lock; and space in the staging. All other calls go
 * unchanged to the method of the same name in api.py. It does the same and more, and reports what
 * is wrong with an argument.
 */
#include "fastpath/putter.h"

#include "fastpath/group_commit.h"
#include "log/critical_section.h"

static PyObject *name_delay, *name_level;

/* Return the milliseconds of a delay, rounded up, or -1 if the slow path must read it. */
static int64_t delay_ms_of(PyObject *delay)
{
    if (PyFloat_CheckExact(delay)) {
        double seconds = PyFloat_AS_DOUBLE(delay);
        int64_t microseconds;

        if (!(seconds >= 0.0 && seconds < 1e9))
            return -1;
        microseconds = (int64_t)(seconds * 1e6 + 0.5);
        return (microseconds + 999) / 1000;
    }
    if (PyLong_CheckExact(delay)) {
        int overflow = 0;
        long long seconds = PyLong_AsLongLongAndOverflow(delay, &overflow);

        if (overflow == 0 && seconds >= 0 && seconds < 1000000000)
            return seconds * 1000;
    }
    return -1;
}

int64_t ts_due_ms_of(const Putter *self, PyObject *const *values, PyObject *names, int64_t now_ms)
{
    int64_t due_ms;

    if (names == NULL || PyTuple_GET_SIZE(names) == 0)
        return 0;
    if (PyTuple_GET_SIZE(names) != 1)
        return -1;
    if (PyTuple_GET_ITEM(names, 0) == ts_name_deliver_ms && PyLong_CheckExact(values[0])) {
        int overflow = 0;

        due_ms = PyLong_AsLongLongAndOverflow(values[0], &overflow);
        if (overflow != 0)
            return -1;
    } else if (PyTuple_GET_ITEM(names, 0) == name_delay) {
        int64_t delay_ms = delay_ms_of(values[0]);

        if (delay_ms < 0)
            return -1;
        due_ms = now_ms + delay_ms;
    } else {
        return -1;
    }
    if (due_ms <= now_ms)
        return 0;
    return due_ms - now_ms > self->delay_ms_max ? -1 : due_ms;
}

/* Return the entry of the level if the caller passed one that was used before; else NULL. */
static PyObject *level_entry(PyObject *entry, PyObject *const *values, PyObject *names)
{
    if (names == NULL || PyTuple_GET_SIZE(names) != 1 ||
        PyTuple_GET_ITEM(names, 0) != name_level || !PyLong_CheckExact(values[0]))
        return NULL;
    return PyDict_GetItemWithError(PyTuple_GET_ITEM(entry, 3), values[0]);
}

enum { RECEIPT_ITEMS = 9 };

/* The results of an append. */
typedef struct {
    int64_t log_offset;
    int64_t number;
    int64_t counter;
    int64_t due_ms;  /* 0: now */
    int64_t now_ms;
    int is_timer;
} appended;

/* Return the previous receipt if no one else refers to it, as zip() reuses its tuple; else a new
 * one. Making and freeing a receipt takes a fifth of a put. */
static PyObject *take_receipt(Putter *self)
{
    PyObject *last = self->last;

    self->last = NULL;
    if (last == NULL || Py_REFCNT(last) != 1) {
        Py_XDECREF(last);
        last = self->receipt->tp_alloc(self->receipt, RECEIPT_ITEMS);
    }
#if PY_VERSION_HEX >= 0x030E0000 /* a tuple caches its hash */
    if (last != NULL)
        ((PyTupleObject *)last)->ob_hash = -1;
#endif
    return last;
}

/* `due` is the caller's own int object for done->due_ms, or NULL. */
static PyObject *make_receipt(Putter *self, PyObject *origin, const appended *done, PyObject *due)
{
    int waits = done->due_ms > 0;
    PyObject *receipt = take_receipt(self);
    PyObject *items[RECEIPT_ITEMS] = {NULL};

    if (receipt == NULL)
        return NULL;
    items[0] = Py_NewRef(origin);
    items[1] = PyLong_FromLongLong(done->counter);
    items[2] = PyLong_FromLongLong(done->is_timer ? done->number : -1);
    items[3] = Py_NewRef(ts_zero); /* a topic with one queue: number 0 */
    items[4] = waits ? Py_NewRef(Py_None) : PyLong_FromLongLong(done->number);
    items[5] = PyLong_FromLongLong(done->log_offset);
    items[6] = due != NULL ? Py_NewRef(due)
                           : PyLong_FromLongLong(waits ? done->due_ms : done->now_ms);
    items[7] = Py_NewRef(Py_False);
    items[8] = Py_NewRef(Py_False);
    for (Py_ssize_t i = 0; i < RECEIPT_ITEMS; i++) {
        PyObject *before = PyTuple_GET_ITEM(receipt, i);

        PyTuple_SET_ITEM(receipt, i, items[i]);
        Py_XDECREF(before);
    }
    if (PyErr_Occurred()) {
        Py_DECREF(receipt);
        return NULL;
    }
    return receipt;
}

/* Append the message if the lock is free. Return 1, or 0 if the slow path must do it. */
static int append(const Putter *self, PyObject *entry, PyObject *level, PyObject *body,
                  appended *done)
{
    ts_route *real = PyLong_AsVoidPtr(PyTuple_GET_ITEM(entry, 0));
    ts_route *route = level != NULL ? PyLong_AsVoidPtr(PyTuple_GET_ITEM(level, 0)) : real;
    const uint8_t *bytes = (const uint8_t *)PyBytes_AS_STRING(body);
    int32_t size = (int32_t)PyBytes_GET_SIZE(body);
    int64_t delay_ms = level != NULL ? PyLong_AsLongLong(PyTuple_GET_ITEM(level, 2)) : 0;

    if (!ts_log_try_lock(self->log))
        return 0;
    if (level != NULL && self->log->calendar != NULL) {
        ts_log_unlock(self->log);
        return 0; /* the slow path counts it in the calendar */
    }
    if (level != NULL) { /* read the time under the lock, so that due times ascend along the
                          * level's queue */
        done->now_ms = ts_now_ms_of_system();
        done->due_ms = done->now_ms + delay_ms;
    }
    done->log_offset =
        level == NULL
            ? ts_put_one(self->log, route, bytes, size, done->is_timer ? done->due_ms : 0, NULL, 0,
                         done->now_ms)
            : ts_put_level(self->log, route, bytes, size,
                           (const uint8_t *)PyBytes_AS_STRING(PyTuple_GET_ITEM(level, 1)),
                           (int32_t)PyBytes_GET_SIZE(PyTuple_GET_ITEM(level, 1)), done->now_ms,
                           done->due_ms);
    if (level != NULL && done->log_offset >= 0)
        real->level_pending++;
    done->number = self->log->out[0];
    done->counter = self->log->out[1];
    ts_log_unlock(self->log);
    return done->log_offset >= 0;
}

/* Return the entry of the topic if the fast path handles the call, else NULL. */
static PyObject *plain_entry(const Putter *self, PyObject *const *args, Py_ssize_t count)
{
    PyObject *entry = count == 2 && PyBytes_CheckExact(args[1]) ? ts_topic_entry(self, args[0])
                                                                 : NULL;

    if (entry == NULL ||
        PyBytes_GET_SIZE(args[1]) > PyLong_AsSsize_t(PyTuple_GET_ITEM(entry, 2)))
        return NULL;
    return entry;
}

/* Register a call in `calls`, under an address on this thread's stack, before any Python code runs
 * in it: close() in a signal handler must find it there. Return the new key, or NULL with an
 * exception set. */
static PyObject *enter_call(const Putter *self, const void *place)
{
    PyObject *call = PyLong_FromVoidPtr((void *)(uintptr_t)place);
    PyObject *thread = PyLong_FromUnsignedLong(PyThread_get_thread_ident());

    if (call != NULL && (thread == NULL || PyDict_SetItem(self->calls, call, thread) < 0))
        Py_CLEAR(call);
    Py_XDECREF(thread);
    return call;
}

/* Remove a call and release its key. Return -1 with an exception set. */
static int leave_call(const Putter *self, PyObject *call)
{
    int status = self->calls == NULL ? 0 : PyDict_DelItem(self->calls, call); /* NULL: collected */

    Py_DECREF(call);
    return status;
}

/* Make the log durable below log_offset + 1. Return -1 with an exception set.
 *
 * If another thread leads a sync round, wait for it without Python. Otherwise, and if the round did
 * not serve this put, `sync` leads the next one. It also raises if a file was truncated.
 */
static int sync_through(Putter *self, int64_t log_offset)
{
    int32_t hits = __atomic_load_n(self->hits, __ATOMIC_RELAXED);
    PyObject *end, *answer = NULL;
    int got = -1;

    if (hits == self->hits_seen && ts_group_commit_is_led_elsewhere(self->group_commit)) {
        got = ts_group_commit_wait(self->group_commit, log_offset + 1);
        if (got < 0)
            return -1;
        hits = __atomic_load_n(self->hits, __ATOMIC_RELAXED);
        if (got > 0 && hits == self->hits_seen)
            return 0;
    }
    end = PyLong_FromLongLong(log_offset + 1);
    if (end != NULL)
        answer = PyObject_CallOneArg(self->sync, end);
    Py_XDECREF(end);
    if (answer == NULL) {
        if (got == 0) /* the error may have come before `sync` took the lead */
            ts_group_commit_abandon(self->group_commit);
        return -1;
    }
    Py_DECREF(answer);
    self->hits_seen = hits;
    return 0;
}

/* Wait for a sync. The thread that syncs wakes the services.
 *
 * Between the append and this call an allocation may have run a finalizer that closed the store.
 * Then everything is durable, or the log has failed and raises.
 */
static int wait_durable(Putter *self, int64_t log_offset)
{
    PyObject *call = enter_call(self, &log_offset), *type, *value, *trace;
    int status;

    if (call == NULL)
        return -1;
    self->inside++;
    status = sync_through(self, log_offset);
    self->inside--;
    PyErr_Fetch(&type, &value, &trace);
    if (leave_call(self, call) < 0 || (self->blocked && ts_call(self->left) < 0)) {
        if (status == 0)
            return -1;
        PyErr_Clear(); /* keep the first error */
    }
    PyErr_Restore(type, value, trace);
    return status;
}

/* Return whether dispatch must be woken for a message with this due time. It may be scheduled to
 * run within milliseconds anyway. The same as Appender.notify (timerstore/_engine/write/append.py). */
static int wants_dispatch(const ts_log *log, int is_armed, int64_t due_ms, int64_t now_ms)
{
    if (due_ms <= now_ms + log->soon_ms &&
        __atomic_load_n(&log->wait_count, __ATOMIC_RELAXED) > 0)
        return 1;
    return !__atomic_load_n(&log->dispatch_scheduled, __ATOMIC_RELAXED) &&
           (!is_armed || due_ms <= now_ms + log->near_ms);
}

static int wake_dispatch(Putter *self)
{
    PyObject *is_silent = PyObject_CallNoArgs(self->is_dispatch_silent);

    if (is_silent == NULL)
        return -1;
    Py_DECREF(is_silent);
    return is_silent == Py_False ? 0 : ts_call(self->wake_dispatch);
}

static int notify_services(Putter *self, int64_t due_ms, int64_t now_ms)
{
    int32_t hits = __atomic_load_n(self->hits, __ATOMIC_RELAXED), is_armed;

    if (hits != self->hits_seen) {
        if (ts_call(self->check_alive) < 0)
            return -1;
        self->hits_seen = hits;
    }
    is_armed = __atomic_load_n(&self->log->flush_armed, __ATOMIC_RELAXED);
    if (wants_dispatch(self->log, is_armed, due_ms, now_ms) && wake_dispatch(self) < 0)
        return -1;
    if (is_armed)
        return 0;
    /* Set before the wake-up: once flush runs, it sets the flag itself. */
    __atomic_store_n(&self->log->flush_armed, 1, __ATOMIC_RELAXED);
    if (ts_call(self->wake_flush) == 0)
        return 0;
    __atomic_store_n(&self->log->flush_armed, 0, __ATOMIC_RELAXED);
    return -1;
}

int ts_finish_put(Putter *self, int64_t log_offset, int64_t due_ms, int64_t now_ms, int waits)
{
    if (self->sync == Py_None)
        return notify_services(self, due_ms, now_ms);
    return waits ? wait_durable(self, log_offset) : 0;
}

/* Put the message. Return 1, 0 if the slow path must do it, or -1 with an exception set. */
static int put_plain(Putter *self, PyObject *const *args, Py_ssize_t count, PyObject *names,
                     int waits, PyObject **receipt)
{
    PyObject *entry = plain_entry(self, args, count);
    int got = 0;

    if (entry != NULL) {
        PyObject *level = level_entry(entry, args + count, names);
        appended done = {.now_ms = ts_now_ms_of_system()};
        PyObject *due = NULL;

        if (level == NULL) {
            done.due_ms = ts_due_ms_of(self, args + count, names, done.now_ms);
            done.is_timer = done.due_ms > 0;
            if (done.is_timer && PyTuple_GET_ITEM(names, 0) == ts_name_deliver_ms)
                due = args[count];
        }
        got = done.due_ms < 0 ? 0 : append(self, entry, level, args[1], &done);

        if (got > 0) {
            *receipt = make_receipt(self, PyTuple_GET_ITEM(entry, 1), &done, due);
            if (*receipt == NULL)
                return -1;
            if (ts_finish_put(self, done.log_offset, done.due_ms, done.now_ms, waits) < 0) {
                Py_CLEAR(*receipt);
                return -1;
            }
            Py_XSETREF(self->last, Py_NewRef(*receipt));
        }
    }
    if (got == 0 && PyErr_Occurred())
        PyErr_Clear(); /* of a look-up; the slow path repeats it */
    return got;
}

PyObject *ts_putter_put(Putter *self, PyObject *const *args, Py_ssize_t count,
                        PyObject *names)
{
    PyObject *receipt = NULL;

    if (put_plain(self, args, count, names, 1, &receipt) == 0)
        return ts_call_slow(self->slow, args, count, names);
    return receipt;
}

/* Put without waiting for the sync, which the caller does itself. Never blocks. */
PyObject *ts_putter_begin_put(Putter *self, PyObject *const *args, Py_ssize_t count,
                              PyObject *names)
{
    PyObject *receipt = NULL;

    if (put_plain(self, args, count, names, 0, &receipt) == 0)
        Py_RETURN_NONE;
    return receipt;
}

int ts_put_one_prepare(void)
{
    name_delay = PyUnicode_InternFromString("delay");
    name_level = PyUnicode_InternFromString("level");
    return name_delay == NULL || name_level == NULL ? -1 : 0;
}
