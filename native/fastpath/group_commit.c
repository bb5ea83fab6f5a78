/* One thread syncs the log for all waiting threads. timerstore/_engine/log/commit_log.py has the
 * rules.
 *
 * The GIL protects all fields: no step below releases it between a read and the write that depends
 * on it. A thread sleeps on a futex of its own, without the GIL. The thread that ends a round marks
 * the waiters under the GIL, and then wakes them without it, so that the first that wakes finds the
 * GIL free. A marked waiter may be freed before it is woken. So only the address of its futex is
 * used, which is not read; a thread that sleeps there by then looks at its own mark again.
 *
 * A waiter is on the heap, because the interpreter stops daemon threads at its end without running
 * the rest of their functions. Such a waiter is never freed.
 */
#include "fastpath/group_commit.h"

#include <errno.h>
#include <linux/futex.h>
#include <structmember.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fastpath/lock.h"

enum { SLEEPS, SERVED, WOKEN };

typedef struct waiter {
    struct waiter *next;
    int64_t log_offset; /* of the end of its records */
    uint32_t state;     /* the futex */
} waiter;

typedef struct {
    PyObject_HEAD
    PyObject *write_lock; /* a Lock; the leader takes it */
    waiter *first, *last; /* that sleep, in the order of arrival */
    Py_ssize_t count;
    unsigned long leader; /* thread; undefined if none leads */
    int is_led;
} GroupCommit;

static int is_led_here(const GroupCommit *self)
{
    return self->is_led && self->leader == PyThread_get_thread_ident();
}

int ts_group_commit_is_led_elsewhere(PyObject *group_commit)
{
    const GroupCommit *self = (const GroupCommit *)group_commit;

    return self->is_led && self->leader != PyThread_get_thread_ident() &&
           self->write_lock != NULL && !ts_lock_is_mine(self->write_lock);
}

static void add(GroupCommit *self, waiter *one)
{
    if (self->first == NULL)
        self->first = one;
    else
        self->last->next = one;
    self->last = one;
    self->count++;
}

/* Futexes of waiters that were marked and must be woken. If there are more, the first are woken under
 * the GIL. */
enum { WAKES_MAX = 128 };

typedef struct {
    uint32_t *at[WAKES_MAX];
    int count;
} wakes;

static void wake(wakes *some)
{
    for (int i = 0; i < some->count; i++)
        syscall(SYS_futex, some->at[i], FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    some->count = 0;
}

/* Mark a waiter that is off the list. It may be freed as soon as the GIL is released. */
static void mark(waiter *one, uint32_t state, wakes *some)
{
    if (some->count == WAKES_MAX)
        wake(some);
    some->at[some->count++] = &one->state;
    __atomic_store_n(&one->state, state, __ATOMIC_RELEASE);
}

/* Wake all waiters whose offset `durable` has reached. Of the others, wake the first, or all. */
static void wake_waiters(GroupCommit *self, int64_t durable, int wakes_all)
{
    wakes some = {.count = 0};
    waiter *one = self->first, *next;
    int has_next = 0;

    self->first = self->last = NULL;
    self->count = 0;
    for (; one != NULL; one = next) {
        int is_served = one->log_offset <= durable;

        next = one->next;
        one->next = NULL;
        if (!is_served && has_next && !wakes_all) {
            add(self, one);
            continue;
        }
        has_next |= !is_served;
        mark(one, is_served ? SERVED : WOKEN, &some);
    }
    if (some.count > 0) {
        Py_BEGIN_ALLOW_THREADS
        wake(&some);
        Py_END_ALLOW_THREADS
    }
}

/* Take a waiter off the list. */
static void drop(GroupCommit *self, waiter *gone)
{
    waiter *one = self->first, *next;

    self->first = self->last = NULL;
    self->count = 0;
    for (; one != NULL; one = next) {
        next = one->next;
        one->next = NULL;
        if (one != gone)
            add(self, one);
    }
}

/* Sleep until the waiter is marked. Return 0, or -1 if a signal came. */
static int sleep_until_marked(waiter *me)
{
    int error = 0;

    Py_BEGIN_ALLOW_THREADS
    while (error != EINTR && __atomic_load_n(&me->state, __ATOMIC_ACQUIRE) == SLEEPS)
        error = syscall(SYS_futex, &me->state, FUTEX_WAIT_PRIVATE, SLEEPS, NULL, NULL, 0) < 0
                    ? errno
                    : 0;
    Py_END_ALLOW_THREADS
    return error == EINTR ? -1 : 0;
}

int ts_group_commit_wait(PyObject *group_commit, int64_t log_offset)
{
    GroupCommit *self = (GroupCommit *)group_commit;
    waiter *me;
    int got;

    if (ts_is_exiting())
        return ts_raise_reentrant(); /* the leader was stopped */
    me = PyMem_Calloc(1, sizeof(waiter));
    if (me == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    Py_INCREF(self);
    me->log_offset = log_offset;
    add(self, me);
    if (sleep_until_marked(me) == 0) {
        got = me->state == SERVED;
    } else {
        /* The handler may raise, take long, or wait here itself. So another thread leads. */
        if (me->state == SLEEPS)
            drop(self, me);
        else if (me->state == WOKEN)
            wake_waiters(self, INT64_MIN, 0);
        got = PyErr_CheckSignals() < 0 ? -1 : 0;
    }
    PyMem_Free(me);
    Py_DECREF(self);
    return got;
}

void ts_group_commit_abandon(PyObject *group_commit)
{
    GroupCommit *self = (GroupCommit *)group_commit;

    if (is_led_here(self))
        self->is_led = 0;
    wake_waiters(self, INT64_MIN, 1);
}

static int GroupCommit_init(GroupCommit *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"write_lock", NULL};
    PyObject *write_lock;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!", names, &ts_lock_type, &write_lock))
        return -1;
    Py_XSETREF(self->write_lock, Py_NewRef(write_lock));
    return 0;
}

static void GroupCommit_dealloc(GroupCommit *self)
{
    Py_XDECREF(self->write_lock);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* Return 1 and the offset, or 0 with an exception set. */
static int offset_of(PyObject *given, int64_t *log_offset)
{
    *log_offset = PyLong_AsLongLong(given);
    return *log_offset != -1 || !PyErr_Occurred();
}

static PyObject *GroupCommit_lead(GroupCommit *self, PyObject *given)
{
    int64_t log_offset;

    if (!offset_of(given, &log_offset))
        return NULL;
    if (!self->is_led) {
        self->leader = PyThread_get_thread_ident();
        self->is_led = 1;
        Py_RETURN_TRUE;
    }
    if (ts_group_commit_wait((PyObject *)self, log_offset) < 0)
        return NULL;
    Py_RETURN_FALSE;
}

static PyObject *GroupCommit_end(GroupCommit *self, PyObject *given)
{
    int64_t durable;

    if (!offset_of(given, &durable))
        return NULL;
    self->is_led = 0;
    wake_waiters(self, durable, 0);
    Py_RETURN_NONE;
}

static PyObject *GroupCommit_abandon(PyObject *self, PyObject *unused)
{
    (void)unused;
    ts_group_commit_abandon(self);
    Py_RETURN_NONE;
}

static PyObject *GroupCommit_is_led_here(GroupCommit *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(is_led_here(self));
}

static PyMethodDef GroupCommit_methods[] = {
    {"lead", (PyCFunction)GroupCommit_lead, METH_O,
     "lead($self, offset, /)\n--\n\nBecome the leader and return True, or wait for the end of a "
     "round and return False."},
    {"end", (PyCFunction)GroupCommit_end, METH_O,
     "end($self, durable, /)\n--\n\nEnd the round; the log is durable below `durable`."},
    {"abandon", GroupCommit_abandon, METH_NOARGS,
     "abandon($self)\n--\n\nLeave after an exception, and wake all waiters."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef GroupCommit_members[] = {
    {"waiter_count", T_PYSSIZET, offsetof(GroupCommit, count), READONLY,
     "How many threads wait for the end of a round."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef GroupCommit_properties[] = {
    {"is_led_here", (getter)GroupCommit_is_led_here, NULL,
     "Whether the calling thread leads a round: then this is a call from a signal handler.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject ts_group_commit_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "timerstore._fastpath.GroupCommit",
    .tp_doc = "GroupCommit(write_lock)\n--\n\nThe leader and the waiters of a sync round.",
    .tp_basicsize = sizeof(GroupCommit),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)GroupCommit_init,
    .tp_dealloc = (destructor)GroupCommit_dealloc,
    .tp_methods = GroupCommit_methods,
    .tp_members = GroupCommit_members,
    .tp_getset = GroupCommit_properties,
};
