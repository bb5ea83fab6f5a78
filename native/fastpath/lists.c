/* Lists from a caller, read in one pass, and lists for a caller.
 *
 * Only the plain case is handled here: for objects other than plain bytes, handles or receipts,
 * Python accepts them or reports the errors. Nothing here runs Python code, so a list cannot
 * change while it is read.
 */
#include "fastpath/lists.h"

#include "timerstore.h"

enum {
    HANDLE_CHARACTERS_MAX = 4096, /* as in format/handle.py */
    HANDLE_BYTES_MAX = HANDLE_CHARACTERS_MAX / 4 * 3,
    UNIQUE_DIGITS = 12,
    INT64_SURE_DIGITS = 18, /* so many digits always fit */
};

static int wrong_arguments(const char *what)
{
    PyErr_Format(PyExc_TypeError, "%s: called with other arguments than lists.h says", what);
    return -1;
}

/* Return the largest size, or -1 if an object is not plain bytes, or the total is too large. */
static Py_ssize_t measure(PyObject *const *items, Py_ssize_t n, int64_t *offsets)
{
    Py_ssize_t largest = 0, end = 0;

    offsets[0] = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        Py_ssize_t size;

        if (!PyBytes_CheckExact(items[i]))
            return -1;
        size = PyBytes_GET_SIZE(items[i]);
        if (size > PY_SSIZE_T_MAX / 2 - end)
            return -1;
        end += size;
        offsets[i + 1] = end;
        if (size > largest)
            largest = size;
    }
    return largest;
}

PyObject *ts_join(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    PyObject *joined = NULL, *const *items;
    Py_buffer offsets;
    Py_ssize_t n, largest;

    (void)module;
    if (count != 2 || (!PyList_CheckExact(args[0]) && !PyTuple_CheckExact(args[0]))) {
        wrong_arguments("join");
        return NULL;
    }
    n = PySequence_Fast_GET_SIZE(args[0]);
    items = PySequence_Fast_ITEMS(args[0]);
    if (PyObject_GetBuffer(args[1], &offsets, PyBUF_WRITABLE) < 0)
        return NULL;
    if (offsets.len != (n + 1) * (Py_ssize_t)sizeof(int64_t)) {
        wrong_arguments("join");
    } else if ((largest = measure(items, n, offsets.buf)) < 0) {
        joined = Py_NewRef(Py_None);
    } else {
        const int64_t *at = offsets.buf;
        PyObject *whole = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)at[n]);

        for (Py_ssize_t i = 0; whole != NULL && i < n; i++)
            memcpy(PyBytes_AS_STRING(whole) + at[i], PyBytes_AS_STRING(items[i]),
                   (size_t)(at[i + 1] - at[i]));
        if (whole != NULL)
            joined = Py_BuildValue("(Nn)", whole, largest);
    }
    PyBuffer_Release(&offsets);
    return joined;
}

/* Return a new list, or NULL with an exception set. */
static PyObject *split(const Py_buffer *whole, const int64_t *offsets, Py_ssize_t n)
{
    PyObject *list = PyList_New(n);

    for (Py_ssize_t i = 0; list != NULL && i < n; i++) {
        int64_t begin = offsets[i], end = offsets[i + 1];
        PyObject *one = NULL;

        if (begin < 0 || begin > end || end > whole->len)
            PyErr_Format(PyExc_ValueError, "split: object %zd lies in bytes %lld to %lld of %zd", i,
                         (long long)begin, (long long)end, whole->len);
        else
            one = PyBytes_FromStringAndSize((const char *)whole->buf + begin,
                                            (Py_ssize_t)(end - begin));
        if (one == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, one);
    }
    return list;
}

PyObject *ts_split(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    PyObject *list = NULL;
    Py_buffer whole, offsets;

    (void)module;
    if (count != 2) {
        wrong_arguments("split");
        return NULL;
    }
    if (PyObject_GetBuffer(args[0], &whole, PyBUF_SIMPLE) < 0)
        return NULL;
    if (PyObject_GetBuffer(args[1], &offsets, PyBUF_SIMPLE) == 0) {
        if (offsets.len == 0 || offsets.len % (Py_ssize_t)sizeof(int64_t) != 0)
            wrong_arguments("split");
        else
            list = split(&whole, offsets.buf, offsets.len / (Py_ssize_t)sizeof(int64_t) - 1);
        PyBuffer_Release(&offsets);
    }
    PyBuffer_Release(&whole);
    return list;
}

/* The message that a handle or receipt names. Texts are ASCII. */
typedef struct {
    const char *topic;
    Py_ssize_t topic_size;
    const char *key;
    Py_ssize_t key_size;
    int64_t unique;    /* hex digits at the key's end, as a number; -1: it has none */
    int64_t out_ms;
    int64_t timer_id;
    int64_t log_offset;
} name_parts;

/* Return the six bits of a character of URL-safe base64, or 64. */
static inline uint32_t six_bits(uint8_t c)
{
    static const uint8_t values[256] = {
        ['A'] = 1,  ['B'] = 2,  ['C'] = 3,  ['D'] = 4,  ['E'] = 5,  ['F'] = 6,  ['G'] = 7,
        ['H'] = 8,  ['I'] = 9,  ['J'] = 10, ['K'] = 11, ['L'] = 12, ['M'] = 13, ['N'] = 14,
        ['O'] = 15, ['P'] = 16, ['Q'] = 17, ['R'] = 18, ['S'] = 19, ['T'] = 20, ['U'] = 21,
        ['V'] = 22, ['W'] = 23, ['X'] = 24, ['Y'] = 25, ['Z'] = 26, ['a'] = 27, ['b'] = 28,
        ['c'] = 29, ['d'] = 30, ['e'] = 31, ['f'] = 32, ['g'] = 33, ['h'] = 34, ['i'] = 35,
        ['j'] = 36, ['k'] = 37, ['l'] = 38, ['m'] = 39, ['n'] = 40, ['o'] = 41, ['p'] = 42,
        ['q'] = 43, ['r'] = 44, ['s'] = 45, ['t'] = 46, ['u'] = 47, ['v'] = 48, ['w'] = 49,
        ['x'] = 50, ['y'] = 51, ['z'] = 52, ['0'] = 53, ['1'] = 54, ['2'] = 55, ['3'] = 56,
        ['4'] = 57, ['5'] = 58, ['6'] = 59, ['7'] = 60, ['8'] = 61, ['9'] = 62, ['-'] = 63,
        ['_'] = 64,
    };

    return values[c] == 0 ? 64u : values[c] - 1u;
}

/* Decode base64. Return the size, or -1 if the text is not in the form that this engine writes. */
static Py_ssize_t decode(const uint8_t *text, Py_ssize_t size, uint8_t *out)
{
    Py_ssize_t padding = 0, done = 0;
    uint32_t seen = 0;

    if (size < 4 || size > HANDLE_CHARACTERS_MAX || size % 4 != 0)
        return -1;
    while (padding < 2 && text[size - 1 - padding] == '=')
        padding++;
    for (Py_ssize_t at = 0; at < size; at += 4) {
        Py_ssize_t missing = at + 4 < size ? 0 : padding;
        uint32_t a = six_bits(text[at]), b = six_bits(text[at + 1]);
        uint32_t c = missing > 1 ? 0 : six_bits(text[at + 2]);
        uint32_t d = missing > 0 ? 0 : six_bits(text[at + 3]);
        uint32_t bits = a << 18 | b << 12 | c << 6 | d;

        seen |= a | b | c | d;
        out[done] = (uint8_t)(bits >> 16);
        out[done + 1] = (uint8_t)(bits >> 8);
        out[done + 2] = (uint8_t)bits;
        done += 3 - missing;
    }
    return seen & 64 ? -1 : done;
}

/* Return the size of the next field: printable characters up to a space, or to the end. Return 0 if
 * it is empty or not valid. */
static Py_ssize_t field(const uint8_t **at, const uint8_t *end, int is_last)
{
    const uint8_t *from = *at, *next = from;

    while (next < end && *next > ' ' && *next <= '~')
        next++;
    if (is_last ? next != end : next == end || *next != ' ')
        return 0;
    *at = next + 1;
    return next - from;
}

/* Parse a number in the form that this engine writes: no sign, no leading zeros, and certain to
 * fit. */
static int number(const uint8_t *text, Py_ssize_t size, int64_t *value)
{
    *value = 0;
    if (size < 1 || size > INT64_SURE_DIGITS || (text[0] == '0' && size > 1))
        return 0;
    for (Py_ssize_t i = 0; i < size; i++) {
        if (text[i] < '0' || text[i] > '9')
            return 0;
        *value = *value * 10 + (text[i] - '0');
    }
    return 1;
}

/* Read a handle: "v1 topic broker timestamp id timer-id" in base64. Return 0 if it is anything
 * else. */
static int read_handle(PyObject *handle, uint8_t *room, name_parts *parts)
{
    const uint8_t *at = room + 3, *end, *from;
    Py_ssize_t size;
    int64_t stamp_ms;

    if (!PyUnicode_IS_ASCII(handle))
        return 0;
    size = decode(PyUnicode_1BYTE_DATA(handle), PyUnicode_GET_LENGTH(handle), room);
    if (size < 3 || memcmp(room, "v1 ", 3) != 0)
        return 0;
    end = room + size;
    parts->topic = (const char *)at;
    if ((parts->topic_size = field(&at, end, 0)) == 0 || field(&at, end, 0) == 0)
        return 0;
    from = at;
    if (!number(from, field(&at, end, 0), &stamp_ms))
        return 0;
    parts->key = (const char *)at;
    if ((parts->key_size = field(&at, end, 0)) == 0)
        return 0;
    from = at;
    size = field(&at, end, 1);
    if (size == 2 && memcmp(from, "-1", 2) == 0)
        parts->timer_id = -1;
    else if (!number(from, size, &parts->timer_id))
        return 0;
    parts->out_ms = stamp_ms - 1;
    parts->log_offset = -1;
    parts->unique = -1;
    return 1;
}

/* Return the value of an int that is 0 or more, else -1. */
static int64_t natural(PyObject *item)
{
    int overflow = 0;
    long long value = -1;

    if (PyLong_CheckExact(item))
        value = PyLong_AsLongLongAndOverflow(item, &overflow);
    return overflow != 0 || value < 0 ? -1 : value;
}

static int ascii(PyObject *item, const char **text, Py_ssize_t *size)
{
    if (!PyUnicode_CheckExact(item) || !PyUnicode_IS_ASCII(item))
        return 0;
    *text = (const char *)PyUnicode_1BYTE_DATA(item);
    *size = PyUnicode_GET_LENGTH(item);
    return 1;
}

/* Read the receipt of a timer whose id the store made: (origin, counter, timer id, queue id, queue
 * offset, log offset, due time, ...), with the origin (topic, id prefix, broker name, precision).
 * Return 0 for any other object. */
static int read_receipt(PyObject *receipt, PyObject *origin_type, name_parts *parts)
{
    PyObject *origin = PyTuple_GET_SIZE(receipt) == 9 ? PyTuple_GET_ITEM(receipt, 0) : NULL;
    int64_t due_ms, precision_ms;

    if (origin == NULL || (PyObject *)Py_TYPE(origin) != origin_type ||
        PyTuple_GET_SIZE(origin) != 4 ||
        !ascii(PyTuple_GET_ITEM(origin, 0), &parts->topic, &parts->topic_size) ||
        !ascii(PyTuple_GET_ITEM(origin, 1), &parts->key, &parts->key_size))
        return 0;
    precision_ms = natural(PyTuple_GET_ITEM(origin, 3));
    parts->unique = natural(PyTuple_GET_ITEM(receipt, 1));
    parts->timer_id = natural(PyTuple_GET_ITEM(receipt, 2));
    parts->log_offset = natural(PyTuple_GET_ITEM(receipt, 5));
    due_ms = natural(PyTuple_GET_ITEM(receipt, 6));
    if (precision_ms < 1 || parts->unique < 0 || parts->timer_id < 0 || due_ms < 1)
        return 0;
    parts->out_ms = (due_ms - 1) / precision_ms * precision_ms;
    return 1;
}

/* Append the names of one handle or receipt. */
static int add_named(const name_parts *parts, ts_handle *named, PyObject *names, Py_ssize_t *used)
{
    static const char hex[] = "0123456789ABCDEF";
    Py_ssize_t made = parts->unique < 0 ? 0 : UNIQUE_DIGITS;
    Py_ssize_t size = parts->topic_size + parts->key_size + made,
    room = PyByteArray_GET_SIZE(names);
    char *out;

    if (parts->topic_size > INT32_MAX || parts->key_size > INT32_MAX - made)
        return wrong_arguments("read_handles");
    if (size > room - *used && PyByteArray_Resize(names, 2 * room + size) < 0)
        return -1;
    out = PyByteArray_AS_STRING(names) + *used;
    memcpy(out, parts->topic, (size_t)parts->topic_size);
    out += parts->topic_size;
    memcpy(out, parts->key, (size_t)parts->key_size);
    out += parts->key_size;
    for (Py_ssize_t i = 0; i < made; i++)
        out[i] = hex[parts->unique >> (4 * (UNIQUE_DIGITS - 1 - i)) & 15];
    *named = (ts_handle){.timer_id = parts->timer_id, .out_ms = parts->out_ms,
                        .log_offset = parts->log_offset, .name_at = *used,
                        .topic_size = (int32_t)parts->topic_size,
                        .key_size = (int32_t)(parts->key_size + made)};
    *used += size;
    return 0;
}

/* Return the index of the first object that was not read, or -1 with an exception set. */
static Py_ssize_t walk(PyObject *const *args, Py_ssize_t begin, ts_handle *named)
{
    Py_ssize_t n = PyList_GET_SIZE(args[0]), used = PyByteArray_GET_SIZE(args[3]), i;
    uint8_t room[HANDLE_BYTES_MAX];

    for (i = begin; i < n; i++) {
        PyObject *one = PyList_GET_ITEM(args[0], i);
        name_parts parts;
        int got = 0;

        if (PyUnicode_CheckExact(one))
            got = read_handle(one, room, &parts);
        else if ((PyObject *)Py_TYPE(one) == args[4])
            got = read_receipt(one, args[5], &parts);
        if (!got)
            break;
        if (add_named(&parts, &named[i], args[3], &used) < 0)
            return -1;
    }
    return PyByteArray_Resize(args[3], used) < 0 ? -1 : i;
}

PyObject *ts_read_handles(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer named;
    Py_ssize_t begin, reached = -1;

    (void)module;
    if (count != 6 || !PyList_CheckExact(args[0]) || !PyByteArray_CheckExact(args[3]) ||
        !PyType_Check(args[4]) || !PyType_Check(args[5])) {
        wrong_arguments("read_handles");
        return NULL;
    }
    begin = PyLong_AsSsize_t(args[1]);
    if ((begin == -1 && PyErr_Occurred()) ||
        PyObject_GetBuffer(args[2], &named, PyBUF_WRITABLE) < 0)
        return NULL;
    if (begin < 0 || named.len != PyList_GET_SIZE(args[0]) * (Py_ssize_t)sizeof(ts_handle))
        wrong_arguments("read_handles");
    else
        reached = walk(args, begin, named.buf);
    PyBuffer_Release(&named);
    return reached < 0 ? NULL : PyLong_FromSsize_t(reached);
}
