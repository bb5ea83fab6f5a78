/* Handing over: a due message becomes a record of its real topic, a far one rolls.
 *
 * Encoding reads and checks the source and needs no lock. Placing runs under the append lock: it
 * looks at the id's state, gives the record its place and changes the state, in that order and in
 * the same hold, so that an id is handed at most once whatever else runs.
 */
#include "encode.h"
#include "hash.h"
#include "parse.h"
#include "states.h"
#include "view.h"

enum { HEADROOM = TS_ID_PAIR_BYTES + 76 + 28 + TS_PROPERTY_CRC_BYTES };

typedef struct {
    const ts_log *log;
    const ts_due *due;
    const ts_marks *marks;
    int64_t now_ms;
    int32_t roll;
    int32_t slim; /* the source leaves no space for what the ancestor adds */
} copy_job;

/* What stays the same from message to message within one call. */
typedef struct {
    ts_route *route;       /* where the last one went */
    ts_tail tail;          /* of the last one */
    int64_t write_ms;      /* of the texts below */
    uint8_t times[80];     /* TIMER_ENQUEUE_MS and TIMER_DEQUEUE_MS: 38 at most each */
    int32_t times_size;
} last_job;

/* Whether the pair is carried over as it is; the others are written anew or left out. */
static int32_t is_carried(const ts_text *name, const copy_job *job)
{
    if (TS_IS(name, "__CRC32#") || TS_IS(name, "TIMER_ENQUEUE_MS") ||
        TS_IS(name, "TIMER_DEQUEUE_MS") || TS_IS(name, "TS_ID") || TS_IS(name, "TS_GROUP"))
        return 0;
    if (job->roll && TS_IS(name, "TIMER_ROLL_TIMES"))
        return 0;
    if (job->slim && !job->roll && (TS_IS(name, "REAL_TOPIC") || TS_IS(name, "REAL_QID")))
        return 0;
    return 1;
}

static uint8_t *copy_times(uint8_t *out, const copy_job *job, last_job *last)
{
    if (last->times_size == 0 || last->write_ms != job->due->write_ms) {
        uint8_t *end = TS_COPY_NUMBER(last->times, "TIMER_ENQUEUE_MS", job->due->write_ms);

        end = TS_COPY_NUMBER(end, "TIMER_DEQUEUE_MS", job->now_ms);
        last->times_size = (int32_t)(end - last->times);
        last->write_ms = job->due->write_ms;
    }
    return ts_copy(out, last->times, last->times_size);
}

/* The copy's properties without its CRC; their size. */
static int32_t copy_properties(uint8_t *out, const ts_record *source, const copy_job *job,
                               last_job *last)
{
    uint8_t *start = out;
    ts_text name, value;
    int32_t at = 0;

    if (job->marks->plain_size > 0 && !job->roll && !job->slim &&
        job->marks->timer_id == job->due->id && job->marks->store_id == job->log->store_id) {
        out = ts_copy(out, source->properties, job->marks->plain_size);
        return (int32_t)(copy_times(out, job, last) - start);
    }
    while (ts_pair_next(source->properties, source->properties_size, &at, &name, &value)) {
        if (!is_carried(&name, job))
            continue;
        out = ts_copy(out, name.at, name.size + 1 + value.size);
        *out++ = 2;
    }
    out = ts_copy_timer_id(out, job->log->store_id, job->due->id);
    if (!job->slim)
        out = copy_times(out, job, last);
    if (job->roll)
        out = TS_COPY_NUMBER(out, "TIMER_ROLL_TIMES", job->marks->roll_times + 1);
    return (int32_t)(out - start);
}

/* The whole record but for what only its place can tell. 0 where it fits no format limit. */
static int32_t encode_copy(uint8_t *out, const ts_record *source, const ts_route *route,
                           copy_job *job, last_job *last)
{
    ts_record head = *source;
    uint8_t *text, *topic_end;
    int32_t crc_bytes = job->log->property_crc ? TS_PROPERTY_CRC_BYTES : 0;

    head.queue_id = route->queue_id;
    head.topic = route->topic;
    head.topic_size = route->topic_size;
    head.magic = ts_record_magic(route->topic_size);
    head.prepared_offset = 0;
    head.properties_size = 0;
    text = out + ts_record_bytes(&head);
    head.properties_size = copy_properties(text, source, job, last);
    if (head.properties_size + crc_bytes > TS_PROPERTIES_BYTES_MAX) {
        crc_bytes = 0;
        job->slim = 1;
        head.properties_size = copy_properties(text, source, job, last);
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

/* The route of the real topic: most often that of the message before. */
static ts_route *real_route(const ts_routes *routes, const ts_marks *marks, last_job *last)
{
    const ts_route *before = last->route;

    if (before == NULL || before->queue_id != marks->real_queue ||
        before->topic_size != marks->real_topic.size ||
        memcmp(before->topic, marks->real_topic.at, (size_t)before->topic_size) != 0)
        last->route = ts_route_find(routes, marks->real_topic.at, marks->real_topic.size,
                                    marks->real_queue);
    return last->route;
}

static int32_t encode_one(ts_view *view, const ts_routes *routes, const ts_log *log,
                          ts_route *timer_route, int64_t frontier, const ts_due *due, int64_t now_ms,
                          uint8_t *scratch, int64_t scratch_at, int64_t scratch_bytes,
                          ts_draft *draft, last_job *last)
{
    ts_record source;
    ts_marks marks;
    int32_t fault, status = ts_view_record(view, due->log_offset, &source);
    copy_job job = {log, due, &marks, now_ms, 0, 0};

    if (status != TS_OK)
        return status;
    fault = ts_record_check(&source);
    if (fault != TS_FAULT_NONE)
        return ts_view_fault(view, due->log_offset, fault);
    ts_marks_get_timer(source.properties, source.properties_size, &last->tail, &marks);
    if (!ts_marks_usable(&marks))
        return ts_view_fault(view, due->log_offset, TS_FAULT_PROPERTIES);
    if (scratch_at + source.size + HEADROOM + 256 > scratch_bytes) {
        view->need = source.size + HEADROOM + 256;
        return TS_NEED_ROOM;
    }
    draft->real = real_route(routes, &marks, last);
    if (draft->real == NULL) {
        view->need = due->log_offset;
        return TS_NEED_ROUTE;
    }
    job.roll = (due->flags & TS_FLAG_ROLL) != 0 &&
               ts_slot_of(due->due_ms, log->precision_ms) >= frontier;
    if (!job.roll && due->due_ms > now_ms)
        return TS_INVALID; /* never early: the open slot released what is not due */
    draft->flags = job.roll ? TS_FLAG_ROLL : 0;
    draft->route = job.roll ? timer_route : draft->real;
    draft->id = due->id;
    draft->slot = due->slot;
    draft->at = scratch_at;
    draft->placed = -1;
    draft->size = encode_copy(scratch + scratch_at, &source, draft->route, &job, last);
    return TS_OK;
}

int32_t ts_deliver_encode(ts_view *view, const ts_routes *routes, const ts_log *log,
                          ts_route *timer_route, int64_t frontier, const ts_due *due,
                          int32_t count, int64_t now_ms, uint8_t *scratch, int64_t scratch_bytes,
                          ts_draft *drafts)
{
    last_job last = {.route = NULL};
    int64_t at = 0;
    int32_t i, status = TS_OK;

    for (i = 0; i < count && i < 10; i++)
        ts_view_prefetch(view, due[i].log_offset, due[i].size);
    for (i = 0; i < count; i++) {
        if (i + 10 < count)
            ts_view_prefetch(view, due[i + 10].log_offset, due[i + 10].size);
        status = encode_one(view, routes, log, timer_route, frontier, &due[i], now_ms, scratch,
                            at, scratch_bytes, &drafts[i], &last);
        if (status != TS_OK)
            break;
        at += drafts[i].size;
    }
    return i > 0 ? i : status;
}

int32_t ts_deliver_place(ts_log *log, const uint8_t *scratch, ts_draft *drafts, int32_t from,
                         int32_t count, int64_t now_ms)
{
    int32_t i, status = TS_OK;

    for (i = from; i < count; i++) {
        ts_draft *draft = &drafts[i];
        const uint8_t *text = scratch + draft->at;
        uint8_t *out;

        draft->placed = -1;
        if (draft->size == 0 || ts_state_get(log->states, draft->id) != TS_WAITING)
            continue;
        status = ts_log_room(log, draft->size);
        if (status != TS_OK)
            break;
        if (draft->route == log->timer_route && draft->route->next_offset >= log->states->end) {
            log->need = draft->route->next_offset;
            status = TS_NEED_STATES;
            break;
        }
        out = log->staging + log->filled;
        ts_copy(out, text, draft->size);
        draft->placed = log->base + log->filled;
        ts_put_i64(out + TS_RECORD_AT_QUEUE_OFFSET, draft->route->next_offset++);
        ts_put_i64(out + TS_RECORD_AT_LOG_OFFSET, draft->placed);
        ts_put_i64(out + TS_RECORD_AT_BORN_HOST +
                       (ts_get_i32(out + TS_RECORD_AT_SYS_FLAG) & TS_SYS_BORN_HOST_IPV6 ? 20 : 8),
                   now_ms);
        if (ts_property_crc_get(out + draft->size - TS_PROPERTY_CRC_BYTES,
                                &(uint32_t){0}))
            ts_property_crc_seal(out, draft->size);
        if (!(draft->flags & TS_FLAG_ROLL)) {
            ts_states_put(log->states, draft->id, TS_HANDED);
            log->states->waiting--;
            draft->real->pending--;
        }
        log->filled += draft->size;
        log->last_store_ms = now_ms;
    }
    ts_log_publish(log);
    return i > from ? i - from : status;
}
