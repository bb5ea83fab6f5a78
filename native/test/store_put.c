/* Putting, cancelling and rescheduling in a store. */
#include "store.h"

#include "format/queue_unit.h"
#include "format/staging_mark.h"
#include "format/wheel_slot.h"
#include "log/parse.h"
#include "timer/unit_checksum.h"

/* Write a body that contains its due time and its route. */
static int32_t body_put(uint8_t *out, int64_t due_ms, int32_t index, int32_t size)
{
    memset(out, 'b', (size_t)size);
    ts_put_i64(out, due_ms);
    ts_put_i32(out + 8, index);
    return size;
}

static void remember(store *s, int64_t id, int64_t due_ms, int32_t index, int64_t log_offset)
{
    CHECK(id >= 0 && id < IDS_MAX && s->due_ms[id] == 0);
    CHECK(ts_state_get(&s->states, id) == TS_PENDING);
    s->due_ms[id] = due_ms;
    s->real[id] = index;
    s->source_at[id] = log_offset;
}

/* Put the rows in groups, as many in each as fit a limit. Some groups have a head. */
static void put_group(store *s, uint64_t *seed, int32_t index, const ts_column_batch *rows,
                      int64_t *log_offsets, int64_t *queue_offsets)
{
    ts_route *route = &s->routes[index];
    uint8_t head[12];

    body_put(head, s->now_ms, index, 12);
    for (int32_t at = 0; at < rows->count;) {
        int32_t timers, status, with_head = check_below(seed, 2), size = (int32_t)sizeof head;
        int64_t bytes, start;
        uint64_t before;
        int32_t got = ts_batch_measure(&s->log, route, rows, at, 1 + check_below(seed, 20), 4000,
                                       s->now_ms, &bytes, &timers);

        CHECK(got > 0 && timers >= 0 && timers <= got && bytes > 0 && bytes <= 4000);
        for (;;) {
            before = s->filled_mark;
            start = log_end(s);
            status = ts_put_group(&s->log, route, with_head ? head : NULL, with_head ? size : 0,
                                  route, rows, at, got, bytes, timers, s->now_ms, log_offsets,
                                  queue_offsets);
            if (status == TS_OK)
                break;
            CHECK(s->filled_mark == before && log_end(s) == start);
            serve_log(s, status);
        }
        if (with_head)
            bytes += ts_group_head_bytes(&s->log, route, size);
        CHECK(log_end(s) == start + bytes && s->log.out[1] == log_end(s));
        CHECK(ts_mark_filled(s->filled_mark) == s->log.filled && (s->log.out[0] >= 0) == with_head);
        if (with_head)
            s->heads[index]++;
        at += got;
    }
}

void put_many(store *s, uint64_t *seed, int32_t index, int32_t count, int32_t ahead_ms)
{
    static const char pair[] = "KEYS\001k\002";
    uint8_t bodies[BATCH * 64], extra[BATCH * 8];
    int64_t body_at[BATCH + 1] = {0}, extra_at[BATCH + 1] = {0}, due[BATCH];
    int64_t log_offsets[BATCH], queue_offsets[BATCH];
    ts_column_batch rows;

    for (int32_t i = 0; i < count; i++) {
        due[i] = s->now_ms + check_below(seed, ahead_ms) - ahead_ms / 10;
        body_at[i + 1] = body_at[i] + body_put(bodies + body_at[i], due[i], index, 12 + i % 50);
        extra_at[i + 1] = extra_at[i] + (i % 3 ? 0 : 7);
        memcpy(extra + extra_at[i], pair, (size_t)(extra_at[i + 1] - extra_at[i]));
    }
    rows = (ts_column_batch){.bodies = bodies, .body_offsets = body_at, .due_ms = due,
                     .properties = (const uint8_t *)TAGGED, .properties_size = sizeof TAGGED - 1,
                     .extra = extra, .extra_offsets = extra_at, .first_unique = s->unique,
                     .count = count};
    if (check_below(seed, 2))
        put_group(s, seed, index, &rows, log_offsets, queue_offsets);
    else
        for (int32_t i = 0, status; i < count;) {
            int64_t need;

            i += ts_put_many_locking(&s->log, &s->routes[index], &rows, i, count,
                                     1 + check_below(seed, 5), s->now_ms, log_offsets,
                                     queue_offsets, &status, &need);
            CHECK((status == TS_OK) == (i == count));
            if (status != TS_OK) {
                CHECK(need == s->log.need);
                serve_log(s, status);
            }
        }
    s->unique += count;
    for (int32_t i = 0; i < count; i++) {
        if (due[i] > s->now_ms)
            remember(s, queue_offsets[i], due[i], index, log_offsets[i]);
    }
}

void put_one(store *s, int32_t index, int64_t due_ms)
{
    uint8_t body[12];
    int64_t at;

    body_put(body, due_ms, index, 12);
    while ((at = ts_put_one(&s->log, &s->routes[index], body, 12, due_ms, NULL, 0, s->now_ms)) < 0)
        serve_log(s, at);
    if (due_ms > s->now_ms)
        remember(s, s->log.out[0], due_ms, index, at);
}

int32_t delete_text(const store *s, int64_t id, char *text)
{
    const ts_route *real = &s->routes[s->real[id]];

    return sprintf(text,
                   "TAGS\001_RECALL_TAG_\002UNIQ_KEY\001k\002TIMER_DELIVER_MS\001%lld\002"
                   "TIMER_OUT_MS\001%lld\002%.*sTIMER_DEL_UNIQKEY\001t+k\002",
                   (long long)s->now_ms, (long long)s->now_ms, real->real_size,
                   (const char *)real->real);
}

void cancel(store *s, int64_t id)
{
    char text[512];
    int32_t before = ts_state_get(&s->states, id), size = delete_text(s, id, text), got;

    while ((got = ts_cancel(&s->log, &s->routes[s->real[id]], id, (uint8_t *)text, size,
                            s->now_ms)) == TS_NEED_SPACE)
        give_space(s);
    CHECK(got == before && s->log.out[1] == log_end(s));
    if (before != TS_PENDING)
        return;
    CHECK(ts_state_get(&s->states, id) == TS_CANCELLED);
    s->cancelled[id] = 1;
}

/* Encode the record of a message for another due time, or for now if that has passed. Its body says
 * so. Return its size. */
static int32_t encode_moved(store *s, int64_t id, int64_t due_ms, uint8_t *out, int32_t out_bytes)
{
    char text[512];
    ts_route *real = &s->routes[s->real[id]];
    ts_route *target = due_ms > s->now_ms ? &s->routes[TIMER] : real;
    int32_t got, size = sprintf(text, "UNIQ_KEY\0010123456789ABCDEF0123456789ABCDEF\002");

    if (due_ms > s->now_ms)
        size += sprintf(text + size, "TIMER_DELIVER_MS\001%lld\002TIMER_OUT_MS\001%lld\002%.*s",
                        (long long)due_ms,
                        (long long)((due_ms - 1) / s->is.precision_ms * s->is.precision_ms),
                        real->real_size, (const char *)real->real);
    s->view.end = log_end(s);
    got = ts_reschedule_encode(&s->view, &s->log, s->source_at[id], target, (uint8_t *)text, size,
                               out, out_bytes);
    CHECK(got > 0);
    CHECK(ts_reschedule_encode(&s->view, &s->log, s->source_at[id], target, (uint8_t *)text, size,
                               out, got - 1) == TS_NEED_SPACE && s->view.need == got);
    ts_put_i64(out + TS_RECORD_AT_BODY, due_ms);
    ts_put_i32(out + TS_RECORD_AT_BODY_CRC,
               (int32_t)(ts_crc32(0, out + TS_RECORD_AT_BODY,
                                  ts_get_i32(out + TS_RECORD_AT_BODY_SIZE)) & 0x7FFFFFFFu));
    return got;
}

void reschedule(store *s, int64_t id, int64_t due_ms)
{
    char text[512];
    ts_route *real = &s->routes[s->real[id]];
    ts_route *target = due_ms > s->now_ms ? &s->routes[TIMER] : real;
    uint8_t record[1024];
    int32_t before = ts_state_get(&s->states, id), deletion = delete_text(s, id, text), got;
    int32_t size = encode_moved(s, id, due_ms, record, sizeof record);
    int64_t number = target->next_offset + (target == s->log.timer_route);
    uint64_t mark;

    do {
        mark = s->filled_mark;
        got = ts_reschedule(&s->log, real, id, (uint8_t *)text, deletion, target, record, size,
                            s->now_ms);
        CHECK(got >= 0 || s->filled_mark == mark); /* both or neither */
        if (got < 0)
            serve_log(s, got);
    } while (got < 0);
    CHECK(got == before && s->log.out[1] == log_end(s));
    if (before != TS_PENDING) {
        CHECK(s->filled_mark == mark);
        return;
    }
    CHECK(ts_state_get(&s->states, id) == TS_CANCELLED && s->log.out[0] == number);
    s->cancelled[id] = 1;
    if (target == s->log.timer_route)
        remember(s, number, due_ms, s->real[id], log_end(s) - size);
}
