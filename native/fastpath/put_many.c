/* The fast path of put_many(), in C, without releasing the GIL.
 *
 * Through Python a call costs 20 us whatever its length, as much as the records of 200 messages;
 * here it costs 1. Longer lists go to Python, which releases the GIL while their records are
 * written.
 *
 * The fast path handles one case: topic and a list of bytes by position, and no other argument
 * except deliver_ms (an int64 array or one number) or delay (one number). All other calls, and
 * calls that find no space, go unchanged to the method of the same name in store.py.
 *
 * Steps that may run foreign code (an allocation can start a collection and its finalizers) come
 * first. Then, without such code, the store is checked to be open, the arguments are checked, and
 * the records are appended if the append lock is free. So the list does not change and the store is
 * not closed during these steps.
 */
#include "fastpath/putter.h"

#include "log/critical_section.h"

enum {
    ROWS_MAX = 1024,
    BODY_BYTES_MAX = 1 << 18, /* with the records of ROWS_MAX about 0.1 ms in all */
    COLUMNS = 4
};

static const char *const column_names[COLUMNS] = {"log_offsets", "queue_offsets", "due_ms",
                                                  "timer_ids"};
static PyObject *columns[COLUMNS], *name_origin, *name_counter_begin, *name_queue_id, *name_given;

typedef struct {
    int32_t count;
    int64_t now_ms;
    int64_t soonest_ms;          /* due time of the first; 0: one is due now */
    int64_t *log_offsets;        /* columns of the batch, one number for each message */
    int64_t *queue_offsets;
    int64_t *due_ms;             /* before the append 0 means: now */
    int64_t *timer_ids;
    ts_slice bodies[ROWS_MAX];
} many;

int ts_many_prepare(void)
{
    name_origin = PyUnicode_InternFromString("origin");
    name_counter_begin = PyUnicode_InternFromString("counter_begin");
    name_queue_id = PyUnicode_InternFromString("queue_id");
    name_given = PyUnicode_InternFromString("given");
    for (int i = 0; i < COLUMNS; i++)
        if ((columns[i] = PyUnicode_InternFromString(column_names[i])) == NULL)
            return -1;
    return name_origin && name_counter_begin && name_queue_id && name_given ? 0 : -1;
}

/* Set an attribute of a batch, which is read-only for Python code. Takes over the reference. */
static int set(PyObject *batch, PyObject *name, PyObject *value)
{
    int status = value == NULL ? -1 : PyObject_GenericSetAttr(batch, name, value);

    Py_XDECREF(value);
    return status;
}

/* Make a batch with its columns, whose numbers are set later. Return NULL with an exception set. */
static PyObject *make_batch(const Putter *self, many *call)
{
    PyObject *shape = Py_BuildValue("(ii)", COLUMNS, call->count), *batch = NULL;
    PyObject *arguments[] = {shape, (PyObject *)&PyLong_Type};
    PyObject *rows = shape == NULL ? NULL : PyObject_Vectorcall(self->empty, arguments, 2, NULL);
    int64_t *at = NULL;
    Py_buffer whole;

    if (rows != NULL && PyObject_GetBuffer(rows, &whole, PyBUF_WRITABLE) == 0) {
        if (whole.len == (Py_ssize_t)sizeof(int64_t) * COLUMNS * call->count)
            at = whole.buf; /* stays valid: the columns own it */
        else
            PyErr_SetString(PyExc_SystemError, "put_many: numpy's int is not int64");
        PyBuffer_Release(&whole);
    }
    if (at != NULL)
        batch = self->batch->tp_alloc(self->batch, 0);
    for (int i = 0; batch != NULL && i < COLUMNS; i++)
        if (set(batch, columns[i], PySequence_GetItem(rows, i)) < 0)
            Py_CLEAR(batch);
    Py_XDECREF(shape);
    Py_XDECREF(rows);
    call->log_offsets = at;
    call->queue_offsets = at + call->count;
    call->due_ms = at + 2 * call->count;
    call->timer_ids = at + 3 * call->count;
    return batch;
}

/* Copy due times from an array. Return 1, or 0 if the caller did not pass an array. */
static int copy_times(const many *call, PyObject *const *values, PyObject *names)
{
    Py_buffer given;
    int is_plain;

    if (names == NULL || PyTuple_GET_SIZE(names) != 1 ||
        PyTuple_GET_ITEM(names, 0) != ts_name_deliver_ms || !PyObject_CheckBuffer(values[0]))
        return 0;
    if (PyObject_GetBuffer(values[0], &given, PyBUF_ND | PyBUF_FORMAT) < 0) {
        PyErr_Clear(); /* an array with strides */
        return 0;
    }
    is_plain = given.ndim == 1 && given.itemsize == sizeof(int64_t) && given.format != NULL &&
               (given.format[0] == 'l' || given.format[0] == 'q') && given.format[1] == 0 &&
               given.len == (Py_ssize_t)sizeof(int64_t) * call->count;
    if (is_plain)
        memcpy(call->due_ms, given.buf, (size_t)given.len);
    PyBuffer_Release(&given);
    return is_plain;
}

/* Set times that have passed to 0. Return 0 if one is too far ahead. */
static int settle_times(const Putter *self, many *call)
{
    call->soonest_ms = INT64_MAX;
    for (int32_t i = 0; i < call->count; i++) {
        int64_t due_ms = call->due_ms[i];

        if (due_ms <= call->now_ms)
            call->due_ms[i] = due_ms = 0;
        else if (due_ms - call->now_ms > self->delay_ms_max)
            return 0;
        if (due_ms < call->soonest_ms)
            call->soonest_ms = due_ms;
    }
    return 1;
}

/* Find all bodies. Return their size, or -1 if one is not bytes or too large, or the list has
 * changed. */
static int32_t find_bodies(many *call, PyObject *list, Py_ssize_t body_bytes_max)
{
    Py_ssize_t bytes = 0;

    if (PyList_GET_SIZE(list) != call->count)
        return -1;
    for (int32_t i = 0; i < call->count; i++) {
        PyObject *body = PyList_GET_ITEM(list, i);
        Py_ssize_t size;

        if (!PyBytes_CheckExact(body) || (size = PyBytes_GET_SIZE(body)) > body_bytes_max ||
            (bytes += size) > BODY_BYTES_MAX)
            return -1;
        call->bodies[i] = (ts_slice){(const uint8_t *)PyBytes_AS_STRING(body), (int32_t)size};
    }
    return (int32_t)bytes;
}

/* Append all messages. Return the number of the first id. Return -1 if the slow path must do it,
 * or, with an exception set, if the append failed. */
static int64_t append(const Putter *self, ts_route *route, many *call, int32_t body_bytes)
{
    ts_column_batch rows = {.parts = call->bodies, .due_ms = call->due_ms, .count = call->count};
    int32_t done = 0, fits = 0;

    if (!ts_log_try_lock(self->log))
        return -1;
    rows.first_unique = self->log->unique_counter;
    if (ts_put_many_fits(self->log, route, &rows, body_bytes, call->now_ms)) {
        self->log->unique_counter += call->count;
        done = ts_put_many(self->log, route, &rows, 0, call->count, call->now_ms,
                           call->log_offsets, call->timer_ids);
        fits = 1;
    }
    ts_log_unlock(self->log);
    if (!fits)
        return -1;
    if (done == call->count)
        return rows.first_unique;
    PyErr_SetString(PyExc_SystemError, "put_many: a batch that fits was not appended");
    return -1;
}

/* Convert the columns to their public form: a message that is due now has no timer. */
static void finish(const many *call)
{
    for (int32_t i = 0; i < call->count; i++) {
        int is_timer = call->due_ms[i] > 0;

        call->queue_offsets[i] = is_timer ? -1 : call->timer_ids[i];
        if (!is_timer) {
            call->timer_ids[i] = -1;
            call->due_ms[i] = call->now_ms;
        }
    }
}

/* Check all arguments and append the messages. Runs no foreign code. */
static int64_t check_and_append(const Putter *self, PyObject *const *args, PyObject *names,
                                many *call, int has_times, PyObject *batch)
{
    PyObject *entry = ts_topic_entry(self, args[0]);
    int32_t bytes;

    if (entry == NULL)
        return -1;
    call->now_ms = ts_now_ms_of_system();
    if (!has_times) {
        int64_t due_ms = ts_due_ms_of(self, args + 2, names, call->now_ms);

        if (due_ms < 0)
            return -1;
        for (int32_t i = 0; i < call->count; i++)
            call->due_ms[i] = due_ms;
    }
    bytes = find_bodies(call, args[1], PyLong_AsSsize_t(PyTuple_GET_ITEM(entry, 2)));
    if (bytes < 0 || !settle_times(self, call) ||
        set(batch, name_origin, Py_NewRef(PyTuple_GET_ITEM(entry, 1))) < 0)
        return -1;
    return append(self, PyLong_AsVoidPtr(PyTuple_GET_ITEM(entry, 0)), call, bytes);
}

/* Put the messages and complete the batch. Return 1, 0 if the slow path must do it, or -1 with an
 * exception set. */
static int put(Putter *self, PyObject *const *args, PyObject *names, many *call,
               PyObject *batch, int waits)
{
    int has_times = copy_times(call, args + 2, names);
    int64_t first = check_and_append(self, args, names, call, has_times, batch);

    if (first < 0)
        return PyErr_Occurred() ? -1 : 0;
    finish(call);
    if (set(batch, name_counter_begin, PyLong_FromLongLong(first)) < 0 ||
        set(batch, name_queue_id, Py_NewRef(ts_zero)) < 0 || /* a topic with one queue */
        set(batch, name_given, Py_NewRef(Py_None)) < 0)
        return -1;
    return ts_finish_put(self, call->log_offsets[call->count - 1], call->soonest_ms, call->now_ms,
                         waits) < 0
               ? -1
               : 1;
}

/* Make the batch, and put the messages as above. */
static int put_plain(Putter *self, PyObject *const *args, Py_ssize_t count, PyObject *names,
                     int waits, PyObject **batch)
{
    int done = 0;

    if (count == 2 && PyList_CheckExact(args[1]) && PyList_GET_SIZE(args[1]) > 0 &&
        PyList_GET_SIZE(args[1]) <= ROWS_MAX && ts_topic_entry(self, args[0]) != NULL) {
        many call;

        call.count = (int32_t)PyList_GET_SIZE(args[1]);
        *batch = make_batch(self, &call);
        done = *batch == NULL ? -1 : put(self, args, names, &call, *batch, waits);
        if (done <= 0)
            Py_CLEAR(*batch);
    }
    if (done == 0 && PyErr_Occurred())
        PyErr_Clear(); /* of a look-up; the slow path repeats it */
    return done;
}

PyObject *ts_putter_put_many(Putter *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    PyObject *batch = NULL;

    if (put_plain(self, args, count, names, 1, &batch) == 0)
        return ts_call_slow(self->slow_many, args, count, names);
    return batch;
}

PyObject *ts_putter_begin_put_many(Putter *self, PyObject *const *args, Py_ssize_t count,
                                   PyObject *names)
{
    PyObject *batch = NULL;

    if (put_plain(self, args, count, names, 0, &batch) == 0)
        Py_RETURN_NONE;
    return batch;
}
