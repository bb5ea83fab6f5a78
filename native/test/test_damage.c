/* Readers of a damaged store: no read outside of a buffer, and a valid result or a status. */
#include "store.h"

#include "base/hash.h"
#include "format/queue_unit.h"
#include "format/wheel_slot.h"
#include "log/view.h"
#include "timer/unit_checksum.h"

/* The bytes of a store in buffers of their own, to be damaged, with a copy of the originals. */
typedef struct {
    uint8_t *log, *timer_log, *slots, *dirty, *queues[ROUTES];
    int64_t log_bytes, timer_bytes, slot_count;
    int32_t counts[ROUTES];
    const uint8_t *log_at[1], *timer_at[1];
    ts_view view, timer_view;
    ts_wheel wheel;
} broken;

static void damage(uint8_t *at, int64_t size, uint64_t *seed)
{
    static const int64_t numbers[] = {INT64_MAX, INT64_MIN, -1, 0, 1, INT64_MAX - 60, INT32_MAX,
                                      (int64_t)1 << 40};

    for (int32_t n = 1 + check_below(seed, 3); n > 0 && size > 8; n--) {
        int64_t i = check_below(seed, (int32_t)size - 8);

        switch (check_below(seed, 6)) {
        case 0:
        case 1:
            at[i] ^= (uint8_t)(1 << check_below(seed, 8));
            break;
        case 2:
            at[i] = (uint8_t)check_below(seed, 256);
            break;
        case 3:
            ts_put_i64(at + i, numbers[check_below(seed, 8)]);
            break;
        case 4:
            ts_put_i32(at + i, (int32_t)numbers[check_below(seed, 8)]);
            break;
        default:
            memmove(at + i, at + check_below(seed, (int32_t)size - 8), 8);
        }
    }
}

/* Damage several fields of a unit or slot at once, to reach the arithmetic on them. */
static void damage_field(uint8_t *at, int64_t count, int32_t bytes, int32_t field, uint64_t *seed)
{
    static const int64_t numbers[] = {INT64_MAX, INT64_MIN, INT64_MAX - 1000, -1, 52, 0};

    if (count > 0 && check_below(seed, 8) == 0)
        ts_put_i64(at + check_below(seed, (int32_t)count) * bytes + field, numbers[check_below(seed,
                                                                                               6)]);
}

static void open_broken(broken *b, const store *s, uint64_t *seed)
{
    int32_t what = check_below(seed, 8);

    b->log_bytes = log_end(s);
    b->timer_bytes = s->timer_end;
    b->slot_count = s->wheel.slot_count;
    if (what == 0)
        b->log_bytes = check_below(seed, (int32_t)b->log_bytes);
    if (what == 1)
        b->timer_bytes = check_below(seed, (int32_t)b->timer_bytes);
    b->log = check_copy(s->segments[0], (size_t)b->log_bytes);
    b->timer_log = check_copy(s->timer_segments[0], (size_t)b->timer_bytes);
    b->slots = check_copy(s->wheel.slots, (size_t)b->slot_count * TS_SLOT_BYTES);
    b->dirty = bytes_of((b->slot_count * TS_SLOT_BYTES + 4095) / 4096);
    for (int32_t i = 0; i < ROUTES; i++) {
        b->counts[i] = s->counts[i];
        b->queues[i] = check_copy(s->queues[i], (size_t)b->counts[i] * 20);
        if (what == 2 || check_below(seed, 12) == 0)
            damage(b->queues[i], b->counts[i] * 20, seed);
        damage_field(b->queues[i], b->counts[i], 20, TS_QUEUE_AT_LOG_OFFSET, seed);
    }
    if (what >= 3)
        damage(b->log, b->log_bytes, seed);
    if (what == 3 || what == 4)
        damage(b->timer_log, b->timer_bytes, seed);
    if (what == 5)
        damage(b->slots, b->slot_count * TS_SLOT_BYTES, seed);
    damage_field(b->timer_log, b->timer_bytes / 52, 52, TS_TIMER_AT_WRITE_MS, seed);
    damage_field(b->timer_log, b->timer_bytes / 52, 52, TS_TIMER_AT_PREV_POS, seed);
    damage_field(b->slots, b->slot_count, TS_SLOT_BYTES, TS_SLOT_AT_LAST_POS, seed);
    b->log_at[0] = b->log;
    b->timer_at[0] = b->timer_log;
    b->view = s->view;
    b->view.segments = b->log_at;
    b->view.segment_count = 1;
    b->view.end = b->log_bytes;
    b->timer_view = s->timer_view;
    b->timer_view.segments = b->timer_at;
    b->timer_view.segment_count = 1;
    b->timer_view.end = b->timer_bytes;
    b->wheel = (ts_wheel){.slots = b->slots,
                          .dirty_pages = b->dirty,
                          .slot_count = b->slot_count,
                          .precision_ms = s->wheel.precision_ms};
}

static void close_broken(broken *b)
{
    free(b->log);
    free(b->timer_log);
    free(b->slots);
    free(b->dirty);
    for (int32_t i = 0; i < ROUTES; i++)
        free(b->queues[i]);
}

static int is_status(int64_t got)
{
    return got >= 0 || got == TS_CORRUPT || got == TS_INVALID || got == TS_BLOCKED ||
           (got <= TS_NEED_SEGMENT && got >= TS_NEED_STATES);
}

/* The results of the readers of a damaged store. */
typedef struct {
    store *s;
    broken b;
    ts_states states; /* a copy */
    int32_t due_count;
    ts_due due[256];
} reading;

static void read_log(reading *r)
{
    static const int64_t levels[2] = {1000, 5000};
    broken *b = &r->b;
    ts_route counted[ROUTES] = {0}, *folded[ROUTES];
    uint8_t *units = bytes_of(256 * 20);
    int32_t indexes[256], got, numbers[4];
    int64_t offsets[256], next = -1, topic_at, properties_at, need;
    ts_scanned *scanned = bytes_of(256 * (int64_t)sizeof *scanned);

    got = ts_dispatch(&b->view, &r->s->known, levels, 2, 0, &next, 256, units, indexes, offsets,
                      NULL, NULL, NULL);
    CHECK(is_status(got) && next >= 0 && next <= b->log_bytes + r->s->is.segment_bytes);
    got = ts_scan(&b->view, &r->s->known, r->s->is.precision_ms, 0, &next, 256, scanned);
    CHECK(is_status(got));
    for (int32_t i = 0; i < ROUTES; i++)
        folded[i] = &counted[i];
    if (got > 0)
        CHECK(ts_states_fold(&r->states, folded, scanned, got, STORE_ID, &need) <= got);
    for (int32_t i = 0; i < r->s->counts[TIMER]; i++) {
        int64_t at = ts_get_i64(b->queues[TIMER] + 20 * i);

        CHECK(is_status(ts_record_at(&b->view, at, &topic_at, &numbers[0], &properties_at,
                                     &numbers[1], &numbers[2], &numbers[3])));
    }
    free(units);
    free(scanned);
}

static void read_queues(reading *r)
{
    broken *b = &r->b;
    int64_t room = 16384;
    uint8_t *bodies = bytes_of(room), *properties = bytes_of(room);
    ts_pulled *pulled = bytes_of(256 * (int64_t)sizeof *pulled);

    for (int32_t i = 0; i < ROUTES; i++) {
        int64_t low = ts_units_below(b->queues[i], b->counts[i], b->log_bytes);

        CHECK(low >= 0 && low <= b->counts[i]);
        for (int32_t at = 0; at < b->counts[i]; at += 3) {
            int32_t got = ts_pull(&b->view, &r->s->routes[i], b->queues[i] + 20 * at, NULL,
                                  b->counts[i] - at, at, b->log_bytes, 1000, pulled, bodies, room,
                                  properties, room);
            CHECK(is_status(got) && got <= b->counts[i] - at);
        }
    }
    free(bodies);
    free(properties);
    free(pulled);
}

/* Read slots in every way, and make due entries of what they hold. */
static void read_wheel(reading *r)
{
    broken *b = &r->b;
    int64_t base = r->s->is.start_ms / r->s->is.precision_ms, pos, next = 0;
    int64_t slots[64], positions[64], held[3];
    ts_chained *chained = bytes_of(256 * (int64_t)sizeof *chained);
    ts_patch *patches = bytes_of(64 * (int64_t)sizeof *patches);
    int64_t living[3] = {0, 700, 1400};
    uint8_t is_kept[3] = {0};
    int32_t got, count = 0;

    for (int32_t i = 0; i < 64; i++) {
        ts_slot slot;

        ts_slot_get(b->slots + (base + i) % b->slot_count * TS_SLOT_BYTES, &slot);
        slots[i] = base + i;
        if (slot.time > base - 100 && slot.time < base + 200)
            slots[i] = slot.time;
        positions[i] = -2;
        pos = -1;
        got = ts_wheel_load(&b->timer_view, &b->wheel, slots[i], &pos, 16, chained);
        CHECK(is_status(got) && got <= 16);
    }
    got = ts_wheel_load_many(&b->timer_view, &b->wheel, slots, positions, 64, 256, chained);
    CHECK(is_status(got) && got <= 256);
    count = got > 0 ? got : 0;
    r->due_count = 0;
    for (int32_t at = 0; at < count; at += got > 0 ? got : 1) { /* skip an invalid one */
        got = ts_due_load(&b->view, &r->states, STORE_ID, r->s->is.precision_ms, base + 30,
                          chained + at, count - at, r->due + r->due_count);
        CHECK(is_status(got));
        r->due_count += got > 0 ? (int32_t)b->view.need : 0;
    }
    CHECK(is_status(ts_timer_log_unchained(&b->timer_view, &b->wheel, 0, &next, base, NULL, 0,
                                           patches, 64)));
    CHECK(is_status(ts_timer_log_unchained(&b->timer_view, &b->wheel, 0, &next, base, living, 3,
                                           patches, 64)));
    for (int32_t i = 0; i < 64; i += 7)
        CHECK(is_status(ts_wheel_recount(&b->timer_view, &b->wheel, slots[i],
                                         &(ts_chain_walk){0})) &&
              is_status(ts_wheel_chain_positions(&b->timer_view, &b->wheel, slots[i], 0, held, 3,
                                                 &(ts_chain_walk){0})) &&
              is_status(ts_wheel_compact_chain(&b->timer_view, &b->wheel, slots[i], base, living,
                                               is_kept, 3, patches, 64,
                                               &(ts_chain_walk){0})));
    CHECK(is_status(ts_wheel_cut(&b->timer_view, &b->wheel, b->timer_bytes / 2)));
    free(chained);
    free(patches);
}

static void read_timers(reading *r)
{
    broken *b = &r->b;
    int64_t now = r->s->is.start_ms / r->s->is.precision_ms + 10;
    ts_request *requests = bytes_of(256 * (int64_t)sizeof *requests);
    uint8_t *units = bytes_of(257 * TS_TIMER_UNIT_BYTES);
    ts_due *late = bytes_of(256 * (int64_t)sizeof *late);
    int32_t got;

    for (int32_t at = 0; at < b->counts[TIMER]; at += got > 0 ? got : 1) {
        ts_link link = {.pos = 52 * 9, .segment_bytes = r->s->is.timer_segment_bytes,
                        .write_slot = now, .read_slot = now + 1, .reuse_below = now - 30,
                        .roll_slots = ROLL_SLOTS};

        got = ts_timer_requests(&b->view, b->queues[TIMER] + 20 * at, b->counts[TIMER] - at, at,
                                &r->states, STORE_ID, r->s->is.precision_ms, requests);
        CHECK(is_status(got) && got <= b->counts[TIMER] - at);
        if (got > 0)
            CHECK(is_status(ts_timer_link(&b->wheel, &link, &r->states, requests, got, units,
                                          257 * TS_TIMER_UNIT_BYTES, late)));
    }
    free(requests);
    free(units);
    free(late);
}

/* Deliver due entries of damaged units into a log of their own. */
static void read_sources(reading *r, uint64_t *seed)
{
    int64_t base = r->s->is.start_ms / r->s->is.precision_ms, scratch_bytes = 4096;
    uint64_t mark = 0;
    uint8_t *scratch = bytes_of(scratch_bytes), *staging = bytes_of(16384);
    int64_t slots[256], counts[256];
    ts_draft *drafts = bytes_of(256 * (int64_t)sizeof *drafts);
    ts_log log = r->s->log;
    const ts_route *targets[2] = {&r->s->routes[TIMER], r->s->routes};
    int32_t got;

    log.staging = staging;
    log.filled_mark = &mark;
    log.base = log.filled = 0;
    log.staging_bytes = log.append_limit = 16384;
    log.states = &r->states;
    for (int32_t i = 0; i < r->due_count; i++)
        r->due[i].flags = check_below(seed, 4) ? r->due[i].flags : TS_FLAG_ROLL;
    for (int32_t at = 0; at < r->due_count; at += got > 0 ? got : 1) {
        got = ts_deliver_plan(&r->b.view, &r->s->known, &log, &r->s->routes[TIMER], base + 3,
                                r->due + at, r->due_count - at, r->s->now_ms, scratch,
                                scratch_bytes, drafts);
        CHECK(is_status(got) && got <= r->due_count - at);
        if (got > 0)
            CHECK(is_status(ts_deliver_place(&log, scratch, drafts, 0, got, r->s->now_ms,
                                             &(ts_tally){.slots = slots, .counts = counts})));
    }
    for (int32_t i = 0; i < r->due_count; i++)
        CHECK(is_status(ts_reschedule_encode(&r->b.view, &log, r->due[i].log_offset,
                                             targets[i % 2], (const uint8_t *)TAGGED,
                                             sizeof TAGGED - 1, scratch, (int32_t)scratch_bytes)));
    for (int32_t at = 0; at < r->due_count; at++) {
        ts_chained one = {.log_offset = r->due[at].log_offset};
        int64_t id;
        int32_t first = 0;

        CHECK(is_status(ts_chained_find(&r->b.view, &one, 1, r->s->routes[0].topic, 6,
                                        (const uint8_t *)"k", 1, r->due[at].due_ms, &r->states,
                                        STORE_ID, &first, &id)));
    }
    CHECK(log.filled <= 16384);
    free(scratch);
    free(staging);
    free(drafts);
}

/* Make a small store: one segment of log and timer log, with some messages in the level topic. */
static store *make_small(int32_t property_crc)
{
    const shape is = {1000, 1 << 16, 1 << 14, 64, 1700000000000, property_crc};
    store *s = make_store(&is);
    uint64_t seed = 77;
    static const char level[] = "DELAY\0012\002REAL_TOPIC\001orders\002REAL_QID\0010\002";
    uint8_t body[4] = "body";

    for (int32_t i = 0; i < 4; i++) {
        put_many(s, &seed, i % REAL, 3, 15000);
        put_one(s, i % REAL, s->now_ms + 20000 * i);
        CHECK(ts_put_one(&s->log, &s->routes[LEVELS], body, 4, 0, (const uint8_t *)level,
                         sizeof level - 1, s->now_ms) >= 0);
    }
    for (int64_t id = 2; id < 5; id += 2)
        cancel(s, id);
    reschedule(s, 5, s->now_ms + 30000);
    reschedule(s, 1, s->now_ms);
    dispatch(s);
    enqueue(s, 64);
    for (int32_t i = 0; i < 8; i++) {
        step(s, &seed);
        s->now_ms += 500;
    }
    dispatch(s);
    enqueue(s, 64);
    for (int32_t i = 0; i < REAL; i++) {
        if (ts_route_find(&s->known, s->routes[i].topic, s->routes[i].topic_size,
                          s->routes[i].queue_id) == NULL)
            know_route(s, i);
    }
    CHECK(log_end(s) < is.segment_bytes && s->timer_end < is.timer_segment_bytes);
    CHECK(s->states.pending > 4);
    return s;
}

static void test_damage(int32_t property_crc, int32_t rounds, uint64_t seed)
{
    store *s = make_small(property_crc);
    uint8_t *block = bytes_of(BLOCK_BYTES);
    reading *r = bytes_of(sizeof *r);
    int64_t pending[ROUTES], offsets[ROUTES], delivered = 0;

    for (int32_t i = 0; i < ROUTES; i++) {
        pending[i] = s->routes[i].pending;
        offsets[i] = s->routes[i].next_offset;
    }
    for (int32_t round = 0; round < rounds; round++) {
        memcpy(block, s->blocks[0], 256);
        r->s = s;
        r->states = (ts_states){&block, TS_BLOCK_IDS, s->states.pending};
        open_broken(&r->b, s, &seed);
        read_log(r);
        memcpy(block, s->blocks[0], 256);
        read_queues(r);
        read_timers(r);
        close_broken(&r->b);
        open_broken(&r->b, s, &seed); /* linking has changed the wheel; the readers get another
                                       * copy */
        read_wheel(r);
        read_sources(r, &seed);
        close_broken(&r->b);
        for (int32_t i = 0; i < ROUTES; i++) {
            delivered += s->routes[i].next_offset - offsets[i];
            s->routes[i].pending = pending[i];
            s->routes[i].next_offset = offsets[i];
        }
    }
    CHECK(delivered > rounds); /* the intact ones were delivered */
    free(r);
    free(block);
    free_store(s);
}

int main(void)
{
    test_damage(1, 10000, 5);
    test_damage(0, 10000, 6);
    puts("test_damage: ok");
    return 0;
}
