/* The tags code of a queue unit: the tag's hash, or the due time of a message that waits for a
 * fixed level. It lets a reader select messages without reading their records. */
#ifndef TS_TAGS_CODE_H
#define TS_TAGS_CODE_H

#include "format/properties.h"
#include "format/text.h"
#include "log/message_names.h"

static inline int64_t ts_level_due_ms(const ts_record *record, const ts_text *level,
                                      const int64_t *level_delay_ms, int32_t level_count)
{
    int64_t n = 0, due = 0;

    if (ts_decimal_get_i64(level->at, level->size, &n) != 0 || n <= 0)
        return -1;
    if (n > level_count)
        n = level_count;
    if (__builtin_add_overflow(record->store_ms, n > 0 ? level_delay_ms[n - 1] : 1000, &due))
        return -1;
    return due;
}

/* Return whether a unit's code can be the due time of a level's record. Delays are whole seconds,
 * in any table of delays. A single flipped bit never leaves them whole, because 1000 is 125 times a
 * power of two. */
static inline int32_t ts_is_level_time(const ts_record *record, int64_t code)
{
    int64_t delay;

    return !__builtin_sub_overflow(code, record->store_ms, &delay) && delay > 0 &&
           delay % 1000 == 0;
}

/* Return whether the record waits for a level. If not, its unit's code is not a time. */
static inline int32_t ts_has_level(const ts_record *record)
{
    static const int64_t none[1] = {0};
    ts_names names;

    ts_names_get(record->properties, record->properties_size, &names);
    return names.delay.at != NULL && ts_level_due_ms(record, &names.delay, none, 1) >= 0;
}

typedef uint8_t ts_sixteen __attribute__((vector_size(16)));

static inline ts_sixteen ts_load_sixteen(const uint8_t *at)
{
    ts_sixteen bytes;

    memcpy(&bytes, at, sizeof bytes);
    return bytes;
}

/* Return whether TAGS occurs anywhere in the text, as a name or in a value. Most texts have none. A
 * search of 16 positions at once takes a third of the time of memmem. */
static inline int32_t ts_may_have_tags(const uint8_t *text, int32_t size)
{
    int32_t at = 0;

    for (; at + 19 <= size; at += 16) {
        ts_sixteen found = (ts_sixteen)(ts_load_sixteen(text + at) == 'T') &
                           (ts_sixteen)(ts_load_sixteen(text + at + 3) == 'S');
        uint64_t halves[2];

        memcpy(halves, &found, sizeof halves);
        if (halves[0] | halves[1]) {
            for (int32_t i = at; i < at + 16; i++) {
                if (memcmp(text + i, "TAGS", 4) == 0)
                    return 1;
            }
        }
    }
    for (; at + 4 <= size; at++) {
        if (memcmp(text + at, "TAGS", 4) == 0)
            return 1;
    }
    return 0;
}

/* Return the unit's tags code: the tag's hash; for pending messages of a level the due time. */
static inline int64_t ts_tags_code(const ts_record *record, const ts_route *route,
                                   const ts_names *names, const int64_t *level_delay_ms,
                                   int32_t level_count)
{
    if (route->kind == TS_ROUTE_LEVELS && names->delay.at != NULL) {
        int64_t due = ts_level_due_ms(record, &names->delay, level_delay_ms, level_count);

        if (due >= 0)
            return due;
    }
    return names->tags.at == NULL ? 0 : ts_java_hash(names->tags.at, names->tags.size);
}

/* Read the properties that are needed: tags for the unit, and keys if there is an index. */
static inline void ts_names_of(const ts_record *record, const ts_route *route, int32_t has_keys,
                               ts_names *names)
{
    if (has_keys || (route != NULL && route->kind == TS_ROUTE_LEVELS) ||
        ts_may_have_tags(record->properties, record->properties_size))
        ts_names_get(record->properties, record->properties_size, names);
    else
        memset(names, 0, sizeof *names);
}

#endif
