/* The append lock for Python. It behaves like threading.Lock, but C can take it without the GIL.
 *
 * A thread that waits for the lock releases the GIL first, so that the owner can take the GIL. A
 * thread that asks for the lock again while it holds it gets the error of lock.c.
 */
#include "fastpath/append_lock.h"

#include <errno.h>
#include <pthread.h>

#include "fastpath/lock.h"

typedef struct {
    PyObject_HEAD
    pthread_mutex_t mutex;
} AppendLock;

static int AppendLock_init(AppendLock *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {NULL};

    (void)self;
    return PyArg_ParseTupleAndKeywords(args, kwargs, "", names) ? 0 : -1;
}

static PyObject *AppendLock_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    AppendLock *self = (AppendLock *)type->tp_alloc(type, 0);
    pthread_mutexattr_t kind;

    (void)args;
    (void)kwargs;
    if (self == NULL)
        return NULL;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_ERRORCHECK);
    pthread_mutex_init(&self->mutex, &kind);
    pthread_mutexattr_destroy(&kind);
    return (PyObject *)self;
}

static PyObject *AppendLock_enter(AppendLock *self, PyObject *unused)
{
    int status = pthread_mutex_trylock(&self->mutex);

    (void)unused;
    if (status == EBUSY && ts_is_exiting())
        status = EDEADLK;
    if (status == EBUSY) {
        Py_BEGIN_ALLOW_THREADS
        status = pthread_mutex_lock(&self->mutex);
        Py_END_ALLOW_THREADS
    }
    if (status == EDEADLK) {
        (void)ts_raise_reentrant();
        return NULL;
    }
    if (status != 0)
        return PyErr_Format(PyExc_RuntimeError, "append lock: cannot be taken (errno %d)", status);
    Py_RETURN_NONE;
}

static PyObject *AppendLock_enter_now(AppendLock *self, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(pthread_mutex_trylock(&self->mutex) == 0);
}

static PyObject *AppendLock_exit(AppendLock *self, PyObject *const *args, Py_ssize_t count)
{
    int status = pthread_mutex_unlock(&self->mutex);

    (void)args;
    (void)count;
    if (status != 0)
        return PyErr_Format(PyExc_RuntimeError, "append lock: this thread has it not (errno %d)",
                            status);
    Py_RETURN_NONE;
}

static PyObject *AppendLock_locked(AppendLock *self, PyObject *unused)
{
    (void)unused;
    if (pthread_mutex_trylock(&self->mutex) != 0)
        Py_RETURN_TRUE;
    pthread_mutex_unlock(&self->mutex);
    Py_RETURN_FALSE;
}

static PyObject *AppendLock_address(AppendLock *self, void *unused)
{
    (void)unused;
    return PyLong_FromVoidPtr(&self->mutex);
}

static PyMethodDef AppendLock_methods[] = {
    {"__enter__", (PyCFunction)AppendLock_enter, METH_NOARGS, "Take the lock."},
    {"enter_now", (PyCFunction)AppendLock_enter_now, METH_NOARGS,
     "Take the lock if it is free; return whether it was."},
    {"__exit__", (PyCFunction)(void (*)(void))AppendLock_exit, METH_FASTCALL, "Release the lock."},
    {"locked", (PyCFunction)AppendLock_locked, METH_NOARGS, "Return whether a thread holds it."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef AppendLock_members[] = {
    {"address", (getter)AppendLock_address, NULL, "Of the pthread_mutex_t, for ts_log.lock.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject ts_append_lock_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "timerstore._fastpath.AppendLock",
    .tp_doc = "The append lock of a commit log, a context manager.",
    .tp_basicsize = sizeof(AppendLock),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = AppendLock_new,
    .tp_init = (initproc)AppendLock_init,
    .tp_methods = AppendLock_methods,
    .tp_getset = AppendLock_members,
};
