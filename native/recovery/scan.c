/* The scan of a recovery: check each record, and classify it for the fold. */
#include "recovery/scan.h"

#include "base/hash.h"
#include "log/walk.h"

/* Return whether the record is in its real topic. A record without space for REAL_TOPIC has a mark
 * of ours instead. If a consumer sends a message on with all its properties, that message is
 * ordinary; so is a dead letter. */
static int32_t is_in_real_topic(const ts_record *record, const ts_marks *marks)
{
    if (marks->real_topic.at == NULL)
        return marks->timer_id >= 0 || ts_marks_leveled(marks);
    return ts_text_is(&marks->real_topic, record->topic, record->topic_size);
}

int32_t ts_record_kind(const ts_record *record, int32_t route_kind, const ts_marks *marks)
{
    if (route_kind == TS_ROUTE_TIMER) {
        if (marks->delete_key.at != NULL)
            return TS_KIND_DELETE;
        return ts_timer_usable(marks) ? TS_KIND_TIMER : TS_KIND_UNUSABLE;
    }
    if (route_kind == TS_ROUTE_LEVELS)
        return ts_level_usable(marks) ? TS_KIND_LEVEL : TS_KIND_LEVEL_UNUSABLE;
    if (!is_in_real_topic(record, marks))
        return TS_KIND_ORDINARY;
    if (ts_marks_leveled(marks))
        return TS_KIND_LEVEL_DELIVERED;
    if (marks->out_ms >= 0)
        return TS_KIND_DELIVERED;
    return marks->delay_level > 0 ? TS_KIND_LEVEL_DELIVERED : TS_KIND_ORDINARY;
}

static uint64_t identity_of(const uint8_t *topic, int32_t topic_size, const ts_text *key)
{
    uint64_t state = ts_identity_more(TS_IDENTITY_START, topic, topic_size);

    state = ts_identity_more(state, (const uint8_t *)"+", 1);
    return ts_identity_end(ts_identity_more(state, key->at, key->size));
}

void ts_record_describe(const ts_record *record, int32_t route_kind, const ts_marks *marks,
                        int64_t precision_ms, ts_scanned *out)
{
    const ts_text *key = &marks->unique_key;

    out->log_offset = record->log_offset;
    out->queue_offset = record->queue_offset;
    out->store_ms = record->store_ms;
    out->due_ms = ts_marks_due(marks, precision_ms);
    out->out_ms = marks->out_ms < 0 ? 0 : marks->out_ms;
    out->timer_id = marks->timer_id;
    out->store_id = marks->store_id;
    out->size = record->size;
    out->kind = ts_record_kind(record, route_kind, marks);
    if (out->kind == TS_KIND_TIMER && ts_marks_left_over(marks, record->queue_offset))
        out->timer_id = -1;
    if (out->kind == TS_KIND_LEVEL_DELIVERED) {
        out->timer_id = marks->level_place; /* -1 if a broker delivered it */
        out->store_id = marks->level_store_id;
    }
    out->vouches = out->kind == TS_KIND_TIMER && marks->timer_id >= 0 &&
                   marks->place_offset == record->queue_offset &&
                   marks->place_store_id == marks->store_id;
    out->roll_times = marks->roll_times;
    out->delay_level = marks->delay_level;
    out->queue_id = record->queue_id;
    if (out->kind == TS_KIND_DELETE) {
        out->identity = ts_identity(marks->delete_key.at, marks->delete_key.size);
        out->bare_identity = out->identity;
    } else if (out->kind == TS_KIND_TIMER || out->kind == TS_KIND_LEVEL) {
        out->identity = identity_of(marks->real_topic.at, marks->real_topic.size, key);
        out->bare_identity = ts_identity(key->at, key->size);
    } else {
        out->identity = identity_of(record->topic, record->topic_size, key);
        out->bare_identity = ts_identity(key->at, key->size);
    }
}

/* Return the queue whose pending count the record changes: its real one. */
static ts_route *counted_route(const ts_routes *routes, ts_route *own, const ts_marks *marks)
{
    int32_t waits = own->kind == TS_ROUTE_TIMER    ? ts_timer_usable(marks)
                    : own->kind == TS_ROUTE_LEVELS ? ts_level_usable(marks)
                                                   : 0;

    if (!waits)
        return own;
    return ts_route_find(routes, marks->real_topic.at, marks->real_topic.size,
                         marks->real_queue);
}

/* Update the group that the record belongs to, if the record is consistent with it. The group is
 * open until its end. */
static void follow_group(ts_view *view, const ts_record *record, const ts_marks *marks)
{
    int64_t end = record->log_offset + record->size;
    int64_t left = marks->group_start < 0 ? 0 : marks->group_left;
    int64_t segment_end = (record->log_offset / view->segment_bytes + 1) * view->segment_bytes;

    if (marks->group_start == record->log_offset && left <= segment_end - end) {
        view->group_start = record->log_offset;
        view->group_end = end + left;
    } else if (marks->group_start != view->group_start || end + left != view->group_end) {
        view->group_end = 0;
    }
}

static int32_t scan_one(ts_view *view, const ts_routes *routes, int64_t precision_ms,
                        int64_t *offset, ts_scanned *out)
{
    ts_record record;
    ts_marks marks;
    ts_route *own, *counted;
    int32_t fault, status = ts_walk(view, offset, &record);

    if (status != TS_OK)
        return status;
    fault = ts_record_check(&record);
    if (fault != TS_FAULT_NONE)
        return ts_view_fault(view, *offset, fault);
    ts_marks_get(record.properties, record.properties_size, &marks);
    own = ts_route_find(routes, record.topic, record.topic_size, record.queue_id);
    counted = own == NULL ? NULL : counted_route(routes, own, &marks);
    if (counted == NULL) {
        view->need = *offset;
        return TS_NEED_ROUTE;
    }
    follow_group(view, &record, &marks);
    ts_record_describe(&record, own->kind, &marks, precision_ms, out);
    out->topic_hash = counted->topic_hash;
    out->route = counted->index;
    if (!ts_is_queued(&record)) {
        out->kind = TS_KIND_ORDINARY;
        out->route = -1; /* in no queue */
    }
    *offset += record.size;
    return TS_OK;
}

int32_t ts_scan(ts_view *view, const ts_routes *routes, int64_t precision_ms, int64_t from,
                int64_t *next, int32_t capacity, ts_scanned *out)
{
    int64_t offset = from;
    int32_t count = 0, status = TS_OK;

    view->fault = TS_FAULT_NONE;
    *next = from;
    while (count < capacity) {
        status = scan_one(view, routes, precision_ms, &offset, &out[count]);
        if (status != TS_OK)
            break;
        count++;
        *next = offset;
    }
    if (status == TS_CORRUPT) {
        *next = view->fault_offset; /* after a blank, the start of the next segment */
        return count;
    }
    return count > 0 ? count : status;
}

int32_t ts_record_at(ts_view *view, int64_t log_offset, int64_t *topic_at, int32_t *topic_size,
                     int64_t *properties_at, int32_t *properties_size, int32_t *queue_id,
                     int32_t *size)
{
    ts_record record;
    int32_t status = ts_view_record(view, log_offset, &record);

    if (status != TS_OK)
        return status;
    *topic_at = record.topic - record.base;
    *topic_size = record.topic_size;
    *properties_at = record.properties - record.base;
    *properties_size = record.properties_size;
    *queue_id = record.queue_id;
    *size = record.size;
    return TS_OK;
}

int32_t ts_record_store_ms(ts_view *view, int64_t log_offset, int64_t *store_ms)
{
    ts_record record;
    int32_t status = ts_view_record(view, log_offset, &record);

    if (status == TS_OK)
        *store_ms = record.store_ms;
    return status;
}
