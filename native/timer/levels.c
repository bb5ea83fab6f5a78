/* Delivery for fixed levels: a due message of the level topic becomes a record of its real topic.
 *
 * As in timer delivery, encoding reads and checks the source and needs no lock; placing runs under
 * the append lock. The Python side owns the level's next queue offset, and changes it in the
 * critical section that places. The copy's TS_LEVEL tells a recovery that the source was delivered.
 */
#include "base/hash.h"
#include "format/level_mark.h"
#include "log/message_copy.h"
#include "log/parse.h"
#include "log/view.h"
#include "timer/calendar.h"

enum {
    MARK_PAIR_BYTES = 8 + 1 + TS_LEVEL_MARK_TEXT_BYTES + 1,
    HEADROOM = MARK_PAIR_BYTES + TS_PROPERTY_CRC_BYTES + 256 /* for a longer topic */
};

typedef struct {
    const ts_log *log;
    const ts_level_due *due;
} level_job;

/* slim: without the properties that repeat the head. */
static int32_t is_copied(const ts_text *name, int32_t slim)
{
    if (TS_IS(name, "__CRC32#") || TS_IS(name, "TS_ID") || TS_IS(name, "TS_LEVEL") ||
        TS_IS(name, "TS_GROUP") || TS_IS(name, "TS_PLACE"))
        return 0;
    return !slim || !(TS_IS(name, "REAL_TOPIC") || TS_IS(name, "REAL_QID"));
}

static int32_t copy_properties(uint8_t *out, const ts_record *source, int32_t slim, void *of)
{
    const level_job *job = of;
    uint8_t *start = out;
    ts_text name, value;
    int32_t at = 0;

    slim |= job->log->needed_only;
    while (ts_pair_next(source->properties, source->properties_size, &at, &name, &value)) {
        if (!is_copied(&name, slim))
            continue;
        out = ts_copy(out, name.at, name.size + 1 + value.size);
        *out++ = 2;
    }
    out = TS_COPY_TEXT(out, "TS_LEVEL\001");
    ts_level_mark_put(out, job->log->store_id, job->due->place, job->due->due_ms);
    out[TS_LEVEL_MARK_TEXT_BYTES] = 2;
    return (int32_t)(out + TS_LEVEL_MARK_TEXT_BYTES + 1 - start);
}

/* Return whether the record is the one of the queue unit. */
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
    draft->due_ms = due->due_ms;
    draft->size = 0;
    draft->route = NULL;
    ts_marks_get(source.properties, source.properties_size, &marks);
    draft->unusable = !ts_level_usable(&marks);
    if (draft->unusable)
        return TS_OK;
    if (due->due_ms > now_ms)
        return TS_INVALID; /* never early: the caller passes due messages only */
    if (at + source.size + HEADROOM > scratch_bytes) {
        view->need = source.size + HEADROOM;
        return TS_NEED_SPACE;
    }
    draft->route = ts_route_find(routes, marks.real_topic.at, marks.real_topic.size,
                                 marks.real_queue);
    if (draft->route == NULL) {
        view->need = due->log_offset;
        return TS_NEED_ROUTE;
    }
    draft->size = ts_copy_encode(scratch + at, &source, draft->route, job->log->property_crc,
                                 copy_properties, job);
    return TS_OK;
}

int32_t ts_level_encode(ts_view *view, const ts_routes *routes, const ts_log *log,
                        const ts_level_due *due, int32_t count, int64_t now_ms, uint8_t *scratch,
                        int64_t scratch_bytes, ts_level_draft *drafts)
{
    int64_t at = 0;
    int32_t i, status = TS_OK;

    for (i = 0; i < count; i++) {
        level_job job = {log, &due[i]};

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

        draft->placed = -1;
        if (draft->size == 0)
            continue;
        status = ts_log_has_space(log, draft->size);
        if (status != TS_OK)
            break;
        if (!ts_calendar_has_space(log->calendar, 1)) { /* messages that are not counted yet have no
                                                    * cells */
            log->need = 0;
            status = TS_NEED_STATES;
            break;
        }
        ts_copy(log->staging + log->filled, scratch + draft->at, draft->size);
        draft->placed = ts_copy_place(log, draft->route, draft->size, now_ms);
        ts_copy_close(log, draft->placed, draft->size,
                      ts_copy_has_crc(scratch + draft->at, draft->size));
        draft->route->level_pending--;
        if (log->calendar != NULL)
            ts_calendar_add(log->calendar, draft->route, draft->due_ms, -1);
    }
    ts_log_publish(log);
    return i > from ? i - from : status;
}
