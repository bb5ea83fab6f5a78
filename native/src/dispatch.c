/* Dispatch: the log's tail becomes queue units. */
#include "../format/queue_unit.h"
#include "hash.h"
#include "keys.h"
#include "tags_code.h"
#include "walk.h"

/* Records come one behind the other, but the processor does not read on across a page by itself: so
 * far ahead lines are asked for. 61 ns a record instead of 80. */
enum { AHEAD_BYTES = 2048 };

/* The route of a record: most often that of the one before. */
static ts_route *route_of(const ts_routes *routes, const ts_record *record, ts_route *before)
{
    if (before != NULL && before->queue_id == record->queue_id &&
        before->topic_size == record->topic_size &&
        ts_is_same(before->topic, record->topic, record->topic_size))
        return before;
    return ts_route_find(routes, record->topic, record->topic_size, record->queue_id);
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
        ts_names_of(&record, route, keys != NULL, &names);
        status = keys == NULL ? TS_OK : ts_keys_take(keys, &record, &names, route);
        if (status != TS_OK)
            break;
        if (is_queued) {
            ts_queue_unit_put(units + (int64_t)count * 20, offset, record.size,
                              ts_tags_code(&record, route, &names, level_delay_ms, level_count));
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
