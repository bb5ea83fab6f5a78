/* Records of a window, each checked before it is used. */
#include "table/window.h"

#include "log/parse.h"
#include "log/view.h"
#include "log/walk.h"
#include "recovery/scan.h"

/* Return why a record cannot be read here: TS_NEED_SPACE if more bytes may help, else TS_CORRUPT.
 */
static int32_t unread(ts_window *window, int64_t offset, int64_t available, int32_t fault)
{
    int64_t last = ts_window_segment_left(window, offset);

    if (last > window->end - offset)
        last = window->end - offset; /* all bytes that the record may have */
    if (fault == TS_RECORD_SHORT && available < last) {
        int64_t wanted = available < 8 ? 8 : ts_get_i32(window->bytes + (offset - window->offset));

        if (wanted <= last) {
            window->need = wanted;
            return TS_NEED_SPACE;
        }
    }
    if (fault == TS_RECORD_ENDS)
        return ts_window_fault(window, offset, TS_FAULT_END);
    if (fault == TS_RECORD_SHORT)
        return ts_window_fault(window, offset, TS_FAULT_SHORT);
    if (fault == TS_RECORD_MAGIC)
        return ts_window_fault(window, offset, TS_FAULT_MAGIC);
    return ts_window_fault(window, offset, TS_FAULT_LENGTHS);
}

int32_t ts_window_record(ts_window *window, int64_t *offset, ts_record *record)
{
    int64_t available = 0;
    int32_t remaining = 0, fault;
    const uint8_t *at = ts_window_bytes(window, *offset, &available);

    window->need = 0;
    if (at == NULL)
        return TS_NEED_SPACE;
    if (available < 8 && ts_window_segment_left(window, *offset) < 8)
        return ts_window_fault(window, *offset, TS_FAULT_SHORT);
    if (ts_blank_is(at, available, &remaining)) {
        if (remaining != ts_window_segment_left(window, *offset))
            return ts_window_fault(window, *offset, TS_FAULT_LENGTHS);
        *offset += remaining;
        return TS_NEED_SPACE;
    }
    fault = ts_record_get(at, available, record);
    if (fault != 0)
        return unread(window, *offset, available, fault);
    if (record->log_offset != *offset)
        return ts_window_fault(window, *offset, TS_FAULT_POSITION);
    if (window->verify) {
        fault = ts_record_check(record);
        if (fault != TS_FAULT_NONE)
            return ts_window_fault(window, *offset, fault);
    }
    return TS_OK;
}

static int32_t topic_is(const ts_record *record, const char *topic, size_t size)
{
    return (size_t)record->topic_size == size && memcmp(record->topic, topic, size) == 0;
}

int32_t ts_topic_kind(const ts_record *record)
{
    static const char timer[] = "rmq_sys_wheel_timer", levels[] = "SCHEDULE_TOPIC_XXXX";

    if (topic_is(record, timer, sizeof timer - 1))
        return TS_ROUTE_TIMER;
    return topic_is(record, levels, sizeof levels - 1) ? TS_ROUTE_LEVELS : TS_ROUTE_REAL;
}

int32_t ts_window_scan(ts_window *window, int64_t precision_ms, int64_t from, int64_t *next,
                       int32_t capacity, ts_scanned *out)
{
    int32_t count = 0, status;

    window->fault = TS_FAULT_NONE;
    *next = from;
    while (count < capacity) {
        ts_record record;
        ts_marks marks;
        int64_t offset = *next;

        status = ts_window_record(window, &offset, &record);
        *next = offset;
        if (status != TS_OK)
            return *next != from ? count : status;
        ts_marks_get(record.properties, record.properties_size, &marks);
        memset(&out[count], 0, sizeof out[count]);
        ts_record_describe(&record, ts_topic_kind(&record), &marks, precision_ms, &out[count]);
        out[count].route = -1;
        if (!ts_is_queued(&record))
            out[count].kind = TS_KIND_ORDINARY;
        *next += record.size;
        count++;
    }
    return count;
}

int64_t ts_window_count(ts_window *window, int64_t from, int64_t *next, int64_t limit)
{
    int64_t count = 0;

    window->fault = TS_FAULT_NONE;
    *next = from;
    while (count < limit) {
        ts_record record;
        int64_t offset = *next;
        int32_t status = ts_window_record(window, &offset, &record);

        *next = offset;
        if (status != TS_OK)
            return *next != from ? count : status;
        *next += record.size;
        count++;
    }
    return count;
}
