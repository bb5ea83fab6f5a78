/* The C as the engine's threads call it, all at once, under ThreadSanitizer: each call under the locks
 * that api.h and the rooms name for it, and under no other.
 *
 *   putters          append lock: put_many, put_one, cancel, reschedule (which is encoded under none)
 *   dispatch         write lock and append lock: swap of the staging; no lock: dispatch
 *   enqueue          no lock: requests; timer lock: link
 *   dequeue-get      timer lock: next slot, load; no lock: due entries; open slot's lock: push
 *   dequeue-put      open slot's lock: pop; no lock: plan; append lock: place
 *   flush            append lock: copy of the dirty states; timer lock: of the dirty pages
 *   readers          no lock: pull, states, keys, ids, queries
 *
 * What Python hands from thread to thread (how far the log is written, units, the time) goes through
 * a lock here, as it goes through the GIL there. At the end everything was handed over or cancelled,
 * each once. With the argument `unlocked` one lock is left out: the sanitizer must say so.
 */
#include <pthread.h>
#include <sched.h>

#include "test/check.h"

#include "format/properties.h"
#include "format/queue_unit.h"
#include "format/timer_unit.h"
#include "format/wheel_slot.h"
#include "log/encode.h"
#include "base/hash.h"
#include "log/parse.h"
#include "timer/states.h"
#include "log/view.h"

enum {
    PUTTERS = 2, READERS = 2, ROUNDS = 400, BATCH = 8, REAL = 2, TIMER = REAL, ROUTES = REAL + 1,
    SEGMENT = 1 << 16, SEGMENTS = 128, HALF = 1 << 14, IDS_MAX = 20000, UNITS_MAX = 40000,
    TIMER_SEGMENT = 4096, TIMER_SEGMENTS = 2048, SLOTS = 256, PRECISION = 100, ROLL_SLOTS = 60,
    TABLE = 16, CAPACITY = 64
};

#define STORE_ID 0xC0FFEE01u
#define START_MS ((int64_t)1700000000000)

typedef struct {
    pthread_mutex_t append, write, timer, open, given;
    int leave_out; /* a lock, to see that it is missed */

    ts_log log; /* append */
    int64_t marks[2];
    uint8_t *halves[2];
    int active; /* append */
    uint8_t *segments[SEGMENTS], *timer_segments[TIMER_SEGMENTS];
    ts_route routes[ROUTES];
    ts_route *table[TABLE];
    ts_routes known;
    ts_states states;
    uint8_t *blocks[1];
    ts_wheel wheel;                       /* timer */
    int64_t timer_end, frontier, lowest;  /* timer */
    ts_heap heap;                         /* open */
    int64_t open_frontier;                /* open */

    /* given: under that lock, as Python's objects are under the GIL */
    int64_t written, now_ms, outstanding[SLOTS], requested;
    uint8_t *queues[ROUTES];
    int64_t counts[ROUTES];
    int64_t source_at[IDS_MAX];
    int finished, stopping;
} store;

static store *s;

static void lock(pthread_mutex_t *mutex)
{
    CHECK(pthread_mutex_lock(mutex) == 0);
}

static void unlock(pthread_mutex_t *mutex)
{
    CHECK(pthread_mutex_unlock(mutex) == 0);
}

static int64_t get(const int64_t *of)
{
    int64_t value;

    lock(&s->given);
    value = *of;
    unlock(&s->given);
    return value;
}

static void set(int64_t *of, int64_t value)
{
    lock(&s->given);
    *of = value;
    unlock(&s->given);
}

static int is_over(void)
{
    int over;

    lock(&s->given);
    over = s->stopping;
    unlock(&s->given);
    return over;
}

static int32_t below(uint64_t *seed, int32_t limit)
{
    return (int32_t)(check_random(seed) % (uint32_t)limit);
}

static void *zeros(int64_t size)
{
    void *at = calloc(1, (size_t)size);

    CHECK(at != NULL);
    return at;
}

static ts_view log_view(void)
{
    return (ts_view){.segments = (const uint8_t **)s->segments, .segment_count = SEGMENTS,
                     .segment_bytes = SEGMENT, .end = get(&s->written)};
}

/* ---- a store ---- */

static void make_route(int32_t index, const char *topic, int32_t queue_id, int32_t kind)
{
    ts_route *route = &s->routes[index];
    uint64_t at;

    route->index = index;
    route->kind = kind;
    route->queue_id = queue_id;
    route->topic_size = (int32_t)strlen(topic);
    memcpy(route->topic, topic, strlen(topic));
    route->topic_hash = ts_topic_hash(route->topic, route->topic_size);
    route->real_size = sprintf((char *)route->real, "REAL_TOPIC\001%s\002REAL_QID\001%d\002", topic,
                               queue_id);
    at = ts_route_key(route->topic, route->topic_size, queue_id) & s->known.mask;
    while (s->table[at] != NULL)
        at = (at + 1) & s->known.mask;
    s->table[at] = route;
}

static void make_store(void)
{
    s = zeros(sizeof *s);
    pthread_mutex_init(&s->append, NULL);
    pthread_mutex_init(&s->write, NULL);
    pthread_mutex_init(&s->timer, NULL);
    pthread_mutex_init(&s->open, NULL);
    pthread_mutex_init(&s->given, NULL);
    s->known = (ts_routes){s->table, TABLE - 1};
    make_route(0, "orders", 0, TS_ROUTE_REAL);
    make_route(1, "orders", 1, TS_ROUTE_REAL);
    make_route(TIMER, TS_TIMER_TOPIC, 0, TS_ROUTE_TIMER);
    for (int32_t i = 0; i < ROUTES; i++)
        s->queues[i] = zeros(UNITS_MAX * 20);
    for (int32_t i = 0; i < SEGMENTS; i++)
        s->segments[i] = zeros(SEGMENT);
    for (int32_t i = 0; i < TIMER_SEGMENTS; i++)
        s->timer_segments[i] = zeros(TIMER_SEGMENT);
    s->halves[0] = zeros(HALF);
    s->halves[1] = zeros(HALF);
    s->blocks[0] = zeros(TS_BLOCK_BYTES + TS_BLOCK_CHUNKS);
    s->states = (ts_states){s->blocks, TS_BLOCK_IDS, 0};
    s->now_ms = START_MS;
    s->frontier = s->open_frontier = START_MS / PRECISION;
    s->wheel = (ts_wheel){zeros(SLOTS * TS_SLOT_BYTES), zeros((SLOTS * TS_SLOT_BYTES + 4095) / 4096),
                          SLOTS, PRECISION};
    s->heap = (ts_heap){zeros(IDS_MAX * (int64_t)sizeof(ts_heap_key)),
                        zeros(IDS_MAX * (int64_t)sizeof(ts_due)), zeros(IDS_MAX * 8), 0, IDS_MAX,
                        IDS_MAX};
    for (int64_t i = 0; i < IDS_MAX; i++)
        s->heap.unused[i] = i;
    s->log = (ts_log){.lock = &s->append, .staging = s->halves[0], .filled_mark = &s->marks[0],
                      .staging_bytes = HALF, .segment_bytes = SEGMENT, .room_end = HALF - 16, .precision_ms = PRECISION,
                      .timer_route = &s->routes[TIMER], .states = &s->states,
                      .store_id = STORE_ID, .property_crc = 1};
    memcpy(s->log.unique_prefix, "7F00000100000000ABCD", 20);
}

/* ---- the log's end ---- */

/* As CommitLog.write_out: the other half takes appends while this one is copied. */
static void write_out(int roll)
{
    int64_t base, filled;
    int half;

    lock(&s->write);
    lock(&s->append);
    if (roll)
        CHECK(ts_blank(&s->log) == TS_OK);
    base = s->log.base;
    filled = s->log.filled;
    half = s->active;
    s->active = 1 - half;
    s->log.staging = s->halves[s->active];
    s->log.filled_mark = &s->marks[s->active];
    s->marks[s->active] = 0;
    s->log.base = roll ? (base / SEGMENT + 1) * SEGMENT : base + filled;
    s->log.filled = 0;
    s->log.room_end = s->log.base + HALF - 16;
    if (s->log.room_end > (s->log.base / SEGMENT + 1) * SEGMENT - 16)
        s->log.room_end = (s->log.base / SEGMENT + 1) * SEGMENT - 16;
    unlock(&s->append);
    CHECK(base / SEGMENT < SEGMENTS - 1);
    memcpy(s->segments[base / SEGMENT] + base % SEGMENT, s->halves[half], (size_t)filled);
    set(&s->written, roll ? (base / SEGMENT + 1) * SEGMENT : base + filled);
    unlock(&s->write);
}

static void make_room(void)
{
    int roll;

    lock(&s->append);
    roll = s->log.base % SEGMENT + s->log.filled > SEGMENT - 4096;
    unlock(&s->append);
    write_out(roll);
}

/* ---- putters ---- */

static void remember(int64_t id, int64_t log_offset)
{
    CHECK(id >= 0 && id < IDS_MAX);
    lock(&s->given);
    s->source_at[id] = log_offset + 1;
    unlock(&s->given);
}

static void put_rows(uint64_t *seed)
{
    static const char bodies[] = "some bytes that stand for a body of a message, or for several";
    int64_t body_at[BATCH + 1] = {0}, due[BATCH], at[BATCH], ids[BATCH], now = get(&s->now_ms);
    int32_t count = 1 + below(seed, BATCH), status;
    int64_t need;
    ts_rows rows = {.bodies = (const uint8_t *)bodies, .body_offsets = body_at, .due_ms = due,
                    .properties = (const uint8_t *)"TAGS\001a\002", .properties_size = 7,
                    .count = count, .first_unique = below(seed, 1 << 30)};

    for (int32_t i = 0; i < count; i++) {
        body_at[i + 1] = body_at[i] + 1 + below(seed, 7);
        due[i] = now + below(seed, 4000) - 200;
    }
    for (int32_t from = 0; from < count;) {
        from += ts_put_many_held(&s->log, &s->routes[below(seed, REAL)], &rows, from, count,
                                 BATCH / 3, now, at, ids, &status, &need);
        if (status != TS_OK) {
            CHECK(status == TS_NEED_ROOM && need > 0);
            make_room();
        }
    }
    for (int32_t i = 0; i < count; i++) {
        if (due[i] > now)
            remember(ids[i], at[i]);
    }
}

static void put_single(uint64_t *seed)
{
    int64_t at, id, now = get(&s->now_ms), due = now + 1 + below(seed, 3000);

    for (;;) {
        lock(&s->append);
        at = ts_put_one(&s->log, &s->routes[0], (const uint8_t *)"body", 4, due, NULL, 0, now);
        id = s->log.out[0];
        unlock(&s->append);
        if (at >= 0)
            break;
        CHECK(at == TS_NEED_ROOM);
        make_room();
    }
    remember(id, at);
}

static int32_t deletion(char *text)
{
    return sprintf(text, "TAGS\001_RECALL_TAG_\002TIMER_OUT_MS\0011\002REAL_TOPIC\001orders\002"
                         "REAL_QID\0010\002TIMER_DEL_UNIQKEY\001orders+k\002");
}

static void cancel(uint64_t *seed, int64_t id, ts_route *real)
{
    char text[256];
    int32_t size = deletion(text), got;

    (void)seed;
    for (;;) {
        lock(&s->append);
        got = ts_cancel(&s->log, real, id, (uint8_t *)text, size, START_MS);
        unlock(&s->append);
        if (got != TS_NEED_ROOM)
            break;
        make_room();
    }
    CHECK(got >= 0);
}

static void reschedule(uint64_t *seed, int64_t id, int64_t log_offset, ts_route *real)
{
    char text[256], moved[256];
    uint8_t record[1024];
    int64_t now = get(&s->now_ms), due = now + 1 + below(seed, 2000), queue_offset;
    int32_t size = deletion(text), got, encoded;
    int32_t moved_size =
        sprintf(moved, "UNIQ_KEY\001X\002TIMER_DELIVER_MS\001%lld\002TIMER_OUT_MS\001%lld\002%.*s",
                (long long)due, (long long)((due - 1) / PRECISION * PRECISION), real->real_size,
                (const char *)real->real);
    ts_view view;

    if (get(&s->written) <= log_offset)
        write_out(0);
    view = log_view();
    encoded = ts_reschedule_encode(&view, &s->log, log_offset, &s->routes[TIMER], (uint8_t *)moved,
                                   moved_size, record, sizeof record);
    CHECK(encoded > 0);
    for (;;) {
        lock(&s->append);
        got = ts_reschedule(&s->log, real, id, (uint8_t *)text, size, &s->routes[TIMER], record,
                            encoded, now);
        queue_offset = s->log.out[0];
        if (got == TS_WAITING)
            log_offset = s->log.out[1] - encoded;
        unlock(&s->append);
        if (got != TS_NEED_ROOM)
            break;
        make_room();
    }
    CHECK(got >= 0);
    if (got == TS_WAITING)
        remember(queue_offset, log_offset);
}

/* The route that a source's own text names. */
static ts_route *real_of(int64_t log_offset)
{
    ts_record record;
    ts_marks marks;
    ts_view view;

    if (get(&s->written) <= log_offset)
        write_out(0);
    view = log_view();
    CHECK(ts_view_record(&view, log_offset, &record) == TS_OK);
    ts_marks_get(record.properties, record.properties_size, &marks);
    return ts_route_find(&s->known, marks.real_topic.at, marks.real_topic.size, marks.real_queue);
}

static void *putter(void *argument)
{
    uint64_t seed = (uint64_t)(uintptr_t)argument;

    for (int32_t round = 0; round < ROUNDS; round++) {
        int64_t id, at;

        put_rows(&seed);
        put_single(&seed);
        id = below(&seed, 2 + round * 8);
        at = get(&s->source_at[id]) - 1;
        if (at < 0)
            continue;
        if (below(&seed, 2))
            cancel(&seed, id, real_of(at));
        else
            reschedule(&seed, id, at, real_of(at));
        lock(&s->given);
        s->now_ms += below(&seed, 12);
        unlock(&s->given);
    }
    lock(&s->given);
    s->finished++;
    unlock(&s->given);
    return NULL;
}

/* ---- services ---- */

static int64_t dispatched; /* dispatch alone */

static int dispatch_step(void)
{
    uint8_t units[CAPACITY * 20];
    int32_t indexes[CAPACITY], got;
    int64_t offsets[CAPACITY], next = 0;
    ts_key found[256];
    ts_keys keys = {found, 256, 0, 0, 1};
    ts_view view;

    write_out(0);
    view = log_view();
    got = ts_dispatch(&view, &s->known, NULL, 0, dispatched, &next, CAPACITY, units, indexes,
                      offsets, &keys, NULL, NULL);
    CHECK(got >= 0);
    lock(&s->given);
    for (int32_t i = 0; i < got; i++) {
        CHECK(offsets[i] == s->counts[indexes[i]] && offsets[i] < UNITS_MAX);
        memcpy(s->queues[indexes[i]] + 20 * s->counts[indexes[i]]++, units + 20 * i, 20);
    }
    unlock(&s->given);
    dispatched = next;
    return got > 0;
}

static void write_units(const uint8_t *units, const ts_link *link)
{
    memcpy(s->timer_segments[s->timer_end / TIMER_SEGMENT] + s->timer_end % TIMER_SEGMENT, units,
           (size_t)link->bytes);
    s->timer_end = link->pos;
    CHECK(s->timer_end / TIMER_SEGMENT < TIMER_SEGMENTS - 1);
}

static int64_t lowest_needed(void)
{
    int64_t lowest = s->frontier;

    lock(&s->given);
    for (int32_t i = 0; i < SLOTS; i++) {
        int64_t slot = s->frontier - SLOTS + 1 + i;
        if (slot > 0 && s->outstanding[slot % SLOTS] > 0 && slot < lowest)
            lowest = slot;
    }
    unlock(&s->given);
    return lowest;
}

static void expect(int64_t slot, int64_t count)
{
    lock(&s->given);
    s->outstanding[slot % SLOTS] += count;
    unlock(&s->given);
}

static int enqueue_step(void)
{
    uint8_t copied[CAPACITY * 20], units[(CAPACITY + 1) * TS_TIMER_UNIT_BYTES];
    ts_request requests[CAPACITY];
    ts_due late[CAPACITY];
    int64_t from = get(&s->requested), count = get(&s->counts[TIMER]) - from;
    ts_view view = log_view();
    ts_link link;
    int32_t got;

    count = count < CAPACITY ? count : CAPACITY;
    lock(&s->given);
    memcpy(copied, s->queues[TIMER] + 20 * from, (size_t)count * 20);
    unlock(&s->given);
    if (count == 0)
        return 0;
    CHECK(ts_timer_requests(&view, copied, (int32_t)count, from, &s->states, STORE_ID, PRECISION,
                            requests) ==
          count);
    lock(&s->timer);
    link = (ts_link){.pos = s->timer_end, .segment_bytes = TIMER_SEGMENT,
                     .write_slot = get(&s->now_ms) / PRECISION, .frontier = s->frontier,
                     .reuse_below = lowest_needed(), .roll_slots = ROLL_SLOTS};
    got = ts_timer_link(&s->wheel, &link, &s->states, requests, (int32_t)count, units, sizeof units,
                        late);
    if (got >= 0)
        write_units(units, &link);
    unlock(&s->timer);
    if (got == TS_BLOCKED)
        return 0;
    CHECK(got >= 0);
    for (int32_t i = 0; i < link.late_count; i++)
        expect(late[i].slot, 1);
    lock(&s->open);
    CHECK(s->heap.count + link.late_count < IDS_MAX);
    ts_heap_push(&s->heap, late, link.late_count);
    unlock(&s->open);
    set(&s->requested, from + got);
    return 1;
}

static int load_step(void)
{
    ts_chained *chained = zeros(IDS_MAX * (int64_t)sizeof *chained);
    ts_due *due = zeros(IDS_MAX * (int64_t)sizeof *due);
    int64_t slots[8], positions[8], now_slot = get(&s->now_ms) / PRECISION, frontier;
    int32_t count = 0, got, n = 0, done = 0, kept = 0;
    ts_view view, timer_view = {.segments = (const uint8_t **)s->timer_segments,
                                .segment_count = TIMER_SEGMENTS, .segment_bytes = TIMER_SEGMENT};

    lock(&s->timer);
    while (s->frontier <= now_slot && count < 8) {
        int64_t slot = ts_wheel_next(&s->wheel, s->frontier, now_slot + 1);

        s->frontier = slot < 0 ? now_slot + 1 : slot + 1;
        if (slot < 0)
            break;
        positions[count] = -2;
        slots[count++] = slot;
        expect(slot, 1); /* while it is read */
    }
    frontier = s->frontier;
    timer_view.end = s->timer_end;
    do {
        got = ts_wheel_load_many(&timer_view, &s->wheel, slots, positions, count, CAPACITY,
                                 chained + n);
        CHECK(got >= 0);
        n += got;
    } while (got > 0);
    unlock(&s->timer);
    view = log_view();
    while (done < n) {
        got = ts_due_load(&view, &s->states, STORE_ID, PRECISION, frontier, chained + done, n - done,
                          due + kept);
        CHECK(got > 0);
        done += got;
        kept += (int32_t)view.need;
    }
    for (int32_t i = 0; i < kept; i++)
        expect(due[i].slot, 1);
    for (int32_t i = 0; i < count; i++)
        expect(slots[i], -1);
    lock(&s->open);
    CHECK(s->heap.count + kept < IDS_MAX);
    ts_heap_push(&s->heap, due, kept);
    s->open_frontier = frontier;
    unlock(&s->open);
    free(chained);
    free(due);
    return count > 0;
}

static int deliver_step(void)
{
    ts_due due[CAPACITY];
    ts_draft drafts[CAPACITY];
    uint8_t scratch[1 << 16];
    int64_t slots[CAPACITY], counts[CAPACITY], late_ms[CAPACITY];
    ts_tally tally = {.rolled_due_ms = INT64_MAX, .slots = slots, .counts = counts};
    ts_delivery delivery = {.scratch = scratch, .scratch_bytes = sizeof scratch, .drafts = drafts,
                            .draft_count = CAPACITY / 4, .late_ms = late_ms};
    ts_open open = {.run_count = 0};
    int64_t now = get(&s->now_ms), until, frontier, count;
    ts_view view;

    lock(&s->open);
    open.heap = s->heap;
    frontier = s->open_frontier;
    until = now < frontier * PRECISION ? now : frontier * PRECISION;
    count = ts_open_pop(&open, until, frontier, PRECISION, due, CAPACITY);
    s->heap = open.heap;
    unlock(&s->open);
    for (int64_t i = 0; i < count; i++) {
        if (due[i].log_offset + due[i].size > get(&s->written))
            write_out(0);
    }
    view = log_view();
    for (int64_t from = 0, got; from < count; from += got > 0 ? got : 0) {
        got = ts_deliver_many(&view, &s->known, &s->log, &s->routes[TIMER], frontier, due + from,
                              (int32_t)(count - from), now, &delivery, &tally);
        if (got <= 0) {
            CHECK(delivery.is_placing && got == TS_NEED_ROOM);
            make_room();
        }
    }
    CHECK(tally.misfits == 0 && delivery.late_count == tally.handed);
    for (int64_t i = 0; i < tally.runs; i++)
        expect(slots[i], -counts[i]);
    return count > 0;
}

static int flush_step(void)
{
    int64_t chunks[TS_BLOCK_CHUNKS], pages[4];
    uint8_t *payloads = zeros(TS_BLOCK_BYTES), *copied = zeros(4 * 4096);

    if (!s->leave_out)
        lock(&s->append);
    (void)ts_states_copy_dirty(&s->states, chunks, payloads, TS_BLOCK_CHUNKS);
    if (!s->leave_out)
        unlock(&s->append);
    lock(&s->timer);
    (void)ts_wheel_copy_dirty(&s->wheel, pages, copied, 4);
    unlock(&s->timer);
    free(payloads);
    free(copied);
    sched_yield();
    return 0;
}

static int (*const steps[])(void) = {dispatch_step, enqueue_step, load_step, deliver_step,
                                     flush_step};

static void *service(void *argument)
{
    int (*step)(void) = steps[(uintptr_t)argument];

    while (!is_over()) {
        if (!step())
            sched_yield();
    }
    return NULL;
}

/* ---- readers ---- */

static void read_queue(uint64_t *seed)
{
    ts_pulled out[16];
    uint8_t units[16 * 20], bodies[4096], properties[8192];
    int32_t index = below(seed, REAL), got;
    int64_t count, at = 0;
    ts_view view = log_view();

    lock(&s->given);
    count = s->counts[index];
    if (count > 16)
        at = below(seed, (int32_t)count - 15);
    count = count - at < 16 ? count - at : 16;
    memcpy(units, s->queues[index] + 20 * at, (size_t)count * 20);
    unlock(&s->given);
    got = ts_pull(&view, &s->routes[index], units, NULL, (int32_t)count, at, view.end, PRECISION, out,
                  bodies, sizeof bodies, properties, sizeof properties);
    CHECK(got >= 0);
    for (int32_t i = 0; i < got; i++)
        CHECK(out[i].queue_offset == at + i);
}

static void *reader(void *argument)
{
    uint64_t seed = (uint64_t)(uintptr_t)argument;
    int64_t ids_at = 0, next = 0;

    while (!is_over()) {
        ts_view view = log_view();
        ts_query query = {.topic = (const uint8_t *)TS_TIMER_TOPIC, .topic_size = 19,
                          .begin_ms = INT64_MIN, .end_ms = INT64_MAX, .states = &s->states,
                          .store_id = STORE_ID};
        int64_t offset = get(&s->source_at[below(&seed, 500)]) - 1;
        int32_t matched, state = ts_state_get(&s->states, below(&seed, 5000));
        ts_found found;
        ts_id ids[8];

        CHECK(state >= TS_NONE && state <= TS_CANCELLED);
        read_queue(&seed);
        if (offset >= 0 && offset < view.end)
            CHECK(ts_index_check(&view, &query, &offset, 1, &found, &matched) == 1);
        CHECK(ts_ids_scan(&view, STORE_ID, ids_at, &next, 8, ids) >= 0);
        ids_at = next;
        sched_yield();
    }
    return NULL;
}

/* ---- all at once ---- */

static void drain(void)
{
    for (int32_t round = 0; round < 5000; round++) {
        int worked = dispatch_step() + enqueue_step() + load_step() + deliver_step();

        if (s->states.waiting == 0 && !worked)
            return;
        if (!worked)
            s->now_ms += PRECISION;
    }
}

static void check_end(void)
{
    int32_t *handed = zeros(IDS_MAX * (int64_t)sizeof *handed);
    ts_view view = log_view();
    int64_t waited = s->routes[TIMER].next_offset;

    CHECK(s->states.waiting == 0 && s->heap.count == 0);
    for (int64_t at = 0; at < view.end;) {
        ts_record record;
        ts_marks marks;

        if (ts_view_record(&view, at, &record) != TS_OK) { /* the blank */
            at = (at / SEGMENT + 1) * SEGMENT;
            continue;
        }
        ts_marks_get(record.properties, record.properties_size, &marks);
        if (record.topic_size == 6 && marks.timer_id >= 0)
            handed[marks.timer_id]++;
        at += record.size;
    }
    for (int64_t id = 0; id < waited; id++) {
        int32_t state = ts_state_get(&s->states, id);

        CHECK(handed[id] == (state == TS_HANDED));
        CHECK((s->source_at[id] > 0) == (state != TS_NONE));
    }
    printf("race_engine: ok, %lld timer records, %lld queue units\n", (long long)waited,
           (long long)(s->counts[0] + s->counts[1]));
    free(handed);
}

int main(int count, char **arguments)
{
    enum { SERVICES = sizeof steps / sizeof *steps };
    pthread_t putters[PUTTERS], services[SERVICES], readers[READERS];

    make_store();
    s->leave_out = count > 1 && strcmp(arguments[1], "unlocked") == 0;
    for (uintptr_t i = 0; i < SERVICES; i++)
        CHECK(pthread_create(&services[i], NULL, service, (void *)i) == 0);
    for (uintptr_t i = 0; i < READERS; i++)
        CHECK(pthread_create(&readers[i], NULL, reader, (void *)(i + 77)) == 0);
    for (uintptr_t i = 0; i < PUTTERS; i++)
        CHECK(pthread_create(&putters[i], NULL, putter, (void *)(i + 1)) == 0);
    for (int32_t i = 0; i < PUTTERS; i++)
        CHECK(pthread_join(putters[i], NULL) == 0);
    lock(&s->given);
    s->stopping = 1;
    unlock(&s->given);
    for (int32_t i = 0; i < SERVICES; i++)
        CHECK(pthread_join(services[i], NULL) == 0);
    for (int32_t i = 0; i < READERS; i++)
        CHECK(pthread_join(readers[i], NULL) == 0);
    drain();
    check_end();
    return 0;
}
