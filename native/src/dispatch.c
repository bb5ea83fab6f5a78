/* Dispatch: the log's tail becomes queue units. */
#include "../format/properties.h"
#include "../format/queue_unit.h"
#include "hash.h"
#include "keys.h"
#include "walk.h"

/* Records come one behind the other, but the processor does not read on across a page by itself: so
 * far ahead lines are asked for. 61 ns a record instead of 80. */
enum { AHEAD_BYTES = 2048 };

static int64_t level_due_ms(const ts_record *record, const ts_text *level,
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

typedef uint8_t sixteen __attribute__((vector_size(16)));

static inline sixteen load_sixteen(const uint8_t *at)
{
    sixteen bytes;

    memcpy(&bytes, at, sizeof bytes);
    return bytes;
}

/* Whether TAGS stands anywhere in the text, as a name or in a value: most have none, and a search of
 * 16 places at once finds that out in a third of the time that memmem takes. */
static int32_t may_have_tags(const uint8_t *text, int32_t size)
{
    int32_t at = 0;

    for (; at + 19 <= size; at += 16) {
        sixteen found = (sixteen)(load_sixteen(text + at) == 'T') &
                        (sixteen)(load_sixteen(text + at + 3) == 'S');
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

/* The route of a record: most often that of the one before. */
static ts_route *route_of(const ts_routes *routes, const ts_record *record, ts_route *before)
{
    if (before != NULL && before->queue_id == record->queue_id &&
        before->topic_size == record->topic_size &&
        ts_is_same(before->topic, record->topic, record->topic_size))
        return before;
    return ts_route_find(routes, record->topic, record->topic_size, record->queue_id);
}

/* The queue unit's tagsCode: the tag's hash, for waiting level messages the due time. */
static int64_t tags_code(const ts_record *record, const ts_route *route, const ts_names *names,
                         const int64_t *level_delay_ms, int32_t level_count)
{
    if (route->kind == TS_ROUTE_LEVELS && names->delay.at != NULL) {
        int64_t due = level_due_ms(record, &names->delay, level_delay_ms, level_count);

        if (due >= 0)
            return due;
    }
    return names->tags.at == NULL ? 0 : ts_java_hash(names->tags.at, names->tags.size);
}

/* What is needed of the properties: tags for the unit, keys for the index where there is one. */
static void names_of(const ts_record *record, const ts_route *route, const ts_keys *keys,
                     ts_names *names)
{
    if (keys != NULL || (route != NULL && route->kind == TS_ROUTE_LEVELS) ||
        may_have_tags(record->properties, record->properties_size))
        ts_names_get(record->properties, record->properties_size, names);
    else
        memset(names, 0, sizeof *names);
}

int32_t ts_dispatch(ts_view *view, const ts_routes *routes, const int64_t *level_delay_ms,
                    int32_t level_count, int64_t from, int64_t *next, int32_t capacity,
                    uint8_t *units, int32_t *route_indexes, int64_t *queue_offsets,
                    ts_keys *keys)
{
    int64_t offset = from;
    int32_t count = 0, status = TS_OK;
    ts_route *route = NULL;

    *next = from;
    while (count < capacity && offset < view->end) {
        ts_record record;
        ts_names names;
        int32_t is_queued;

        status = ts_walk(view, &offset, &record);
        if (status == TS_CORRUPT && view->fault == TS_FAULT_END && offset >= view->end) {
            *next = offset; /* a blank was the last thing there */
            break;
        }
        if (status != TS_OK)
            break;
        ts_view_prefetch(view, offset + AHEAD_BYTES, record.size);
        is_queued = ts_is_queued(&record);
        route = is_queued ? route_of(routes, &record, route) : NULL;
        if (is_queued && route == NULL) {
            view->need = offset;
            status = TS_NEED_ROUTE;
            break;
        }
        names_of(&record, route, keys, &names);
        status = keys == NULL ? TS_OK : ts_keys_take(keys, &record, &names, route);
        if (status != TS_OK)
            break;
        if (is_queued) {
            ts_queue_unit_put(units + (int64_t)count * 20, offset, record.size,
                              tags_code(&record, route, &names, level_delay_ms, level_count));
            route_indexes[count] = route->index;
            queue_offsets[count] = record.queue_offset;
            count++;
        }
        offset += record.size;
        *next = offset;
    }
    if (count > 0 || status == TS_OK || *next > from)
        return count;
    return status;
}

int64_t ts_units_below(const uint8_t *units, int64_t count, int64_t log_end)
{
    int64_t low = 0, high = count;

    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        int64_t log_offset = 0, tags = 0;
        int32_t size = 0;

        ts_queue_unit_get(units + middle * 20, &log_offset, &size, &tags);
        if (size > 0 && log_offset >= 0 && log_offset <= log_end - size)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}
