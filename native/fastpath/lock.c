/* A lock like threading.Lock that raises instead of deadlocking when its owner asks for it again.
 *
 * A signal handler, a finalizer or a callback of the garbage collector can run between any two
 * steps of Python code, also while its thread holds the lock. Only the owner may release the lock.
 * All of this runs under the GIL, so no signal handler runs between its steps.
 */
#include "fastpath/lock.h"

#include <math.h>
#include <pythread.h>
#include <time.h>

typedef struct {
    PyObject_HEAD
    PyThread_type_lock lock;
    unsigned long owner; /* thread; undefined while the lock is free */
    int is_held;
} Lock;

static PyObject *make_reentrant_error;

int ts_raise_reentrant(void)
{
    PyObject *error =
        make_reentrant_error == NULL ? NULL : PyObject_CallNoArgs(make_reentrant_error);

    if (error != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
    } else if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_RuntimeError, "this thread already holds the lock");
    }
    return -1;
}

PyObject *ts_set_reentrant_error(PyObject *module, PyObject *make_error)
{
    (void)module;
    Py_XSETREF(make_reentrant_error, Py_NewRef(make_error));
    Py_RETURN_NONE;
}

int ts_is_exiting(void)
{
#if PY_VERSION_HEX >= 0x030d0000
    return Py_IsFinalizing();
#else
    return _Py_IsFinalizing();
#endif
}

static int is_mine(const Lock *self)
{
    return self->is_held && self->owner == PyThread_get_thread_ident();
}

int ts_lock_is_mine(PyObject *lock)
{
    return is_mine((const Lock *)lock);
}

static PY_TIMEOUT_T now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (PY_TIMEOUT_T)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* Wait for the lock, for at most wait_us microseconds (-1: without limit). Return 1 if it was
 * taken, 0 if not, and -1 with an exception set: the error of a re-entrant call, or what a signal
 * handler raised. */
static int wait_for(Lock *self, PY_TIMEOUT_T wait_us)
{
    PyLockStatus got = PyThread_acquire_lock_timed(self->lock, 0, 0);
    PY_TIMEOUT_T end_us = wait_us > 0 && got != PY_LOCK_ACQUIRED ? now_us() + wait_us : 0;

    while (got != PY_LOCK_ACQUIRED && wait_us != 0) {
        if (is_mine(self) || ts_is_exiting())
            return ts_raise_reentrant();
        Py_BEGIN_ALLOW_THREADS
        got = PyThread_acquire_lock_timed(self->lock, wait_us, 1);
        Py_END_ALLOW_THREADS
        if (got == PY_LOCK_FAILURE)
            return 0;
        if (got == PY_LOCK_INTR && PyErr_CheckSignals() < 0)
            return -1;
        if (got == PY_LOCK_INTR && wait_us > 0) {
            wait_us = end_us - now_us();
            wait_us = wait_us > 0 ? wait_us : 0;
        }
    }
    if (got != PY_LOCK_ACQUIRED)
        return 0;
    self->owner = PyThread_get_thread_ident();
    self->is_held = 1;
    return 1;
}

static PyObject *Lock_enter(Lock *self, PyObject *unused)
{
    (void)unused;
    return wait_for(self, -1) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *Lock_acquire(Lock *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"blocking", "timeout", NULL};
    int blocking = 1, got;
    double timeout_s = -1.0;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|pd", names, &blocking, &timeout_s))
        return NULL;
    if (!(timeout_s == -1.0 || (blocking && timeout_s >= 0.0))) { /* also rejects NaN */
        PyErr_SetString(PyExc_ValueError,
                        "acquire: wanted a timeout of 0 or more seconds, of one that waits");
        return NULL;
    }
    if (timeout_s > 1e9)
        timeout_s = -1.0;
    got = wait_for(self, !blocking ? 0 : timeout_s < 0 ? -1 : (PY_TIMEOUT_T)ceil(timeout_s * 1e6));
    return got < 0 ? NULL : PyBool_FromLong(got);
}

static int release(Lock *self)
{
    if (!is_mine(self)) {
        PyErr_SetString(PyExc_RuntimeError, "this thread does not have the lock");
        return -1;
    }
    self->is_held = 0;
    PyThread_release_lock(self->lock);
    return 0;
}

static PyObject *Lock_release(Lock *self, PyObject *unused)
{
    (void)unused;
    return release(self) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *Lock_exit(Lock *self, PyObject *const *args, Py_ssize_t count)
{
    (void)args;
    (void)count;
    return release(self) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *Lock_locked(Lock *self, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(self->is_held);
}

static PyObject *Lock_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {NULL};
    Lock *self;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "", names))
        return NULL;
    self = (Lock *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->lock = PyThread_allocate_lock();
    if (self->lock == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void Lock_dealloc(Lock *self)
{
    if (is_mine(self))
        (void)release(self);
    if (self->lock != NULL)
        PyThread_free_lock(self->lock);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *Lock_is_mine(Lock *self, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(is_mine(self));
}

static PyMethodDef Lock_methods[] = {
    {"__enter__", (PyCFunction)Lock_enter, METH_NOARGS, "Take the lock."},
    {"__exit__", (PyCFunction)(void (*)(void))Lock_exit, METH_FASTCALL, "Release the lock."},
    {"acquire", (PyCFunction)(void (*)(void))Lock_acquire, METH_VARARGS | METH_KEYWORDS,
     "acquire($self, blocking=True, timeout=-1.0)\n--\n\nTake the lock within `timeout` seconds. "
     "Return whether it was taken."},
    {"release", (PyCFunction)Lock_release, METH_NOARGS, "Release the lock."},
    {"locked", (PyCFunction)Lock_locked, METH_NOARGS, "Return whether a thread holds it."},
    {"is_mine", (PyCFunction)Lock_is_mine, METH_NOARGS, "Return whether this thread holds it."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject ts_lock_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "timerstore._fastpath.Lock",
    .tp_doc = "Lock()\n--\n\nLike threading.Lock, but raises if its owner asks again.",
    .tp_basicsize = sizeof(Lock),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = Lock_new,
    .tp_dealloc = (destructor)Lock_dealloc,
    .tp_methods = Lock_methods,
};
