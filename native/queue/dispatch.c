/* Dispatch: make queue units of the log's new records. */
#include "base/hash.h"
#include "format/queue_unit.h"
#include "log/append_hints.h"
#include "log/put.h"
#include "log/walk.h"
#include "queue/tags_code.h"
#include "timer/request.h"

/* Records are consecutive, but the processor does not prefetch across a page. So lines this far
 * ahead are prefetched: 61 ns a record instead of 80. */
enum { AHEAD_BYTES = 2048 };

/* Return the route of a record. Most often it is that of the previous record. */
static ts_route *route_of(const ts_routes *routes, const ts_record *record, ts_route *before)
{
    if (before != NULL && before->queue_id == record->queue_id &&
        before->topic_size == record->topic_size &&
        ts_is_same(before->topic, record->topic, record->topic_size))
        return before;
    return ts_route_find(routes, record->topic, record->topic_size, record->queue_id);
}

/* The results of one call: a unit for each record that enters a queue, and its queue. */
typedef struct {
    uint8_t *units;
    int32_t *route_indexes;
    int64_t *queue_offsets;
    int32_t count;
} made;

static void add_unit(made *to, int64_t log_offset, int32_t size, int64_t code,
                     const ts_route *route, int64_t queue_offset)
{
    ts_queue_unit_put(to->units + (int64_t)to->count * TS_QUEUE_UNIT_BYTES, log_offset, size, code);
    to->route_indexes[to->count] = route->index;
    to->queue_offsets[to->count++] = queue_offset;
}

static void add_request(ts_requests *to, const ts_append_hint *hint)
{
    to->at[to->count++] = (ts_request){
        .id = hint->queue_offset,
        .log_offset = hint->log_offset,
        .due_ms = hint->due_ms,
        .out_ms = ts_out_ms_of(hint->due_ms, to->precision_ms),
        .queue_offset = hint->queue_offset,
        .size = hint->size,
        .topic_hash = hint->real->topic_hash,
    };
}

/* Handle one record by its append hint. Return TS_NEED_SPACE, and add nothing, if its key does not
 * fit. */
static int32_t take_hint(made *to, const ts_append_hint *hint, ts_keys *keys, ts_requests *requests)
{
    if (keys != NULL && ts_keys_add_hint(keys, hint) != TS_OK)
        return TS_NEED_SPACE;
    add_unit(to, hint->log_offset, hint->size, hint->tags, hint->route, hint->queue_offset);
    if (hint->real != NULL && requests != NULL)
        add_request(requests, hint);
    return TS_OK;
}

int32_t ts_dispatch(ts_view *view, const ts_routes *routes, const int64_t *level_delay_ms,
                    int32_t level_count, int64_t from, int64_t *next, int32_t capacity,
                    uint8_t *units, int32_t *route_indexes, int64_t *queue_offsets,
                    ts_keys *keys, ts_append_hints *hints, ts_requests *requests)
{
    int64_t offset = from;
    int32_t status = TS_OK;
    ts_route *route = NULL;
    made to = {units, route_indexes, queue_offsets, 0};
    ts_tail tail = {.real_size = 0};

    *next = from;
    while (to.count < capacity && offset < view->end) {
        const ts_append_hint *hint = hints == NULL ? NULL : ts_hint_at(hints, offset, keys);
        ts_record record;
        ts_names names;
        int32_t is_queued;

        if (hint != NULL) {
            status = take_hint(&to, hint, keys, requests);
            if (status != TS_OK)
                break;
            *next = offset += hint->size;
            continue;
        }
        status = ts_walk(view, &offset, &record);
        if (status == TS_CORRUPT && view->fault == TS_FAULT_END && offset >= view->end) {
            *next = offset; /* the log ends with a blank */
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
            add_unit(&to, offset, record.size,
                     ts_tags_code(&record, route, &names, level_delay_ms, level_count), route,
                     record.queue_offset);
            if (requests != NULL && route->kind == TS_ROUTE_TIMER)
                ts_request_of(&record, requests->states, requests->store_id,
                              requests->precision_ms, &tail, &requests->at[requests->count++]);
        }
        offset += record.size;
        *next = offset;
    }
    if (to.count > 0 || status == TS_OK || *next > from)
        return to.count;
    return status;
}

int64_t ts_units_bytes(const uint8_t *units, const int32_t *positions, int64_t count)
{
    int64_t sum = 0;

    for (int64_t i = 0; i < count; i++) {
        int64_t at = positions == NULL ? i : positions[i];
        int32_t size = ts_get_i32(units + at * TS_QUEUE_UNIT_BYTES + TS_QUEUE_AT_SIZE);

        sum += size > 0 ? size : 0; /* of a damaged unit it may be negative */
    }
    return sum;
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
