/* Pull: read the messages of queue units into buffers of the caller. */
#include "base/hash.h"
#include "format/queue_unit.h"
#include "log/encode.h"
#include "log/parse.h"
#include "log/view.h"
#include "queue/tags_code.h"

static void fill(const ts_record *record, int64_t precision_ms, ts_tail *tail, ts_pulled *out)
{
    ts_marks marks;
    int64_t due;

    ts_marks_get_timer(record->properties, record->properties_size, tail, &marks);
    due = ts_marks_due(&marks, precision_ms);
    out->queue_offset = record->queue_offset;
    out->log_offset = record->log_offset;
    out->born_ms = record->born_ms;
    out->store_ms = record->store_ms;
    out->due_ms = due > 0 ? due : record->store_ms;
    out->delivered_ms = record->store_ms;
    out->body_size = record->body_size;
    out->properties_size = record->properties_size;
    out->size = record->size;
    out->queue_id = record->queue_id;
    out->flag = record->flag;
    out->sys_flag = record->sys_flag;
    out->reconsume_times = record->reconsume_times;
    out->body_crc = record->body_crc;
    out->born_host_size = record->born_host_size;
    out->store_host_size = record->store_host_size;
    ts_copy(out->born_host, record->born_host, record->born_host_size);
    ts_copy(out->store_host, record->store_host, record->store_host_size);
}

int32_t ts_pull(ts_view *view, const ts_route *route, const uint8_t *units,
                const int32_t *positions, int32_t count, int64_t queue_offset,
                int64_t visible_end, int64_t precision_ms, ts_pulled *out,
                uint8_t *bodies, int64_t bodies_bytes, uint8_t *properties,
                int64_t properties_bytes)
{
    int64_t body_at = 0, properties_at = 0, log_offset, tags;
    int32_t i, unit_size, status = TS_OK;
    ts_tail tail = {.real_size = 0};

    for (i = 0; i < count; i++) {
        int64_t at = positions == NULL ? i : positions[i];
        ts_record record;

        if (i + 8 < count) {
            int64_t ahead = positions == NULL ? i + 8 : positions[i + 8];

            ts_queue_unit_get(units + ahead * 20, &log_offset, &unit_size, &tags);
            ts_view_prefetch(view, log_offset, unit_size);
        }
        ts_queue_unit_get(units + at * 20, &log_offset, &unit_size, &tags);
        if (log_offset < 0 || unit_size <= 0 || log_offset > visible_end - unit_size)
            break; /* not durable yet, and neither are the rest */
        status = ts_view_record(view, log_offset, &record);
        if (status != TS_OK)
            break;
        if (record.size != unit_size || !ts_route_has(route, &record, queue_offset + at)) {
            status = ts_view_fault(view, log_offset, TS_FAULT_TOPIC);
            break;
        }
        status = ts_record_check(&record);
        if (status != TS_FAULT_NONE) {
            status = ts_view_fault(view, log_offset, status);
            break;
        }
        if (body_at + record.body_size > bodies_bytes ||
            properties_at + record.properties_size > properties_bytes) {
            view->need = record.size;
            status = TS_NEED_SPACE;
            break;
        }
        fill(&record, precision_ms, &tail, &out[i]);
        if (route->kind == TS_ROUTE_LEVELS && ts_has_level(&record)) {
            if (!ts_is_level_time(&record, tags)) {
                status = ts_view_fault(view, log_offset, TS_FAULT_TOPIC);
                break;
            }
            out[i].due_ms = tags;
        }
        out[i].body_at = body_at;
        out[i].properties_at = properties_at;
        ts_copy(bodies + body_at, record.body, record.body_size);
        ts_copy(properties + properties_at, record.properties, record.properties_size);
        body_at += record.body_size;
        properties_at += record.properties_size;
    }
    if (i == 0)
        return status;
    view->fault = status; /* why not all were read: TS_OK or a status */
    return i;
}

int32_t ts_pull_one(ts_view *view, int64_t log_offset, int64_t precision_ms, ts_pulled *out,
                    uint8_t *body, int64_t body_bytes, uint8_t *properties,
                    int64_t properties_bytes, uint8_t *topic)
{
    ts_record record;
    ts_tail tail = {.real_size = 0};
    int32_t status = ts_view_record(view, log_offset, &record);

    if (status != TS_OK)
        return status;
    status = ts_record_check(&record);
    if (status != TS_FAULT_NONE)
        return ts_view_fault(view, log_offset, status);
    if (record.body_size > body_bytes || record.properties_size > properties_bytes) {
        view->need = record.size;
        return TS_NEED_SPACE;
    }
    fill(&record, precision_ms, &tail, out);
    out->body_at = out->properties_at = 0;
    ts_copy(body, record.body, record.body_size);
    ts_copy(properties, record.properties, record.properties_size);
    ts_copy(topic, record.topic, record.topic_size);
    return record.topic_size;
}
