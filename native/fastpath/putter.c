/* The type Putter, and the module timerstore._fastpath. */
#include "fastpath/putter.h"

#include <structmember.h>

#include "fastpath/append_lock.h"
#include "fastpath/group_commit.h"
#include "fastpath/lists.h"
#include "fastpath/lock.h"

PyObject *ts_name_deliver_ms, *ts_name_hook, *ts_zero;

static int Putter_init(Putter *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"log", "slow", "slow_many", "topics", "wake_dispatch",
                            "is_dispatch_silent", "wake_flush", "sync", "group_commit", "calls",
                            "left", "failpoints", "check_alive", "receipt", "batch", "empty", "hits",
                            "delay_ms_max", NULL};
    Putter given = {0}; /* borrowed: `self` holds only references that it owns, because a
                         * collector may visit it */
    unsigned long long log, hits;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KOOO!OOOOO!O!OO!OO!O!OKL", names, &log,
                                     &given.slow, &given.slow_many, &PyDict_Type, &given.topics,
                                     &given.wake_dispatch, &given.is_dispatch_silent,
                                     &given.wake_flush,
                                     &given.sync, &ts_group_commit_type, &given.group_commit,
                                     &PyDict_Type, &given.calls,
                                     &given.left, &PyDict_Type, &given.failpoints,
                                     &given.check_alive, &PyType_Type, &given.receipt,
                                     &PyType_Type, &given.batch, &given.empty, &hits,
                                     &given.delay_ms_max))
        return -1;
    self->log = (ts_log *)(uintptr_t)log;
    self->hits = (const int32_t *)(uintptr_t)hits;
    self->hits_seen = *self->hits;
    self->delay_ms_max = given.delay_ms_max;
    Py_XSETREF(self->slow, Py_NewRef(given.slow));
    Py_XSETREF(self->slow_many, Py_NewRef(given.slow_many));
    Py_XSETREF(self->topics, Py_NewRef(given.topics));
    Py_XSETREF(self->wake_dispatch, Py_NewRef(given.wake_dispatch));
    Py_XSETREF(self->is_dispatch_silent, Py_NewRef(given.is_dispatch_silent));
    Py_XSETREF(self->wake_flush, Py_NewRef(given.wake_flush));
    Py_XSETREF(self->sync, Py_NewRef(given.sync));
    Py_XSETREF(self->group_commit, Py_NewRef(given.group_commit));
    Py_XSETREF(self->calls, Py_NewRef(given.calls));
    Py_XSETREF(self->left, Py_NewRef(given.left));
    Py_XSETREF(self->failpoints, Py_NewRef(given.failpoints));
    Py_XSETREF(self->check_alive, Py_NewRef(given.check_alive));
    Py_XSETREF(self->receipt, (PyTypeObject *)Py_NewRef(given.receipt));
    Py_XSETREF(self->batch, (PyTypeObject *)Py_NewRef(given.batch));
    Py_XSETREF(self->empty, Py_NewRef(given.empty));
    return 0;
}

static int Putter_traverse(Putter *self, visitproc visit, void *arg)
{
    Py_VISIT(self->slow);
    Py_VISIT(self->slow_many);
    Py_VISIT(self->topics);
    Py_VISIT(self->wake_dispatch);
    Py_VISIT(self->is_dispatch_silent);
    Py_VISIT(self->wake_flush);
    Py_VISIT(self->sync);
    Py_VISIT(self->group_commit);
    Py_VISIT(self->calls);
    Py_VISIT(self->left);
    Py_VISIT(self->failpoints);
    Py_VISIT(self->check_alive);
    Py_VISIT(self->receipt);
    Py_VISIT(self->last);
    Py_VISIT(self->batch);
    Py_VISIT(self->empty);
    return 0;
}

static int Putter_clear(Putter *self)
{
    self->blocked = 1;
    Py_CLEAR(self->slow);
    Py_CLEAR(self->slow_many);
    Py_CLEAR(self->topics);
    Py_CLEAR(self->wake_dispatch);
    Py_CLEAR(self->is_dispatch_silent);
    Py_CLEAR(self->wake_flush);
    Py_CLEAR(self->sync);
    Py_CLEAR(self->group_commit);
    Py_CLEAR(self->calls);
    Py_CLEAR(self->left);
    Py_CLEAR(self->failpoints);
    Py_CLEAR(self->check_alive);
    Py_CLEAR(self->receipt);
    Py_CLEAR(self->last);
    Py_CLEAR(self->batch);
    Py_CLEAR(self->empty);
    return 0;
}

static void Putter_dealloc(Putter *self)
{
    PyObject_GC_UnTrack(self);
    Putter_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef Putter_methods[] = {
    {"put", (PyCFunction)(void (*)(void))ts_putter_put, METH_FASTCALL | METH_KEYWORDS,
     "put($self, topic, body, **given)\n--\n\nAs TimerStore.put."},
    {"put_many", (PyCFunction)(void (*)(void))ts_putter_put_many, METH_FASTCALL | METH_KEYWORDS,
     "put_many($self, topic, bodies, **given)\n--\n\nAs TimerStore.put_many."},
    {"begin_put", (PyCFunction)(void (*)(void))ts_putter_begin_put, METH_FASTCALL | METH_KEYWORDS,
     "begin_put($self, topic, body, **given)\n--\n\n"
     "Put without waiting for a sync. Return None, and put nothing, if the fast "
     "path cannot."},
    {"begin_put_many", (PyCFunction)(void (*)(void))ts_putter_begin_put_many,
     METH_FASTCALL | METH_KEYWORDS,
     "begin_put_many($self, topic, bodies, **given)\n--\n\nAs begin_put, for put_many."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef Putter_members[] = {
    {"blocked", T_INT, offsetof(Putter, blocked), 0, "Not 0: every put takes the slow path."},
    {"inside", T_INT, offsetof(Putter, inside), READONLY, "How many puts wait for a sync."},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject Putter_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "timerstore._fastpath.Putter",
    .tp_doc = "The fast path of put() and put_many() of one store.",
    .tp_basicsize = sizeof(Putter),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)Putter_init,
    .tp_traverse = (traverseproc)Putter_traverse,
    .tp_clear = (inquiry)Putter_clear,
    .tp_dealloc = (destructor)Putter_dealloc,
    .tp_methods = Putter_methods,
    .tp_members = Putter_members,
};

static PyMethodDef functions[] = {
    {"join", (PyCFunction)(void (*)(void))ts_join, METH_FASTCALL, "See lists.h."},
    {"split", (PyCFunction)(void (*)(void))ts_split, METH_FASTCALL, "See lists.h."},
    {"set_reentrant_error", (PyCFunction)ts_set_reentrant_error, METH_O,
     "Set the function that makes the error of a re-entrant call."},
    {"read_handles", (PyCFunction)(void (*)(void))ts_read_handles, METH_FASTCALL, "See lists.h."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "timerstore._fastpath",
    .m_doc = "The fast path of put() and put_many(), and lists of a caller.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__fastpath(void)
{
    PyObject *made;

    ts_name_deliver_ms = PyUnicode_InternFromString("deliver_ms");
    ts_name_hook = PyUnicode_InternFromString("hook");
    ts_zero = PyLong_FromLong(0);
    if (!ts_name_deliver_ms || !ts_name_hook || !ts_zero || ts_put_one_prepare() < 0 ||
        ts_many_prepare() < 0 || PyType_Ready(&Putter_type) < 0 ||
        PyType_Ready(&ts_append_lock_type) < 0 || PyType_Ready(&ts_lock_type) < 0 ||
        PyType_Ready(&ts_group_commit_type) < 0)
        return NULL;
    made = PyModule_Create(&module);
    if (made != NULL &&
        (PyModule_AddObjectRef(made, "Putter", (PyObject *)&Putter_type) < 0 ||
         PyModule_AddObjectRef(made, "Lock", (PyObject *)&ts_lock_type) < 0 ||
         PyModule_AddObjectRef(made, "GroupCommit", (PyObject *)&ts_group_commit_type) < 0 ||
         PyModule_AddObjectRef(made, "AppendLock", (PyObject *)&ts_append_lock_type) < 0))
        Py_CLEAR(made);
    return made;
}
