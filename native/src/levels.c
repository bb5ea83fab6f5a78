/* Handing over for fixed levels: a due message of the level topic becomes one of its real topic.
 *
 * As in deliver.c: encoding reads and checks the source and needs no lock; placing runs under the
 * append lock. Which queue offset is next is the Python side's, changed in the hold that places.
 * The copy's TS_LEVEL is what tells a recovery that the source is out.
 */
#include "../format/level_mark.h"
#include "encode.h"
#include "hash.h"
#include "parse.h"
#include "view.h"

enum {
    MARK_PAIR_BYTES = 8 + 1 + TS_LEVEL_MARK_TEXT_BYTES + 1,
    HEADROOM = MARK_PAIR_BYTES + TS_PROPERTY_CRC_BYTES + 256 /* a longer topic */
};

typedef struct {
    const ts_log *log;
    const ts_level_due *due;
    int32_t slim; /* the source leaves no space: without what the properties repeat of the head */
} level_job;

static int32_t is_carried(const ts_text *name, int32_t slim)
{
    if (TS_IS(name, "__CRC32#") || TS_IS(name, "TS_ID") || TS_IS(name, "TS_LEVEL") ||
        TS_IS(name, "TS_GROUP"))
        return 0;
    return !slim || !(TS_IS(name, "REAL_TOPIC") || TS_IS(name, "REAL_QID"));
}

static int32_t copy_properties(uint8_t *out, const ts_record *source, const level_job *job)
{
    uint8_t *start = out;
    ts_text name, value;
    int32_t at = 0;

    while (ts_pair_next(source->properties, source->properties_size, &at, &name, &value)) {
        if (!is_carried(&name, job->slim))
            continue;
        out = ts_copy(out, name.at, name.size + 1 + value.size);
        *out++ = 2;
    }
    out = TS_COPY_TEXT(out, "TS_LEVEL\001");
    ts_level_mark_put(out, job->log->store_id, job->due->place, job->due->due_ms);
    out[TS_LEVEL_MARK_TEXT_BYTES] = 2;
    return (int32_t)(out + TS_LEVEL_MARK_TEXT_BYTES + 1 - start);
}

/* The whole record but for what only its place can tell. 0 where it fits no format limit. */
static int32_t encode_copy(uint8_t *out, const ts_record *source, const ts_route *route,
                           level_job *job)
{
    ts_record head = *source;
    int32_t crc_bytes = job->log->property_crc ? TS_PROPERTY_CRC_BYTES : 0;
    uint8_t *text, *topic_end;

    head.queue_id = route->queue_id;
    head.topic = route->topic;
    head.topic_size = route->topic_size;
    head.magic = ts_record_magic(route->topic_size);
    head.prepared_offset = 0;
    head.properties_size = 0;
    text = out + ts_record_bytes(&head);
    head.properties_size = copy_properties(text, source, job);
    if (head.properties_size + crc_bytes > TS_PROPERTIES_BYTES_MAX) {
        crc_bytes = 0;
        job->slim = 1;
        head.properties_size = copy_properties(text, source, job);
        if (head.properties_size > TS_PROPERTIES_BYTES_MAX)
            return 0;
    }
    head.properties_size += crc_bytes;
    head.size = ts_record_bytes(&head);
    topic_end = ts_copy(ts_head_put(out, &head), source->body, source->body_size);
    ts_topic_put(topic_end, &head);
    if (crc_bytes)
        ts_property_crc_put(out + head.size - TS_PROPERTY_CRC_BYTES, 0); /* sealed when placed */
    return head.size;
}

/* Whether the record is the one whose queue unit was read. */
static int32_t belongs(const ts_record *record, const ts_level_due *due)
{
    static const char topic[] = "SCHEDULE_TOPIC_XXXX";

    return record->size == due->size &&
           record->queue_id == (int32_t)(due->place >> TS_LEVEL_OFFSET_BITS) &&
           record->queue_offset == (due->place & (((int64_t)1 << TS_LEVEL_OFFSET_BITS) - 1)) &&
           record->topic_size == (int32_t)sizeof topic - 1 &&
           memcmp(record->topic, topic, sizeof topic - 1) == 0;
}

static int32_t encode_one(ts_view *view, const ts_routes *routes, level_job *job, int64_t now_ms,
                          uint8_t *scratch, int64_t at, int64_t scratch_bytes,
                          ts_level_draft *draft)
{
    const ts_level_due *due = job->due;
    ts_record source;
    ts_marks marks;
    int32_t status = ts_view_record(view, due->log_offset, &source);

    if (status != TS_OK)
        return status;
    status = belongs(&source, due) ? ts_record_check(&source) : TS_FAULT_TOPIC;
    if (status != TS_FAULT_NONE)
        return ts_view_fault(view, due->log_offset, status);
    draft->at = at;
    draft->placed = -1;
    draft->size = 0;
    draft->route = NULL;
    ts_marks_get(source.properties, source.properties_size, &marks);
    draft->unusable = !ts_level_usable(&marks);
    if (draft->unusable)
        return TS_OK;
    if (due->due_ms > now_ms)
        return TS_INVALID; /* never early: the caller released what is not due */
    if (at + source.size + HEADROOM > scratch_bytes) {
        view->need = source.size + HEADROOM;
        return TS_NEED_ROOM;
    }
    draft->route = ts_route_find(routes, marks.real_topic.at, marks.real_topic.size,
                                 marks.real_queue);
    if (draft->route == NULL) {
        view->need = due->log_offset;
        return TS_NEED_ROUTE;
    }
    draft->size = encode_copy(scratch + at, &source, draft->route, job);
    return TS_OK;
}

int32_t ts_level_encode(ts_view *view, const ts_routes *routes, const ts_log *log,
                        const ts_level_due *due, int32_t count, int64_t now_ms, uint8_t *scratch,
                        int64_t scratch_bytes, ts_level_draft *drafts)
{
    int64_t at = 0;
    int32_t i, status = TS_OK;

    for (i = 0; i < count; i++) {
        level_job job = {log, &due[i], 0};

        if (i + 10 < count)
            ts_view_prefetch(view, due[i + 10].log_offset, due[i + 10].size);
        status = encode_one(view, routes, &job, now_ms, scratch, at, scratch_bytes, &drafts[i]);
        if (status != TS_OK)
            break;
        at += drafts[i].size;
    }
    return i > 0 ? i : status;
}

int32_t ts_level_place(ts_log *log, const uint8_t *scratch, ts_level_draft *drafts, int32_t from,
                       int32_t count, int64_t now_ms)
{
    int32_t i, status = TS_OK;

    for (i = from; i < count; i++) {
        ts_level_draft *draft = &drafts[i];
        uint8_t *out;

        draft->placed = -1;
        if (draft->size == 0)
            continue;
        status = ts_log_room(log, draft->size);
        if (status != TS_OK)
            break;
        out = log->staging + log->filled;
        ts_copy(out, scratch + draft->at, draft->size);
        draft->placed = log->base + log->filled;
        ts_put_i64(out + TS_RECORD_AT_QUEUE_OFFSET, draft->route->next_offset++);
        ts_put_i64(out + TS_RECORD_AT_LOG_OFFSET, draft->placed);
        ts_put_i64(out + TS_RECORD_AT_BORN_HOST +
                       (ts_get_i32(out + TS_RECORD_AT_SYS_FLAG) & TS_SYS_BORN_HOST_IPV6 ? 20 : 8),
                   now_ms);
        if (ts_property_crc_get(out + draft->size - TS_PROPERTY_CRC_BYTES, &(uint32_t){0}))
            ts_property_crc_seal(out, draft->size);
        log->filled += draft->size;
        log->last_store_ms = now_ms;
    }
    ts_log_publish(log);
    return i > from ? i - from : status;
}
