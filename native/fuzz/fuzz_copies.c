/* Copies: due messages are delivered, rolled, moved or rescheduled, whatever the log contains. The
 * results are valid records.
 *
 * Input: numbers, two bytes of log.h, the log.
 */
#include "log.h"

#include "format/level_mark.h"
#include "format/timer_unit.h"
#include "log/encode.h"

enum { COUNT = 12, STAGING = 1 << 16 };

typedef struct {
    fuzz_log log;
    ts_log end;
    uint64_t filled_mark;
    int64_t offsets[COUNT];
    int32_t sizes[COUNT];
    int32_t count;
    int64_t now;
} store;

static void make(store *s, fuzz_input *in)
{
    ts_record record;

    fuzz_log_make(&s->log, in);
    s->count = fuzz_log_fold(&s->log, 1000, s->offsets, COUNT);
    for (int32_t i = 0; i < s->count; i++) {
        CHECK(ts_view_record(&s->log.view, s->offsets[i], &record) == TS_OK);
        s->sizes[i] = record.size;
    }
    s->filled_mark = 0;
    s->end = (ts_log){.staging = malloc(STAGING), .filled_mark = &s->filled_mark,
                      .staging_bytes = STAGING, .segment_bytes = STAGING,
                      .append_limit = STAGING - 16,
                      .precision_ms = 1000, .states = &s->log.states, .store_id = FUZZ_STORE_ID,
                      .timer_route = fuzz_route(&s->log, (const uint8_t *)TS_TIMER_TOPIC, 19, 0),
                      .property_crc = 1};
}

/* Check that every appended record is valid, in its place, with matching CRCs. */
static void check_end(const store *s)
{
    const uint8_t *segment = s->end.staging;
    ts_view view = {.segments = &segment, .segment_count = 1, .segment_bytes = STAGING,
                    .end = s->end.filled};
    ts_record record;

    CHECK(ts_staged_bytes(segment, STAGING, 0, s->filled_mark) == s->end.filled);
    for (int64_t at = 0; at < view.end; at += record.size) {
        CHECK(ts_view_record(&view, at, &record) == TS_OK);
        CHECK(ts_record_check(&record) == TS_FAULT_NONE);
    }
}

static void place(store *s, const uint8_t *scratch, ts_draft *drafts, int32_t count)
{
    int64_t slots[COUNT], counts[COUNT];
    ts_tally tally = {.rolled_due_ms = INT64_MAX, .slots = slots, .counts = counts};
    int32_t got = ts_deliver_place(&s->end, scratch, drafts, 0, count, s->now, &tally);

    CHECK(got >= 0 || got == TS_NEED_SPACE || got == TS_NEED_STATES);
    CHECK(tally.runs <= count);
}

/* Deliver due entries as a slot has them, then as the input changes them. */
static void deliver(store *s, fuzz_input *in)
{
    ts_chained chained[COUNT];
    ts_due due[COUNT];
    ts_draft drafts[COUNT];
    int64_t scratch_bytes = 2048;
    uint8_t *scratch = malloc((size_t)scratch_bytes);
    int32_t got, count, at = 0;
    int64_t id = 0, slot = fuzz_byte(in), read_slot = fuzz_byte(in);

    for (int32_t i = 0; i < s->count; i++)
        chained[i] = (ts_chained){.log_offset = s->offsets[i], .slot = slot, .write_ms = s->now,
                                  .size = s->sizes[i], .magic = fuzz_below(in, 8)};
    if (s->count > 0 && fuzz_below(in, 4) == 0)
        chained[0].size = (int32_t)fuzz_u64(in);
    if (s->count > 1 && fuzz_below(in, 4) == 0)
        chained[1].log_offset = fuzz_number(in);
    (void)ts_chained_find(&s->log.view, chained, s->count, (const uint8_t *)"orders", 6,
                          (const uint8_t *)"k", 1, 1000, &s->log.states, FUZZ_STORE_ID, &at, &id);
    got = ts_due_load(&s->log.view, &s->log.states, FUZZ_STORE_ID, 1000, read_slot, chained,
                      s->count, due);
    count = got > 0 ? (int32_t)s->log.view.need : 0;
    CHECK(count <= COUNT && count >= 0);
    for (int32_t i = 0; i < count; i++)
        due[i].flags |= fuzz_below(in, 4) == 0 ? TS_FLAG_MOVE : 0;
    for (int32_t from = 0, tries = 0; from < count && tries < 64; tries++) {
        got = ts_deliver_plan(&s->log.view, &s->log.known, &s->end, s->end.timer_route, read_slot,
                              due + from, count - from, s->now, scratch, scratch_bytes, drafts);
        if (got == TS_NEED_ROUTE && fuzz_route_needed(&s->log))
            continue;
        if (got == TS_NEED_SPACE && s->log.view.need > scratch_bytes) {
            scratch_bytes = s->log.view.need;
            free(scratch);
            scratch = malloc((size_t)scratch_bytes);
            continue;
        }
        if (got > 0)
            place(s, scratch, drafts, got);
        from += got > 0 ? got : 1; /* skip damaged ones; a store would not */
    }
    free(scratch);
}

static void deliver_levels(store *s)
{
    ts_level_due due[COUNT];
    ts_level_draft drafts[COUNT];
    int64_t scratch_bytes = 16384;
    uint8_t *scratch = malloc((size_t)scratch_bytes);
    ts_record record;

    for (int32_t i = 0; i < s->count; i++) {
        CHECK(ts_view_record(&s->log.view, s->offsets[i], &record) == TS_OK);
        due[i] = (ts_level_due){
            .place = (int64_t)((uint64_t)record.queue_id << TS_LEVEL_OFFSET_BITS) |
                     record.queue_offset,
            .log_offset = s->offsets[i],
            .due_ms = s->now,
            .size = record.size,
        };
    }
    for (int32_t from = 0, tries = 0; from < s->count && tries < 64; tries++) {
        int32_t got = ts_level_encode(&s->log.view, &s->log.known, &s->end, due + from,
                                      s->count - from, s->now, scratch, scratch_bytes, drafts);

        if (got == TS_NEED_ROUTE && fuzz_route_needed(&s->log))
            continue;
        if (got > 0)
            (void)ts_level_place(&s->end, scratch, drafts, 0, got, s->now);
        from += got > 0 ? got : 1;
    }
    free(scratch);
}

static void reschedule(store *s)
{
    static const char text[] = "UNIQ_KEY\0010123\002TIMER_OUT_MS\0015000\002";
    static const char deletion[] = "TAGS\001_RECALL_TAG_\002TIMER_DEL_UNIQKEY\001orders+k\002";
    ts_route *real = fuzz_route(&s->log, (const uint8_t *)"orders", 6, 0);

    for (int32_t i = 0; i < s->count && real != NULL; i++) {
        ts_route *target = i % 2 ? real : s->end.timer_route;
        int32_t size = ts_reschedule_encode(&s->log.view, &s->end, s->offsets[i], target,
                                            (const uint8_t *)text, sizeof text - 1, NULL, 0);
        uint8_t *out;

        if (size != TS_NEED_SPACE)
            continue;
        out = malloc((size_t)s->log.view.need);
        size = ts_reschedule_encode(&s->log.view, &s->end, s->offsets[i], target,
                                    (const uint8_t *)text, sizeof text - 1, out,
                                    (int32_t)s->log.view.need);
        CHECK(size > 0);
        (void)ts_reschedule(&s->end, real, i, (const uint8_t *)deletion, sizeof deletion - 1,
                            target, out, size, s->now);
        free(out);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in = {data, size}, choices;
    uint8_t chosen[32];
    store s;

    for (size_t i = 0; i < sizeof chosen; i++)
        chosen[i] = fuzz_byte(&in);
    choices = (fuzz_input){chosen, sizeof chosen};
    s.now = fuzz_number(&choices);
    make(&s, &in);
    if (s.end.timer_route != NULL) {
        deliver(&s, &choices);
        deliver_levels(&s);
        reschedule(&s);
        check_end(&s);
    }
    free(s.end.staging);
    fuzz_log_free(&s.log);
    return 0;
}
