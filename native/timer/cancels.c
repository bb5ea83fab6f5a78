/* Cancelling: the text of a delete record, and many cancels at a time.
 *
 * ts_cancels_find reads the sources that the hints of handles point at, and needs no lock.
 * ts_cancels_place runs under the append lock. If a hint is not conclusive, the caller searches
 * further (timerstore/_engine/timer/handle_lookup.py).
 */
#include "base/hash.h"
#include "log/encode.h"
#include "log/parse.h"
#include "log/view.h"
#include "timer/calendar.h"

enum { AHEAD = 10, LIKELY_BYTES = 384 }; /* assumed if a record's size is not known */

static uint8_t *copy_pair(uint8_t *out, const char *name, int32_t name_size, const uint8_t *value,
                          int32_t value_size)
{
    out = ts_copy(out, name, name_size);
    out = ts_copy(out, value, value_size);
    *out++ = 2;
    return out;
}

#define PAIR(out, name, value, size) \
    copy_pair((out), name "\001", (int32_t)sizeof(name), (value), (size))

int32_t ts_delete_text(uint8_t *out, int32_t out_bytes, const uint8_t *topic, int32_t topic_size,
                       const uint8_t *key, int32_t key_size, int32_t queue_id, int64_t out_ms)
{
    uint8_t *next = out;

    if (topic_size < 0 || key_size < 0 ||
        2 * ((int64_t)topic_size + key_size) + TS_DELETE_TEXT_BYTES > out_bytes)
        return TS_NEED_SPACE;
    next = TS_COPY_TEXT(next, "TAGS\001_RECALL_TAG_\002");
    next = PAIR(next, "UNIQ_KEY", key, key_size);
    next = TS_COPY_NUMBER(next, "TIMER_DELIVER_MS", out_ms + 1);
    next = TS_COPY_NUMBER(next, "TIMER_OUT_MS", out_ms);
    next = PAIR(next, "REAL_TOPIC", topic, topic_size);
    next = TS_COPY_NUMBER(next, "REAL_QID", queue_id);
    next = TS_COPY_TEXT(next, "TIMER_DEL_UNIQKEY\001");
    next = ts_copy(next, topic, topic_size);
    *next++ = '+';
    next = ts_copy(next, key, key_size);
    *next++ = 2;
    return (int32_t)(next - out);
}

/* Return whether this record is the source of a timer: the one whose queue offset became the id. */
static int32_t is_source(const ts_record *record, int64_t timer_id)
{
    static const char timer[] = TS_TIMER_TOPIC;

    return record->queue_offset == timer_id && record->topic_size == (int32_t)sizeof timer - 1 &&
           memcmp(record->topic, timer, sizeof timer - 1) == 0;
}

/* Read the source that the hint points at, and fill in the draft if it is the message that the
 * handle names. */
static int32_t find_one(ts_view *view, const ts_routes *routes, int64_t precision_ms,
                        const ts_handle *one, const uint8_t *names, ts_cancel_draft *draft)
{
    const uint8_t *topic = names + one->name_at, *key = topic + one->topic_size;
    ts_record record;
    ts_marks marks;
    int32_t status;

    if (one->log_offset < view->begin)
        return TS_OK; /* no hint, or retention moved it */
    status = ts_view_record(view, one->log_offset, &record);
    if (status == TS_NEED_SEGMENT)
        return status;
    if (status != TS_OK || !is_source(&record, one->timer_id))
        return TS_OK; /* the search of the caller reports the error */
    ts_marks_get(record.properties, record.properties_size, &marks);
    if (marks.real_queue < 0 || !ts_marks_named(&marks, topic, one->topic_size, key,
                                                one->key_size, one->out_ms))
        return TS_OK;
    draft->real = ts_route_find(routes, topic, one->topic_size, marks.real_queue);
    draft->due_ms = ts_marks_due(&marks, precision_ms);
    return TS_OK;
}

int32_t ts_cancels_find(ts_view *view, const ts_routes *routes, int64_t precision_ms,
                        const ts_handle *named, const uint8_t *names, int32_t count,
                        uint8_t *texts, int32_t texts_bytes, ts_cancel_draft *drafts)
{
    int32_t i, at = 0, status = TS_OK;

    for (i = 0; i < count; i++) {
        const ts_handle *one = &named[i];
        ts_cancel_draft *draft = &drafts[i];
        int32_t size;

        if (i + AHEAD < count) {
            int32_t size_ahead = named[i + AHEAD].size;

            ts_view_prefetch(view, named[i + AHEAD].log_offset,
                             size_ahead > 0 ? size_ahead : LIKELY_BYTES);
        }
        memset(draft, 0, sizeof *draft);
        draft->timer_id = one->timer_id;
        status = find_one(view, routes, precision_ms, one, names, draft);
        if (status != TS_OK)
            break;
        if (draft->real == NULL)
            continue;
        size = ts_delete_text(texts + at, texts_bytes - at, names + one->name_at, one->topic_size,
                              names + one->name_at + one->topic_size, one->key_size,
                              draft->real->queue_id, one->out_ms);
        if (size < 0 && i > 0)
            break;
        if (size < 0) {
            draft->real = NULL; /* longer than the whole buffer */
            continue;
        }
        draft->text_at = at;
        draft->text_size = size;
        at += size;
    }
    return i > 0 ? i : status;
}

int32_t ts_cancels_place(ts_log *log, const uint8_t *texts, ts_cancel_draft *drafts, int32_t from,
                         int32_t count, int64_t now_ms)
{
    int32_t i, status = TS_OK;

    for (i = from; i < count; i++) {
        ts_cancel_draft *draft = &drafts[i];

        if (draft->real == NULL)
            continue;
        if (!ts_calendar_fits(log, 2)) {
            log->need = 0;
            status = TS_NEED_STATES;
            break;
        }
        draft->log_offset = log->base + log->filled;
        status = ts_cancel(log, draft->real, draft->timer_id, texts + draft->text_at,
                           draft->text_size, now_ms);
        if (status < 0)
            break;
        draft->state = status;
        if (status == TS_PENDING)
            ts_calendar_leave(log, draft->real, draft->timer_id, draft->due_ms);
    }
    return i > from ? i - from : status < 0 ? status : TS_OK;
}
