/* Delivery, first part: plan the records. A due message becomes a record of its real topic; a
 * message that is due later rolls.
 *
 * Planning reads and checks the source, and needs no lock. deliver_place.c places the records under
 * the append lock.
 *
 * A source that this engine wrote is copied once, directly to its place in the log. Planning has
 * just read every byte of it, so the critical section does not wait for a page fault. Other sources
 * are encoded to the scratch buffer.
 */
#include "base/hash.h"
#include "index/keys.h"
#include "log/message_copy.h"
#include "log/message_names.h"
#include "log/parse.h"
#include "log/view.h"
#include "timer/delivery_times.h"

enum {
    HEADROOM = TS_ID_PAIR_BYTES + TS_PLACE_PAIR_BYTES + 76 + 28 + TS_PROPERTY_CRC_BYTES,
    AHEAD = 10,
    READ_BYTES = 2 << 20 /* of sources in one plan, so that they are still in the cache when the
                          * records are placed */
};

/* What consecutive messages of one call have in common. */
typedef struct {
    ts_route *route;       /* the queue of the previous message */
    ts_tail tail;          /* of the previous message */
    ts_delivery_times times;
} last_job;

typedef struct {
    const ts_log *log;
    const ts_due *due;
    const ts_marks *marks;
    int64_t now_ms;
    int32_t roll;
    int32_t move;
    last_job *last;
} copy_job;

/* Return whether the pair is copied unchanged. The other pairs are written again or left out. */
static int32_t is_copied(const ts_text *name, const copy_job *job, int32_t slim)
{
    if (TS_IS(name, "__CRC32#") || TS_IS(name, "TIMER_ENQUEUE_MS") ||
        TS_IS(name, "TIMER_DEQUEUE_MS") || TS_IS(name, "TS_ID") || TS_IS(name, "TS_GROUP") ||
        TS_IS(name, "TS_PLACE"))
        return 0;
    if (job->roll && TS_IS(name, "TIMER_ROLL_TIMES"))
        return 0;
    if (slim && !job->roll && !job->move && (TS_IS(name, "REAL_TOPIC") || TS_IS(name, "REAL_QID")))
        return 0;
    return 1;
}

static uint8_t *copy_times(uint8_t *out, const copy_job *job)
{
    const ts_delivery_times *times = ts_delivery_times_of(&job->last->times, job->due->write_ms,
                                                          job->now_ms);

    return ts_copy(out, times->text, times->size);
}

/* slim: without the times, and for a delivery without REAL_TOPIC and REAL_QID. */
static int32_t copy_properties(uint8_t *out, const ts_record *source, int32_t slim, void *of)
{
    const copy_job *job = of;
    uint8_t *start = out;
    ts_text name, value;
    int32_t at = 0;

    slim |= job->log->needed_only;
    while (ts_pair_next(source->properties, source->properties_size, &at, &name, &value)) {
        if (!is_copied(&name, job, slim))
            continue;
        out = ts_copy(out, name.at, name.size + 1 + value.size);
        *out++ = 2;
    }
    out = ts_copy_timer_id(out, job->log->store_id, job->due->id);
    if (!slim && !job->move)
        out = copy_times(out, job);
    if (job->roll)
        out = TS_COPY_NUMBER(out, "TIMER_ROLL_TIMES", job->marks->roll_times + 1);
    if (job->roll || job->move)
        out = ts_copy_own_place(out, job->log->store_id, 0);
    return (int32_t)(out - start);
}

/* Return the route of the real topic. Most often it is that of the previous message. */
static ts_route *real_route(const ts_routes *routes, const ts_marks *marks, last_job *last)
{
    const ts_route *before = last->route;

    if (before == NULL || before->queue_id != marks->real_queue ||
        before->topic_size != marks->real_topic.size ||
        !ts_is_same(before->topic, marks->real_topic.at, before->topic_size))
        last->route = ts_route_find(routes, marks->real_topic.at, marks->real_topic.size,
                                    marks->real_queue);
    return last->route;
}

/* Return the size of the record that build_plain makes, or 0 if it cannot: another writer's source,
 * or one that is too long for what delivery adds. */
static int32_t plain_bytes(const ts_record *source, const ts_route *route, const copy_job *job)
{
    const ts_marks *marks = job->marks;
    int32_t properties;

    if (marks->plain_size == 0 || job->roll || job->move || marks->timer_id != job->due->id ||
        marks->store_id != job->log->store_id || source->body != source->base + TS_RECORD_AT_BODY)
        return 0;
    if (job->log->needed_only) {
        const uint8_t *id = source->properties + marks->plain_size - TS_ID_PAIR_BYTES;

        if (route->real_size == 0 ||
            !ts_is_same(id - route->real_size, route->real, route->real_size))
            return 0;
        properties = marks->plain_size - route->real_size;
    } else {
        properties = marks->plain_size + ts_delivery_times_of(&job->last->times, job->due->write_ms,
                                                              job->now_ms)->size;
    }
    properties += job->log->property_crc ? TS_PROPERTY_CRC_BYTES : 0;
    if (properties > TS_PROPERTIES_BYTES_MAX)
        return 0;
    return TS_RECORD_FIXED_BYTES + (ts_record_magic(route->topic_size) == TS_RECORD_MAGIC_V2) +
           source->body_size + route->topic_size + properties;
}

/* Read the source, check that it is intact and the expected timer, and find its route. */
static int32_t read_source(ts_view *view, const ts_routes *routes, const ts_log *log,
                           const ts_due *due, ts_record *source, ts_marks *marks, last_job *last,
                           ts_draft *draft)
{
    int32_t fault, status = ts_view_record(view, due->log_offset, source);

    if (status != TS_OK)
        return status;
    fault = ts_record_check(source);
    if (fault != TS_FAULT_NONE)
        return ts_view_fault(view, due->log_offset, fault);
    ts_marks_get_timer(source->properties, source->properties_size, &last->tail, marks);
    /* The entry was loaded from the record's last bytes only. The whole, checked record must
     * confirm it. */
    if (!ts_marks_usable(marks) ||
        ts_marks_id(marks, log->states, log->store_id, source->queue_offset) != due->id ||
        ts_marks_due(marks, log->precision_ms) != due->due_ms)
        return ts_view_fault(view, due->log_offset, TS_FAULT_PROPERTIES);
    draft->real = real_route(routes, marks, last);
    if (draft->real == NULL) {
        view->need = due->log_offset;
        return TS_NEED_ROUTE;
    }
    return TS_OK;
}

/* Plan the append hint of the record, which has the source's tags and keys. */
static void plan_hint(ts_draft *draft, const ts_record *source, const ts_text *key)
{
    ts_names before = {.tags = {NULL, 0}};
    int32_t size = (int32_t)(key->at - source->properties) - 9; /* the text before the key */

    if (key->at == NULL || (source->sys_flag & TS_SYS_TRANSACTION) != 0)
        return;
    if (size > 0)
        ts_names_get(source->properties, size, &before);
    draft->has_hint = before.keys.at == NULL && draft->route->kind == TS_ROUTE_REAL;
    draft->has_tags = before.tags.at != NULL;
    draft->tags = before.tags.at == NULL ? 0 : ts_java_hash(before.tags.at, before.tags.size);
    draft->key_hash = ts_key_hash(ts_key_prefix(draft->route->topic_hash), key->at, key->size);
}

/* Plan one draft. *scratch_at advances by the space that it takes in the scratch buffer. */
static int32_t plan_one(ts_view *view, const ts_routes *routes, const ts_log *log,
                        ts_route *timer_route, int64_t read_slot, const ts_due *due, int64_t now_ms,
                        uint8_t *scratch, int64_t *scratch_at, int64_t scratch_bytes,
                        ts_draft *draft, last_job *last)
{
    ts_record source;
    ts_marks marks;
    int32_t status;
    copy_job job = {log, due, &marks, now_ms, 0, (due->flags & TS_FLAG_MOVE) != 0, last};

    if (due->log_offset < view->begin) {
        memset(draft, 0, sizeof *draft);
        draft->slot = due->slot;
        draft->placed = draft->at = -1;
        draft->flags = TS_FLAG_GONE;
        return TS_OK;
    }
    status = read_source(view, routes, log, due, &source, &marks, last, draft);
    if (status != TS_OK)
        return status;
    job.roll = (due->flags & TS_FLAG_ROLL) != 0 &&
               ts_slot_of(due->due_ms, log->precision_ms) >= read_slot;
    /* Never deliver early: the open slot returns due entries only, but the clock may have been set
     * back since. */
    if (!job.roll && !job.move && due->due_ms > now_ms)
        return TS_INVALID;
    draft->flags = (job.roll ? TS_FLAG_ROLL : 0) | (job.move ? TS_FLAG_MOVE : 0);
    draft->route = job.roll || job.move ? timer_route : draft->real;
    draft->id = due->id;
    draft->slot = due->slot;
    draft->due_ms = due->due_ms;
    draft->write_ms = due->write_ms;
    draft->placed = -1;
    draft->at = -1;
    draft->source = source.base;
    draft->body_size = source.body_size;
    draft->plain_size = marks.plain_size;
    draft->has_hint = 0;
    draft->size = plain_bytes(&source, draft->route, &job);
    if (draft->size > 0) {
        if (log->hints != NULL)
            plan_hint(draft, &source, &marks.last_key);
        return TS_OK;
    }
    if (*scratch_at + source.size + HEADROOM + 256 > scratch_bytes) {
        view->need = source.size + HEADROOM + 256;
        return TS_NEED_SPACE;
    }
    draft->at = *scratch_at;
    draft->size = ts_copy_encode(scratch + *scratch_at, &source, draft->route, log->property_crc,
                                 copy_properties, &job);
    *scratch_at += draft->size;
    return TS_OK;
}

TS_PREFETCHES touch_sources(const ts_view *view, const ts_due *due, int32_t from, int32_t count)
{
    for (int32_t i = from; i < from + TS_TOUCHED && i < count; i++)
        ts_view_touch(view, due[i].log_offset, due[i].size);
}

int32_t ts_deliver_plan(ts_view *view, const ts_routes *routes, const ts_log *log,
                        ts_route *timer_route, int64_t read_slot, const ts_due *due, int32_t count,
                        int64_t now_ms, uint8_t *scratch, int64_t scratch_bytes,
                        ts_draft *drafts)
{
    last_job last = {.route = NULL};
    int64_t scratch_at = 0, read = 0;
    int32_t i, status = TS_OK;

    touch_sources(view, due, 0, count);
    for (i = 0; i < count && i < AHEAD; i++)
        ts_view_prefetch_all(view, due[i].log_offset, due[i].size);
    for (i = 0; i < count && read < READ_BYTES; i++) {
        if (i % TS_TOUCHED == 0)
            touch_sources(view, due, i + TS_TOUCHED, count);
        if (i + AHEAD < count)
            ts_view_prefetch_all(view, due[i + AHEAD].log_offset, due[i + AHEAD].size);
        read += due[i].size;
        status = plan_one(view, routes, log, timer_route, read_slot, &due[i], now_ms, scratch,
                          &scratch_at, scratch_bytes, &drafts[i], &last);
        if (status != TS_OK)
            break;
    }
    return i > 0 ? i : status;
}
