/* Units of queues that were there before the store was opened: what they say of tags and of times
 * has no checksum, so it is held against the records before anything hangs on it (decision 0051).
 * Also: when the messages of units were stored, which only their records say.
 */
#include "format/queue_unit.h"
#include "base/hash.h"
#include "queue/tags_code.h"
#include "log/view.h"

typedef struct {
    int64_t log_offset;
    int64_t code;
    int32_t size;
} unit;

static unit unit_at(const uint8_t *units, int64_t number)
{
    unit one;

    ts_queue_unit_get(units + number * TS_QUEUE_UNIT_BYTES, &one.log_offset, &one.size, &one.code);
    return one;
}

static void ask_ahead(const ts_view *view, const uint8_t *units, int32_t i, int32_t count)
{
    if (i % TS_TOUCHED == 0) {
        for (int32_t k = i + TS_TOUCHED; k < i + 2 * TS_TOUCHED && k < count; k++) {
            unit one = unit_at(units, k);

            ts_view_touch(view, one.log_offset, one.size);
        }
    }
    if (i + 8 < count) {
        unit one = unit_at(units, i + 8);

        ts_view_prefetch(view, one.log_offset, one.size);
    }
}

/* The record of a unit, or a status. */
static int32_t record_of(ts_view *view, const ts_route *route, const unit *one,
                         int64_t queue_offset, ts_record *record)
{
    int32_t status = ts_view_record(view, one->log_offset, record);

    if (status == TS_OK &&
        (record->size != one->size || !ts_route_has(route, record, queue_offset)))
        status = ts_view_fault(view, one->log_offset, TS_FAULT_TOPIC);
    return status;
}

int32_t ts_old_units_check(ts_view *view, const ts_route *route, const uint8_t *units,
                           int32_t count, int64_t queue_offset)
{
    int32_t i, status = TS_OK;

    for (i = 0; i < count; i++) {
        unit one = unit_at(units, i);
        ts_record record;
        ts_names names;

        ask_ahead(view, units, i, count);
        if (one.code < INT32_MIN)
            continue; /* an address in the queue's ext file: who filters looks at the message */
        status = record_of(view, route, &one, queue_offset + i, &record);
        if (status != TS_OK)
            break;
        ts_names_of(&record, route, 0, &names);
        if (ts_tags_code(&record, route, &names, NULL, 0) != one.code) {
            /* Which of the two is wrong: where the record is whole, the unit. */
            status = ts_view_fault(view, one.log_offset, ts_record_check(&record));
            break;
        }
    }
    return i > 0 || count == 0 ? i : status;
}

int32_t ts_old_units_repair(ts_view *view, const ts_route *route, uint8_t *units, int32_t count,
                            int64_t queue_offset, const int64_t *level_delay_ms, int32_t level_count)
{
    int32_t i;

    for (i = 0; i < count; i++) {
        unit one = unit_at(units, i);
        ts_record record;
        ts_names names;
        int64_t wanted;
        int32_t status;

        ask_ahead(view, units, i, count);
        status = record_of(view, route, &one, queue_offset + i, &record);
        if (status == TS_NEED_SEGMENT)
            return i > 0 ? i : status;
        if (status != TS_OK)
            continue; /* who delivers it finds out */
        ts_names_of(&record, route, 0, &names);
        wanted = ts_tags_code(&record, route, &names, level_delay_ms, level_count);
        if (one.code == wanted || ts_record_check(&record) != TS_FAULT_NONE)
            continue;
        if (one.code > wanted || !ts_is_level_time(&record, one.code))
            ts_queue_unit_put(units + (int64_t)i * TS_QUEUE_UNIT_BYTES, one.log_offset, one.size,
                              wanted);
    }
    return i;
}

int32_t ts_units_store_ms(ts_view *view, const ts_route *route, const uint8_t *units, int32_t count,
                          int64_t queue_offset, int64_t *store_ms)
{
    int32_t i, status = TS_OK;

    for (i = 0; i < count; i++) {
        unit one = unit_at(units, i);
        ts_record record;

        ask_ahead(view, units, i, count);
        status = record_of(view, route, &one, queue_offset + i, &record);
        if (status != TS_OK)
            break;
        store_ms[i] = record.store_ms;
    }
    return i > 0 || count == 0 ? i : status;
}
