/* Units of queues that existed before the store was opened. Their tags codes and due times have no
 * checksum, so they are compared with the records before they are used
 * (docs/decisions/0006-index-and-queries.md). Also: the
 * store times of the messages of units, which only their records have. */
#include "base/hash.h"
#include "format/queue_unit.h"
#include "log/view.h"
#include "queue/tags_code.h"

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

static void prefetch_units(const ts_view *view, const uint8_t *units, int32_t i, int32_t count)
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

/* Read the record of a unit. Return a status. */
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

        prefetch_units(view, units, i, count);
        if (one.code < INT32_MIN)
            continue; /* an address in the queue's extension file; the filter reads the message
                       * instead */
        status = record_of(view, route, &one, queue_offset + i, &record);
        if (status != TS_OK)
            break;
        ts_names_of(&record, route, 0, &names);
        if (ts_tags_code(&record, route, &names, NULL, 0) != one.code) {
            /* If the record is intact, the unit is wrong. */
            status = ts_view_fault(view, one.log_offset, ts_record_check(&record));
            break;
        }
    }
    return i > 0 || count == 0 ? i : status;
}

int32_t ts_old_units_repair(ts_view *view, const ts_route *route, uint8_t *units, int32_t count,
                            int64_t queue_offset, const int64_t *level_delay_ms,
                            int32_t level_count)
{
    int32_t i;

    for (i = 0; i < count; i++) {
        unit one = unit_at(units, i);
        ts_record record;
        ts_names names;
        int64_t wanted;
        int32_t status;

        prefetch_units(view, units, i, count);
        status = record_of(view, route, &one, queue_offset + i, &record);
        if (status == TS_NEED_SEGMENT)
            return i > 0 ? i : status;
        if (status != TS_OK)
            continue; /* delivery will detect the damage */
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

        prefetch_units(view, units, i, count);
        status = record_of(view, route, &one, queue_offset + i, &record);
        if (status != TS_OK)
            break;
        store_ms[i] = record.store_ms;
    }
    return i > 0 || count == 0 ? i : status;
}
