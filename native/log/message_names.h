/* The few properties that dispatch reads, found in one pass over the text. */
#ifndef TS_MESSAGE_NAMES_H
#define TS_MESSAGE_NAMES_H

#include "log/parse.h"

typedef struct {
    ts_text tags;
    ts_text keys;
    ts_text unique_key;
    ts_text delay;
} ts_names;

/* Read one pair, the text from `from` to `end`. An empty value counts as missing. Of two pairs with
 * one name the last counts. */
static inline void ts_names_take(ts_names *names, const uint8_t *from, const uint8_t *end)
{
    const ptrdiff_t size = end - from;
    ts_text *into;
    int32_t name_size;

    if (size < 6)
        return; /* the shortest pair that counts: a name of four, the separator, a value of one */
    switch (*from) {
    case 'T':
        into = &names->tags, name_size = 4;
        if (memcmp(from, "TAGS\001", 5) != 0)
            return;
        break;
    case 'K':
        into = &names->keys, name_size = 4;
        if (memcmp(from, "KEYS\001", 5) != 0)
            return;
        break;
    case 'D':
        into = &names->delay, name_size = 5;
        if (memcmp(from, "DELAY\001", 6) != 0)
            return;
        break;
    case 'U':
        into = &names->unique_key, name_size = 8;
        if (size < 10 || memcmp(from, "UNIQ_KEY\001", 9) != 0)
            return;
        break;
    default:
        return;
    }
    if (size > name_size + 1) {
        into->at = from + name_size + 1;
        into->size = (int32_t)size - name_size - 1;
    }
}

/* Read the pairs that end among eight bytes. A byte of `ends` is 0xFF if a pair ends there, else 0.
 */
static inline const uint8_t *ts_names_step(ts_names *names, const uint8_t *from, const uint8_t *at,
                                           uint64_t ends)
{
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    ends = __builtin_bswap64(ends);
#endif
    for (ends &= 0x8080808080808080u; ends != 0; ends &= ends - 1) {
        const uint8_t *stop = at + (__builtin_ctzll(ends) >> 3);

        ts_names_take(names, from, stop);
        from = stop + 1;
    }
    return from;
}

/* Read sixteen bytes at a time and find all ends of pairs in them at once, without a loop that
 * searches. */
static inline void ts_names_get(const uint8_t *text, int32_t size, ts_names *names)
{
    typedef uint8_t sixteen __attribute__((vector_size(16)));
    const uint8_t *from = text, *at = text, *end = text + size;

    memset(names, 0, sizeof *names);
    for (; end - at >= 16; at += 16) {
        sixteen bytes;
        uint64_t halves[2];

        memcpy(&bytes, at, sizeof bytes);
        bytes = (sixteen)(bytes == 2);
        memcpy(halves, &bytes, sizeof halves);
        from = ts_names_step(names, from, at, halves[0]);
        from = ts_names_step(names, from, at + 8, halves[1]);
    }
    for (; at < end; at++) {
        if (*at == 2) {
            ts_names_take(names, from, at);
            from = at + 1;
        }
    }
    if (from < end)
        ts_names_take(names, from, end); /* older brokers omit the last end */
}

#endif
