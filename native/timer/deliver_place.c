/* Delivery, second part: place the planned records at the log's end, and deliver many messages.
 *
 * Placing runs under the append lock. It checks the id's state, gives the record its place and
 * changes the state, in this order and in one critical section. So an id is delivered at most once,
 * whatever runs concurrently.
 */
#include "log/append_hints.h"
#include "log/critical_section.h"
#include "log/message_copy.h"
#include "log/view.h"
#include "timer/calendar.h"
#include "timer/delivery_times.h"
#include "timer/states.h"

enum {
    AHEAD = 10,
    CRC_DELAY_BYTES = 4096 /* about ten records */
};

/* Build the record from its source: head and body unchanged, then the real topic, the properties
 * without the CRC pair, and the times. With `needed_only` there are no times, and the source's real
 * topic and queue, which precede its timer id, are left out. */
static void build_plain(uint8_t *out, const ts_draft *draft, const ts_delivery_times *times,
                        const ts_log *log)
{
    int32_t left_out = log->needed_only ? draft->route->real_size : 0;
    int32_t before_id = draft->plain_size - left_out - TS_ID_PAIR_BYTES;
    int32_t property_crc = log->property_crc;
    const ts_route *route = draft->route;
    int32_t topic_bytes = ts_get_i32(draft->source + TS_RECORD_AT_MAGIC) == TS_RECORD_MAGIC_V2
                              ? 2 + ts_get_i16(draft->source + TS_RECORD_AT_BODY + draft->body_size)
                              : 1 + draft->source[TS_RECORD_AT_BODY + draft->body_size];
    const uint8_t *properties =
        draft->source + TS_RECORD_AT_BODY + draft->body_size + topic_bytes + 2;
    ts_record head = {
        .magic = ts_record_magic(route->topic_size),
        .topic = route->topic,
        .topic_size = route->topic_size,
        .properties_size = draft->plain_size - left_out + times->size +
                           (property_crc ? TS_PROPERTY_CRC_BYTES : 0),
    };

    uint8_t *next = ts_copy(out, draft->source, TS_RECORD_AT_BODY + draft->body_size);

    ts_put_i32(out + TS_RECORD_AT_SIZE, draft->size);
    ts_put_i32(out + TS_RECORD_AT_MAGIC, head.magic);
    ts_put_i32(out + TS_RECORD_AT_QUEUE_ID, route->queue_id);
    ts_put_i64(out + TS_RECORD_AT_PREPARED, 0);
    next = ts_topic_put(next, &head);
    next = ts_copy(next, properties, before_id);
    next = ts_copy(next, properties + draft->plain_size - TS_ID_PAIR_BYTES, TS_ID_PAIR_BYTES);
    next = ts_copy(next, times->text, times->size);
    if (property_crc)
        ts_property_crc_put(next, 0); /* set when the record is complete */
}

static void add_hint(const ts_log *log, const ts_draft *draft, int64_t now_ms)
{
    ts_append_hint *hint = ts_hint_next(log);

    if (hint == NULL)
        return;
    *hint = (ts_append_hint){
        .log_offset = draft->placed, .queue_offset = draft->route->next_offset - 1,
        .store_ms = now_ms, .route = draft->route, .size = draft->size, .tags = draft->tags,
        .has_tags = draft->has_tags, .key_hash = draft->key_hash,
    };
    ts_hint_added(log);
}

static void count_slot(ts_tally *tally, int64_t slot)
{
    if (tally->runs == 0 || tally->slots[tally->runs - 1] != slot) {
        tally->slots[tally->runs] = slot;
        tally->counts[tally->runs++] = 0;
    }
    tally->counts[tally->runs - 1]++;
}

static void count_one(ts_log *log, const ts_draft *draft, ts_tally *tally)
{
    count_slot(tally, draft->slot);
    if (draft->flags & TS_FLAG_ROLL) {
        tally->rolled++;
        if (draft->due_ms < tally->rolled_due_ms)
            tally->rolled_due_ms = draft->due_ms;
        return;
    }
    ts_states_put(log->states, draft->id, TS_DELIVERED);
    log->states->pending--;
    draft->real->pending--;
    if (log->calendar != NULL)
        ts_calendar_take(log->calendar, draft->real, draft->id, draft->due_ms);
    tally->delivered++;
}

TS_PREFETCHES prefetch_draft(const ts_log *log, const ts_draft *draft)
{
    ts_state_prefetch(log->states, draft->id);
    if (draft->at < 0) {
        for (int32_t line = 0; line < draft->size && line < 512; line += 64)
            __builtin_prefetch(draft->source + line);
    }
}

/* Fill in the place of a record that rolled or was moved. It is in the last pair before the CRC. */
static void put_own_place(const ts_log *log, uint8_t *record, int32_t size)
{
    uint8_t *end = record + size;

    if (ts_property_crc_get(end - TS_PROPERTY_CRC_BYTES, &(uint32_t){0}))
        end -= TS_PROPERTY_CRC_BYTES;
    ts_copy_own_place(end - TS_PLACE_PAIR_BYTES, log->store_id, log->timer_route->next_offset);
}

/* Set the CRCs of the records that lie at least `behind` bytes before the log's end. They are not
 * set at once, because a read of recent stores waits until all of them have left the processor's
 * store buffer. */
static int32_t set_crcs(ts_log *log, const uint8_t *scratch, const ts_draft *drafts,
                        int32_t at, int32_t end, int64_t behind)
{
    for (; at < end; at++) {
        const ts_draft *draft = &drafts[at];

        if (draft->placed < 0)
            continue;
        if (log->base + log->filled - draft->placed < behind + draft->size)
            break;
        ts_copy_close(log, draft->placed, draft->size,
                      draft->at < 0 ? log->property_crc
                                    : ts_copy_has_crc(scratch + draft->at, draft->size));
    }
    return at;
}

int32_t ts_deliver_place(ts_log *log, const uint8_t *scratch, ts_draft *drafts, int32_t from,
                         int32_t count, int64_t now_ms, ts_tally *tally)
{
    static const ts_delivery_times none = {.size = 0};
    ts_delivery_times times = none;
    int32_t i, crcs_set = from, status = TS_OK;

    for (i = from; i < count && i < from + AHEAD; i++)
        prefetch_draft(log, &drafts[i]);
    for (i = from; i < count; i++) {
        ts_draft *draft = &drafts[i];
        uint8_t *out;

        if (i + AHEAD < count)
            prefetch_draft(log, &drafts[i + AHEAD]);
        draft->placed = -1;
        if (draft->flags & TS_FLAG_GONE) {
            tally->gone++;
            count_slot(tally, draft->slot);
            continue;
        }
        if (draft->size == 0) {
            tally->unroutable++;
            continue;
        }
        if (ts_state_get(log->states, draft->id) != TS_PENDING) {
            tally->skipped++;
            if (!(draft->flags & TS_FLAG_MOVE))
                count_slot(tally, draft->slot);
            continue;
        }
        status = ts_log_has_space(log, draft->size);
        if (status != TS_OK)
            break;
        if (draft->route == log->timer_route && draft->route->next_offset >= log->states->end) {
            log->need = draft->route->next_offset;
            status = TS_NEED_STATES;
            break;
        }
        out = log->staging + log->filled;
        if (draft->at < 0)
            build_plain(out, draft,
                        log->needed_only
                            ? &none : ts_delivery_times_of(&times, draft->write_ms, now_ms),
                        log);
        else
            ts_copy(out, scratch + draft->at, draft->size);
        if (draft->route == log->timer_route)
            put_own_place(log, out, draft->size);
        draft->placed = ts_copy_place(log, draft->route, draft->size, now_ms);
        if (draft->has_hint)
            add_hint(log, draft, now_ms);
        crcs_set = set_crcs(log, scratch, drafts, crcs_set, i, CRC_DELAY_BYTES);
        if (draft->flags & TS_FLAG_MOVE)
            tally->moved++;
        else
            count_one(log, draft, tally);
    }
    (void)set_crcs(log, scratch, drafts, crcs_set, i, 0);
    ts_log_publish(log);
    return i > from ? i - from : status;
}

static void record_delays(ts_delivery *delivery)
{
    for (int32_t i = delivery->first; i < delivery->placed; i++) {
        const ts_draft *draft = &delivery->drafts[i];

        if (draft->placed >= 0 && (draft->flags & (TS_FLAG_ROLL | TS_FLAG_MOVE)) == 0)
            delivery->late_ms[delivery->late_count++] = delivery->now_ms - draft->due_ms;
    }
}

/* Place the planned records. Return their number, or a status. */
static int32_t place_planned(ts_log *log, ts_delivery *delivery, ts_tally *tally)
{
    int32_t got = ts_log_lock(log);

    if (got == TS_OK) {
        got = ts_deliver_place(log, delivery->scratch, delivery->drafts, delivery->placed,
                               delivery->planned, delivery->now_ms, tally);
        delivery->need = log->need;
        ts_log_unlock(log);
    }
    if (got < 0) {
        delivery->is_placing = 1;
        return got;
    }
    delivery->first = delivery->placed;
    delivery->placed += got;
    record_delays(delivery);
    return got;
}

int32_t ts_deliver_many(ts_view *view, const ts_routes *routes, ts_log *log, ts_route *timer_route,
                        int64_t read_slot, const ts_due *due, int32_t count, int64_t now_ms,
                        ts_delivery *delivery, ts_tally *tally)
{
    int32_t done = 0, got;

    delivery->is_placing = 0;
    while (done < count) {
        int64_t unroutable = tally->unroutable;

        if (delivery->placed == delivery->planned) {
            int32_t left = count - done;

            got = ts_deliver_plan(view, routes, log, timer_route, read_slot, due + done,
                                  left < delivery->draft_count ? left : delivery->draft_count,
                                  now_ms, delivery->scratch, delivery->scratch_bytes,
                                  delivery->drafts);
            if (got <= 0)
                return done > 0 ? done : got;
            delivery->placed = 0;
            delivery->planned = got;
            delivery->now_ms = now_ms;
        }
        got = place_planned(log, delivery, tally);
        if (got < 0)
            return done > 0 ? done : got;
        done += got;
        if (tally->unroutable > unroutable)
            break;
    }
    return done;
}
