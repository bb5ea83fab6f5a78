/* The memory that a msgpack message takes when Python decodes it. An empty map takes one byte in
 * the message and 72 bytes in memory, so a limit on the bytes of messages does not limit memory.
 *
 * The sizes of objects are those of a 64-bit CPython, and include 8 bytes for the reference to the
 * object. tests/unit/net/test_wire_memory.py compares them with those of the decoder. */
#include "timerstore.h"

enum {
    REFERENCE_BYTES = 8,
    NUMBER_BYTES = 48,
    TEXT_BYTES = 88,    /* without its characters */
    BINARY_BYTES = 48,  /* without its bytes */
    LIST_BYTES = 72,    /* without its elements */
    MAP_BYTES = 88,     /* without its pairs */
    PAIR_BYTES = 104,   /* without the key and the value */
    TIME_BYTES = 72,
    EXTENSION_BYTES = 4096, /* some hundred, but it takes as long to decode as a long list */
    TIME_EXTENSION = 0xff
};

/* What the first bytes of a value say. */
typedef struct {
    int64_t header; /* bytes before the contents; 0: not a valid value */
    int64_t body;   /* bytes of the contents */
    int64_t values; /* how many values follow the header */
    int64_t memory;
} value_head;

static int64_t big_endian(const uint8_t *at, int size)
{
    uint64_t number = 0;

    for (int k = 0; k < size; k++)
        number = number << 8 | at[k];
    return (int64_t)number;
}

/* Return how many bytes of memory one byte of a text takes, at most: Python stores all characters
 * of a text with the width of the widest one. */
static int64_t text_width(const uint8_t *text, int64_t size)
{
    uint8_t highest = 0;

    for (int64_t k = 0; k < size; k++)
        highest = text[k] > highest ? text[k] : highest;
    return highest < 0xc4 ? 1 : highest < 0xf0 ? 2 : 4;
}

static value_head binary(int64_t header, int64_t size)
{
    return (value_head){header, size, 0, BINARY_BYTES + size};
}

static value_head extension(const uint8_t *at, int64_t header, int64_t size)
{
    int64_t memory = at[header - 1] == TIME_EXTENSION ? TIME_BYTES : EXTENSION_BYTES + 2 * size;

    return (value_head){header, size, 0, memory};
}

static value_head list(int64_t header, int64_t count)
{
    return (value_head){header, 0, count, LIST_BYTES};
}

static value_head map(int64_t header, int64_t count)
{
    return (value_head){header, 0, 2 * count, MAP_BYTES + PAIR_BYTES * count};
}

static value_head text(int64_t header, int64_t size)
{
    return (value_head){header, size, 0, TEXT_BYTES}; /* the caller adds the characters */
}

static int is_text(uint8_t code)
{
    return (code >= 0xa0 && code <= 0xbf) || (code >= 0xd9 && code <= 0xdb);
}

/* Return how many bytes of length or number follow the code of a value. */
static int length_bytes(uint8_t code)
{
    static const uint8_t of_code[32] = {
        0, 0, 0, 0, 1, 2, 4, 1, 2, 4, 4, 8, 1, 2, 4, 8, /* c0 to cf */
        1, 2, 4, 8, 0, 0, 0, 0, 0, 1, 2, 4, 2, 4, 2, 4, /* d0 to df */
    };

    return code >= 0xc0 && code < 0xe0 ? of_code[code - 0xc0] : 0;
}

static value_head head_of(const uint8_t *at, int64_t left)
{
    uint8_t code = at[0];
    int more = length_bytes(code);
    int64_t length, is_extension = (code >= 0xc7 && code <= 0xc9) || (code >= 0xd4 && code <= 0xd8);

    if (left < 1 + more + is_extension)
        return (value_head){0};
    if (code < 0x80 || code >= 0xfb) /* -5 to 127: one object for all */
        return (value_head){1, 0, 0, REFERENCE_BYTES};
    if (code >= 0xe0)
        return (value_head){1, 0, 0, NUMBER_BYTES};
    if (code < 0x90)
        return map(1, code & 0x0f);
    if (code < 0xa0)
        return list(1, code & 0x0f);
    if (code < 0xc0)
        return text(1, code & 0x1f);
    if (code >= 0xd4 && code <= 0xd8)
        return extension(at, 2, (int64_t)1 << (code - 0xd4));
    length = big_endian(at + 1, more);
    if (code >= 0xdc)
        return code < 0xde ? list(1 + more, length) : map(1 + more, length);
    if (code >= 0xd9)
        return text(1 + more, length);
    if (code >= 0xca)
        return (value_head){1 + more, 0, 0, NUMBER_BYTES};
    if (code >= 0xc7)
        return extension(at, 2 + more, length);
    if (code >= 0xc4)
        return binary(1 + more, length);
    return code == 0xc1 ? (value_head){0} : (value_head){1, 0, 0, REFERENCE_BYTES};
}

int64_t ts_wire_memory(const uint8_t *data, int64_t size)
{
    int64_t missing[TS_WIRE_DEPTH_MAX] = {0}; /* values of the open lists and maps */
    int64_t at = 0, memory = 0;
    int depth = 0;

    do {
        value_head head;

        if (at >= size)
            return TS_INVALID;
        head = head_of(data + at, size - at);
        at += head.header;
        /* Each value takes a byte or more, so a list cannot have more than are left. */
        if (head.header == 0 || head.body > size - at || head.values > size - at)
            return TS_INVALID;
        memory += head.memory;
        if (is_text(data[at - head.header]))
            memory += head.body * text_width(data + at, head.body);
        at += head.body;
        if (head.values > 0) {
            if (depth == TS_WIRE_DEPTH_MAX)
                return INT64_MAX;
            missing[depth++] = head.values;
            continue;
        }
        while (depth > 0 && --missing[depth - 1] == 0)
            depth--;
    } while (depth > 0);
    return at == size ? memory : TS_INVALID;
}
