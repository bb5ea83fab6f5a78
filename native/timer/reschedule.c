/* Rescheduling, the part without locks: find a message in a slot's chain by the names in its
 * handle, and write its record again, for another route and with other properties. */
#include "format/properties.h"
#include "log/encode.h"
#include "log/parse.h"
#include "log/view.h"

/* Encode the record. Fields that depend on its place stay open: queue offset, log offset, store
 * time, the timer id and the group at its end, and the CRC after them. */
static int32_t encode(const ts_log *log, ts_record *head, const ts_route *target,
                      const uint8_t *body, int32_t body_size, const uint8_t *properties,
                      int32_t properties_size, uint8_t *out, int32_t out_bytes)
{
    int32_t is_timer = target == log->timer_route;

    head->queue_id = target->queue_id;
    head->topic = target->topic;
    head->topic_size = target->topic_size;
    head->magic = ts_record_magic(target->topic_size);
    head->prepared_offset = 0;
    head->body_size = body_size;
    head->properties_size = properties_size + (is_timer ? TS_ID_PAIR_BYTES : 0) +
                            TS_GROUP_PAIR_BYTES + (log->property_crc ? TS_PROPERTY_CRC_BYTES : 0);
    head->size = ts_record_bytes(head);
    if (head->properties_size > TS_PROPERTIES_BYTES_MAX)
        return TS_INVALID;
    if (head->size > out_bytes)
        return TS_NEED_SPACE;
    out = ts_copy(ts_head_put(out, head), body, body_size);
    out = ts_copy(ts_topic_put(out, head), properties, properties_size);
    if (is_timer)
        out = ts_copy_timer_id(out, log->store_id, 0);
    out = ts_copy_group(out, 0, 0);
    if (log->property_crc)
        ts_property_crc_put(out, 0);
    return head->size;
}

int32_t ts_reschedule_encode(ts_view *view, const ts_log *log, int64_t log_offset,
                             const ts_route *target, const uint8_t *properties,
                             int32_t properties_size, uint8_t *out, int32_t out_bytes)
{
    ts_record source, head;
    int32_t fault, size, status = ts_view_record(view, log_offset, &source);

    if (status != TS_OK)
        return status;
    fault = ts_record_check(&source);
    if (fault != TS_FAULT_NONE)
        return ts_view_fault(view, log_offset, fault);
    head = source;
    size = encode(log, &head, target, source.body, source.body_size, properties, properties_size,
                  out, out_bytes);
    view->need = head.size;
    return size;
}

int32_t ts_replace_encode(const ts_log *log, const ts_route *target, const uint8_t *body,
                          int32_t body_size, const uint8_t *properties, int32_t properties_size,
                          int64_t now_ms, uint8_t *out, int32_t out_bytes)
{
    ts_record head;
    int32_t size;

    memset(&head, 0, sizeof head);
    head.born_ms = now_ms;
    head.born_host = head.store_host = log->host;
    head.born_host_size = head.store_host_size = 8;
    size = encode(log, &head, target, body, body_size, properties, properties_size, out, out_bytes);
    if (size > 0)
        ts_body_crc_set(out, TS_RECORD_AT_BODY, body_size);
    return size;
}

int32_t ts_chained_find(ts_view *view, const ts_chained *chained, int32_t count,
                        const uint8_t *topic, int32_t topic_size, const uint8_t *key,
                        int32_t key_size, int64_t out_ms, const ts_states *states,
                        uint32_t store_id, int32_t *at, int64_t *id)
{
    for (; *at < count; (*at)++) {
        const ts_chained *one = &chained[*at];
        ts_record record;
        ts_marks marks;
        int32_t status;

        if (*at + 10 < count)
            ts_view_prefetch(view, chained[*at + 10].log_offset, chained[*at + 10].size);
        if (one->log_offset < view->begin)
            continue; /* if it waited, it was moved, and has another unit */
        status = ts_view_record(view, one->log_offset, &record);
        if (status != TS_OK)
            return status;
        ts_marks_get(record.properties, record.properties_size, &marks);
        if (!ts_marks_usable(&marks) ||
            !ts_marks_named(&marks, topic, topic_size, key, key_size, out_ms))
            continue;
        *id = ts_marks_id(&marks, states, store_id, record.queue_offset);
        return 1;
    }
    return 0;
}
