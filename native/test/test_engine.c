/* The whole way of a message in memory, from a put to a pull; then the same bytes damaged.
 *
 * A store here: a commit log of a few segments, each the staging in its turn; consume queues, timer
 * log and wheel as arrays. All are heap buffers of exactly their size.
 */
#include "check.h"

#include "format/properties.h"
#include "format/queue_unit.h"
#include "format/wheel_slot.h"
#include "base/hash.h"
#include "log/parse.h"
#include "timer/unit_checksum.h"
#include "timer/states.h"
#include "log/view.h"

enum {
    REAL = 3, ROUTES = REAL + 2, TIMER = REAL, LEVELS = REAL + 1, TABLE = 16,
    SEGMENTS = 64, TIMER_SEGMENTS = 256, UNITS_MAX = 8192, IDS_MAX = 4096, BATCH = 64,
    BLOCK_BYTES = TS_BLOCK_BYTES + TS_BLOCK_CHUNKS, ROLL_SLOTS = 12
};

#define STORE_ID 0xC0FFEE01u
#define TAGGED "TAGS\001green\002"

typedef struct {
    int64_t precision_ms, segment_bytes, timer_segment_bytes, slot_count, start_ms;
    int32_t property_crc;
} shape;

typedef struct {
    shape is;
    ts_log log;
    int64_t filled_mark;
    ts_view view, timer_view;
    uint8_t *segments[SEGMENTS], *timer_segments[TIMER_SEGMENTS];
    ts_route routes[ROUTES];
    ts_route *table[TABLE], *by_index[ROUTES];
    ts_routes known;
    ts_states states;
    uint8_t *blocks[1];
    ts_wheel wheel;
    uint8_t *queues[ROUTES];        /* their units */
    int32_t counts[ROUTES];
    int64_t dispatched, requested;  /* log offset; queue offset of the timer topic */
    int64_t timer_end, frontier;
    ts_open open;
    int64_t unique;
    /* what the test knows */
    int64_t now_ms;
    int64_t due_ms[IDS_MAX];        /* by timer id; 0: no source */
    int64_t source_at[IDS_MAX];
    int32_t real[IDS_MAX], cancelled[IDS_MAX];
    int64_t rolled, late, cuts;
    int64_t heads[ROUTES];
} store;

static int32_t below(uint64_t *seed, int32_t limit)
{
    return (int32_t)(check_random(seed) % (uint32_t)limit);
}

static void *bytes_of(int64_t size)
{
    void *at = calloc(1, (size_t)size);

    CHECK(at != NULL);
    return at;
}

/* ---- a store ---- */

static void make_route(store *s, int32_t index, const char *topic, int32_t queue_id, int32_t kind)
{
    ts_route *route = &s->routes[index];

    route->index = index;
    route->kind = kind;
    route->queue_id = queue_id;
    route->topic_size = (int32_t)strlen(topic);
    memcpy(route->topic, topic, strlen(topic));
    route->topic_hash = ts_topic_hash(route->topic, route->topic_size);
    route->real_size = sprintf((char *)route->real, "REAL_TOPIC\001%s\002REAL_QID\001%d\002", topic,
                               queue_id);
    s->by_index[index] = route;
}

static void know_route(store *s, int32_t index)
{
    ts_route *route = &s->routes[index];
    uint64_t at = ts_route_key(route->topic, route->topic_size, route->queue_id) & s->known.mask;

    while (s->table[at] != NULL)
        at = (at + 1) & s->known.mask;
    s->table[at] = route;
}

static uint8_t *log_segment(store *s, int64_t number)
{
    CHECK(number < SEGMENTS);
    if (s->segments[number] == NULL)
        s->segments[number] = bytes_of(s->is.segment_bytes);
    return s->segments[number];
}

static void make_heap(ts_heap *heap, int64_t capacity)
{
    heap->keys = bytes_of(capacity * (int64_t)sizeof *heap->keys);
    heap->entries = bytes_of(capacity * (int64_t)sizeof *heap->entries);
    heap->unused = bytes_of(capacity * (int64_t)sizeof *heap->unused);
    heap->capacity = heap->unused_count = capacity;
    heap->count = 0;
    for (int64_t i = 0; i < capacity; i++)
        heap->unused[i] = i;
}

static void free_heap(ts_heap *heap)
{
    free(heap->keys);
    free(heap->entries);
    free(heap->unused);
}

static void free_open(ts_open *open)
{
    for (int64_t i = 0; i < open->run_count; i++)
        free((void *)(uintptr_t)open->runs[i].entries);
    free_heap(&open->heap);
}

/* What a slot gave: mostly as a run. Runs that are used up go first. */
static void load_open(store *s, const ts_due *in, int32_t count)
{
    ts_open *open = &s->open;
    ts_heap_key *keys;
    ts_due *entries;
    int64_t kept = 0;

    for (int64_t i = 0; i < open->run_count; i++) {
        if (open->runs[i].at < open->runs[i].end)
            open->runs[kept++] = open->runs[i];
        else
            free((void *)(uintptr_t)open->runs[i].entries);
    }
    open->run_count = kept;
    if (count < 4 || kept == TS_RUNS_MAX) {
        ts_heap_push(&open->heap, in, count);
        return;
    }
    keys = bytes_of(2 * count * (int64_t)sizeof *keys);
    entries = bytes_of(count * (int64_t)sizeof *entries);
    ts_run_sort(in, count, keys, entries);
    open->runs[open->run_count++] = (ts_run){entries, 0, count};
    free(keys);
}

static store *make_store(const shape *is)
{
    static char long_topic[201];
    store *s = bytes_of(sizeof *s);

    memset(long_topic, 'q', 200);
    s->is = *is;
    s->now_ms = is->start_ms;
    make_route(s, 0, "orders", 0, TS_ROUTE_REAL);
    make_route(s, 1, "orders", 1023, TS_ROUTE_REAL);
    make_route(s, 2, long_topic, 7, TS_ROUTE_REAL); /* a record of version 2 */
    make_route(s, TIMER, TS_TIMER_TOPIC, 0, TS_ROUTE_TIMER);
    make_route(s, LEVELS, TS_LEVEL_TOPIC, 2, TS_ROUTE_LEVELS);
    s->known = (ts_routes){s->table, TABLE - 1};
    for (int32_t i = 0; i < ROUTES; i++)
        s->queues[i] = bytes_of(UNITS_MAX * 20);
    s->states.blocks = s->blocks;
    s->log = (ts_log){.staging = log_segment(s, 0), .filled_mark = &s->filled_mark,
                      .staging_bytes = is->segment_bytes, .segment_bytes = is->segment_bytes,
                      .room_end = is->segment_bytes - 16, .precision_ms = is->precision_ms,
                      .timer_route = &s->routes[TIMER], .states = &s->states,
                      .store_id = STORE_ID, .property_crc = is->property_crc,
                      .host = {127, 0, 0, 1, 0, 0, 0x2A, 0x9F}};
    memcpy(s->log.unique_prefix, "7F00000100000000ABCD", 20);
    s->view = (ts_view){.segments = (const uint8_t **)s->segments, .segment_count = SEGMENTS,
                        .segment_bytes = is->segment_bytes};
    s->timer_view = (ts_view){.segments = (const uint8_t **)s->timer_segments,
                              .segment_count = TIMER_SEGMENTS,
                              .segment_bytes = is->timer_segment_bytes};
    s->wheel = (ts_wheel){bytes_of(is->slot_count * TS_SLOT_BYTES),
                          bytes_of((is->slot_count * TS_SLOT_BYTES + 4095) / 4096),
                          is->slot_count, is->precision_ms};
    s->frontier = s->now_ms / is->precision_ms;
    make_heap(&s->open.heap, IDS_MAX);
    return s;
}

static void free_store(store *s)
{
    for (int32_t i = 0; i < SEGMENTS; i++)
        free(s->segments[i]);
    for (int32_t i = 0; i < TIMER_SEGMENTS; i++)
        free(s->timer_segments[i]);
    for (int32_t i = 0; i < ROUTES; i++)
        free(s->queues[i]);
    free(s->blocks[0]);
    free(s->wheel.slots);
    free(s->wheel.dirty_pages);
    free_open(&s->open);
    free(s);
}

static int64_t log_end(const store *s)
{
    return s->log.base + s->log.filled;
}

static void give_states(store *s)
{
    CHECK(s->states.end == 0 && s->log.need >= 0);
    s->blocks[0] = bytes_of(BLOCK_BYTES);
    s->states.end = TS_BLOCK_IDS;
}

/* The next segment becomes the staging. */
static void give_room(store *s)
{
    CHECK(s->log.need > 0);
    CHECK(ts_blank(&s->log) == TS_OK);
    CHECK(s->filled_mark == s->log.filled);
    s->log.base = (s->log.base / s->is.segment_bytes + 1) * s->is.segment_bytes;
    s->log.filled = 0;
    s->log.staging = log_segment(s, s->log.base / s->is.segment_bytes);
    s->log.room_end = s->log.base + s->is.segment_bytes - 16;
}

static void serve_log(store *s, int64_t status)
{
    if (status == TS_NEED_STATES)
        give_states(s);
    else {
        CHECK(status == TS_NEED_ROOM);
        give_room(s);
    }
}

/* ---- puts and cancels ---- */

/* A body tells its due time and its route. */
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
    CHECK(ts_state_get(&s->states, id) == TS_WAITING);
    s->due_ms[id] = due_ms;
    s->real[id] = index;
    s->source_at[id] = log_offset;
}

/* The rows in groups, as many in each as fit a limit; some behind a head. */
static void put_group(store *s, uint64_t *seed, int32_t index, const ts_rows *rows,
                      int64_t *log_offsets, int64_t *queue_offsets)
{
    ts_route *route = &s->routes[index];
    uint8_t head[12];

    body_put(head, s->now_ms, index, 12);
    for (int32_t at = 0; at < rows->count;) {
        int32_t timers, status, with_head = below(seed, 2), size = (int32_t)sizeof head;
        int64_t bytes, before, start;
        int32_t got = ts_rows_measure(&s->log, route, rows, at, 1 + below(seed, 20), 4000,
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
        CHECK(s->filled_mark == s->log.filled && (s->log.out[0] >= 0) == with_head);
        if (with_head)
            s->heads[index]++;
        at += got;
    }
}

static void put_many(store *s, uint64_t *seed, int32_t index, int32_t count, int32_t ahead_ms)
{
    static const char pair[] = "KEYS\001k\002";
    uint8_t bodies[BATCH * 64], extra[BATCH * 8];
    int64_t body_at[BATCH + 1] = {0}, extra_at[BATCH + 1] = {0}, due[BATCH];
    int64_t log_offsets[BATCH], queue_offsets[BATCH];
    ts_rows rows;

    for (int32_t i = 0; i < count; i++) {
        due[i] = s->now_ms + below(seed, ahead_ms) - ahead_ms / 10;
        body_at[i + 1] = body_at[i] + body_put(bodies + body_at[i], due[i], index, 12 + i % 50);
        extra_at[i + 1] = extra_at[i] + (i % 3 ? 0 : 7);
        memcpy(extra + extra_at[i], pair, (size_t)(extra_at[i + 1] - extra_at[i]));
    }
    rows = (ts_rows){.bodies = bodies, .body_offsets = body_at, .due_ms = due,
                     .properties = (const uint8_t *)TAGGED, .properties_size = sizeof TAGGED - 1,
                     .extra = extra, .extra_offsets = extra_at, .first_unique = s->unique,
                     .count = count};
    if (below(seed, 2))
        put_group(s, seed, index, &rows, log_offsets, queue_offsets);
    else
        for (int32_t i = 0, status; i < count;) {
            int64_t need;

            i += ts_put_many_held(&s->log, &s->routes[index], &rows, i, count,
                                  1 + below(seed, 5), s->now_ms, log_offsets, queue_offsets,
                                  &status, &need);
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

static void put_one(store *s, int32_t index, int64_t due_ms)
{
    uint8_t body[12];
    int64_t at;

    body_put(body, due_ms, index, 12);
    while ((at = ts_put_one(&s->log, &s->routes[index], body, 12, due_ms, NULL, 0, s->now_ms)) < 0)
        serve_log(s, at);
    if (due_ms > s->now_ms)
        remember(s, s->log.out[0], due_ms, index, at);
}

static int32_t delete_text(const store *s, int64_t id, char *text)
{
    const ts_route *real = &s->routes[s->real[id]];

    return sprintf(text,
                   "TAGS\001_RECALL_TAG_\002UNIQ_KEY\001k\002TIMER_DELIVER_MS\001%lld\002"
                   "TIMER_OUT_MS\001%lld\002%.*sTIMER_DEL_UNIQKEY\001t+k\002",
                   (long long)s->now_ms, (long long)s->now_ms, real->real_size,
                   (const char *)real->real);
}

static void cancel(store *s, int64_t id)
{
    char text[512];
    int32_t before = ts_state_get(&s->states, id), size = delete_text(s, id, text), got;

    while ((got = ts_cancel(&s->log, &s->routes[s->real[id]], id, (uint8_t *)text, size,
                            s->now_ms)) == TS_NEED_ROOM)
        give_room(s);
    CHECK(got == before && s->log.out[1] == log_end(s));
    if (before != TS_WAITING)
        return;
    CHECK(ts_state_get(&s->states, id) == TS_CANCELLED);
    s->cancelled[id] = 1;
}

/* The record of a message as it waits for another time, its body saying so; now where that is past.
 * Its size. */
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
                               out, got - 1) == TS_NEED_ROOM && s->view.need == got);
    ts_put_i64(out + TS_RECORD_AT_BODY, due_ms);
    ts_put_i32(out + TS_RECORD_AT_BODY_CRC,
               (int32_t)(ts_crc32(0, out + TS_RECORD_AT_BODY,
                                  ts_get_i32(out + TS_RECORD_AT_BODY_SIZE)) & 0x7FFFFFFFu));
    return got;
}

static void reschedule(store *s, int64_t id, int64_t due_ms)
{
    char text[512];
    ts_route *real = &s->routes[s->real[id]];
    ts_route *target = due_ms > s->now_ms ? &s->routes[TIMER] : real;
    uint8_t record[1024];
    int32_t before = ts_state_get(&s->states, id), deletion = delete_text(s, id, text), got;
    int32_t size = encode_moved(s, id, due_ms, record, sizeof record);
    int64_t mark, number = target->next_offset + (target == s->log.timer_route);

    do {
        mark = s->filled_mark;
        got = ts_reschedule(&s->log, real, id, (uint8_t *)text, deletion, target, record, size,
                            s->now_ms);
        CHECK(got >= 0 || s->filled_mark == mark); /* both or none */
        if (got < 0)
            serve_log(s, got);
    } while (got < 0);
    CHECK(got == before && s->log.out[1] == log_end(s));
    if (before != TS_WAITING) {
        CHECK(s->filled_mark == mark);
        return;
    }
    CHECK(ts_state_get(&s->states, id) == TS_CANCELLED && s->log.out[0] == number);
    s->cancelled[id] = 1;
    if (target == s->log.timer_route)
        remember(s, number, due_ms, s->real[id], log_end(s) - size);
}

/* ---- the services ---- */

static void dispatch(store *s)
{
    uint8_t *units = bytes_of(7 * 20);
    int32_t indexes[7];
    int64_t offsets[7];

    s->view.end = log_end(s);
    while (s->dispatched < s->view.end) {
        int64_t next, from = s->dispatched;
        int32_t got = ts_dispatch(&s->view, &s->known, NULL, 0, from, &next, 7, units, indexes,
                                  offsets, NULL, NULL, NULL);

        if (got == TS_NEED_ROUTE) {
            ts_record record;

            CHECK(ts_view_record(&s->view, s->view.need, &record) == TS_OK && next == from);
            for (int32_t i = 0; i < ROUTES; i++) {
                if (record.topic_size == s->routes[i].topic_size &&
                    record.queue_id == s->routes[i].queue_id)
                    know_route(s, i);
            }
            continue;
        }
        CHECK(got >= 0 && next > from);
        for (int32_t i = 0; i < got; i++) {
            int32_t index = indexes[i], size;
            int64_t at, tags;

            CHECK(offsets[i] == s->counts[index] && s->counts[index] < UNITS_MAX);
            ts_queue_unit_get(units + i * 20, &at, &size, &tags);
            CHECK(at >= from && at + size <= next);
            memcpy(s->queues[index] + 20 * s->counts[index]++, units + i * 20, 20);
        }
        s->dispatched = next;
    }
    free(units);
}

static void write_timer_log(store *s, const uint8_t *units, int64_t bytes, int64_t end, int32_t cut)
{
    int64_t number = s->timer_end / s->is.timer_segment_bytes;
    int64_t at = s->timer_end % s->is.timer_segment_bytes;
    int32_t blank = 0;

    CHECK(number < TIMER_SEGMENTS && at + bytes <= s->is.timer_segment_bytes);
    if (s->timer_segments[number] == NULL)
        s->timer_segments[number] = bytes_of(s->is.timer_segment_bytes);
    memcpy(s->timer_segments[number] + at, units, (size_t)bytes);
    if (cut) {
        CHECK(end % s->is.timer_segment_bytes == 0 && bytes >= 16);
        CHECK(ts_timer_blank_is(units + bytes - 16, 16, &blank));
        CHECK(at + bytes - 16 + blank == s->is.timer_segment_bytes);
    } else {
        CHECK(end == s->timer_end + bytes);
    }
    s->timer_end = s->timer_view.end = end;
    s->cuts += cut;
}

static int64_t lowest_open(const store *s)
{
    int64_t lowest = s->frontier;

    for (int64_t i = 0; i < s->open.heap.count; i++) {
        int64_t slot = s->open.heap.entries[s->open.heap.keys[i].at].slot;
        lowest = slot < lowest ? slot : lowest;
    }
    return lowest;
}

/* Requests of what is dispatched, linked to the wheel; as far as slots are free. */
static void enqueue(store *s, int32_t batch)
{
    int64_t want = s->counts[TIMER] - s->requested;
    int32_t count = (int32_t)(want < batch ? want : batch), done = 0;
    ts_request *requests = bytes_of(batch * (int64_t)sizeof *requests);
    int64_t units_bytes = (batch + 1) * TS_TIMER_UNIT_BYTES;
    uint8_t *units = bytes_of(units_bytes);
    ts_due *late = bytes_of(batch * (int64_t)sizeof *late);

    CHECK(ts_timer_requests(&s->view, s->queues[TIMER] + 20 * s->requested, count, s->requested,
                            &s->states, STORE_ID, s->is.precision_ms, requests) == count);
    for (int32_t i = 0; i < count; i++) {
        if (requests[i].flags & TS_FLAG_DELETE)
            continue;
        CHECK(requests[i].flags == 0 && requests[i].due_ms == s->due_ms[requests[i].id]);
        CHECK(requests[i].queue_offset == s->requested + i);
        CHECK((requests[i].id == requests[i].queue_offset) == (requests[i].roll_times == 0));
        CHECK(requests[i].topic_hash == s->routes[s->real[requests[i].id]].topic_hash);
    }
    while (done < count) {
        ts_link link = {.pos = s->timer_end, .segment_bytes = s->is.timer_segment_bytes,
                        .write_slot = s->now_ms / s->is.precision_ms, .frontier = s->frontier,
                        .reuse_below = lowest_open(s), .roll_slots = ROLL_SLOTS};
        int32_t got = ts_timer_link(&s->wheel, &link, &s->states, requests + done, count - done,
                                    units, units_bytes, late);

        if (got == TS_BLOCKED)
            break;
        CHECK(got >= 0 && link.bytes > 0 && link.late_count <= got);
        CHECK(link.bytes == got * TS_TIMER_UNIT_BYTES + (link.cut ? TS_TIMER_BLANK_BYTES : 0));
        write_timer_log(s, units, link.bytes, link.pos, link.cut);
        ts_heap_push(&s->open.heap, late, link.late_count);
        s->late += link.late_count;
        done += got;
    }
    s->requested += done;
    free(requests);
    free(units);
    free(late);
}

static int by_offset(const void *a, const void *b)
{
    int64_t x = ((const ts_chained *)a)->log_offset, y = ((const ts_chained *)b)->log_offset;

    return (x > y) - (x < y);
}

/* What slots hold, some at a time, in small calls; the same one by one. */
static int32_t load_slots(store *s, const int64_t *slots, int32_t slot_count, int32_t capacity,
                          ts_chained *out)
{
    ts_chained *single = bytes_of(IDS_MAX * (int64_t)sizeof *single);
    int64_t positions[8], pos;
    int32_t n = 0, m = 0, got;

    for (int32_t i = 0; i < slot_count; i++)
        positions[i] = -2;
    do {
        got = ts_wheel_load_many(&s->timer_view, &s->wheel, slots, positions, slot_count, capacity,
                                 out + n);
        CHECK(got >= 0 && got <= capacity);
        n += got;
    } while (got > 0);
    for (int32_t i = 0; i < slot_count; i++) {
        CHECK(positions[i] == -1);
        pos = -1;
        do {
            got = ts_wheel_load(&s->timer_view, &s->wheel, slots[i], &pos, capacity, single + m);
            CHECK(got >= 0 && got <= capacity);
            m += got;
        } while (pos >= 0);
    }
    CHECK(n == m && n <= IDS_MAX);
    qsort(single, (size_t)m, sizeof *single, by_offset);
    ts_chained *sorted = bytes_of((n + 1) * (int64_t)sizeof *sorted);
    memcpy(sorted, out, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, by_offset);
    for (int32_t i = 0; i < n; i++) {
        CHECK(sorted[i].log_offset == single[i].log_offset && sorted[i].slot == single[i].slot);
        CHECK(sorted[i].size == single[i].size && sorted[i].magic == single[i].magic);
        CHECK(sorted[i].write_ms == single[i].write_ms);
    }
    free(sorted);
    free(single);
    return n;
}

/* The slots whose time has come go to the open slot. */
static void dequeue(store *s, int32_t capacity)
{
    int64_t now_slot = s->now_ms / s->is.precision_ms, slots[8];
    ts_chained *chained = bytes_of((IDS_MAX + 1) * (int64_t)sizeof *chained);
    ts_due *due = bytes_of((IDS_MAX + 1) * (int64_t)sizeof *due);
    int32_t slot_count = 0, count;

    while (s->frontier <= now_slot && slot_count < 8) {
        int64_t slot = ts_wheel_next(&s->wheel, s->frontier, now_slot + 1);

        s->frontier = slot < 0 ? now_slot + 1 : slot + 1;
        if (slot >= 0)
            slots[slot_count++] = slot;
    }
    count = load_slots(s, slots, slot_count, capacity, chained);
    CHECK(ts_due_load(&s->view, &s->states, STORE_ID, s->is.precision_ms, s->frontier, chained,
                      count, due) == count);
    CHECK(s->view.need >= 0 && s->view.need <= count);
    for (int32_t i = 0; i < (int32_t)s->view.need; i++) {
        CHECK(due[i].due_ms == s->due_ms[due[i].id] && due[i].wake_ms <= due[i].due_ms);
        CHECK(ts_state_get(&s->states, due[i].id) == TS_WAITING);
    }
    load_open(s, due, (int32_t)s->view.need);
    free(chained);
    free(due);
}

/* What was counted of entries that all came through. */
static void check_tally(store *s, const ts_tally *tally, const ts_delivery *delivery, int64_t count)
{
    int64_t done = 0;

    for (int64_t i = 0; i < tally->runs; i++) {
        CHECK(tally->counts[i] > 0 && (i == 0 || tally->slots[i] != tally->slots[i - 1]));
        done += tally->counts[i];
    }
    CHECK(done == count - tally->misfits);
    CHECK(tally->handed + tally->rolled + tally->skipped + tally->misfits == count);
    CHECK(delivery->late_count == tally->handed && delivery->placed == delivery->planned);
    for (int64_t i = 0; i < delivery->late_count; i++)
        CHECK(delivery->late_ms[i] >= 0);
    s->rolled += tally->rolled;
}

static void know_routes(store *s)
{
    for (int32_t i = 0; i < REAL; i++) {
        if (ts_route_find(&s->known, s->routes[i].topic, s->routes[i].topic_size,
                          s->routes[i].queue_id) == NULL)
            know_route(s, i);
    }
}

/* What is due by now goes to the log. */
static void deliver(store *s, int32_t capacity)
{
    ts_due *due = bytes_of(capacity * (int64_t)sizeof *due);
    ts_draft *drafts = bytes_of(capacity * (int64_t)sizeof *drafts);
    int64_t *late_ms = bytes_of(capacity * (int64_t)sizeof *late_ms);
    int64_t slots[IDS_MAX + 1], counts[IDS_MAX + 1], count, scratch_bytes = 900;
    uint8_t *scratch = bytes_of(scratch_bytes);

    while ((count = ts_open_pop(&s->open, s->now_ms, s->frontier, s->is.precision_ms, due,
                                capacity)) > 0) {
        CHECK(count <= capacity);
        for (int64_t i = 1; i < count; i++)
            CHECK(due[i - 1].wake_ms < due[i].wake_ms ||
                  (due[i - 1].wake_ms == due[i].wake_ms && due[i - 1].id < due[i].id));
        s->view.end = log_end(s);
        ts_tally tally = {.rolled_due_ms = INT64_MAX, .slots = slots, .counts = counts};
        ts_delivery delivery = {.scratch = scratch, .scratch_bytes = scratch_bytes,
                                .drafts = drafts, .draft_count = (capacity + 2) / 3,
                                .late_ms = late_ms};

        for (int32_t from = 0, got; from < count; from += got > 0 ? got : 0) {
            got = ts_deliver_many(&s->view, &s->known, &s->log, &s->routes[TIMER], s->frontier,
                                  due + from, (int32_t)count - from, s->now_ms, &delivery, &tally);
            if (got > 0)
                continue;
            if (delivery.is_placing) {
                CHECK(delivery.need == s->log.need);
                serve_log(s, got);
            } else if (got == TS_NEED_ROUTE) {
                know_routes(s);
            } else {
                CHECK(got == TS_NEED_ROOM && s->view.need > scratch_bytes);
                scratch_bytes = s->view.need;
                free(scratch);
                delivery.scratch = scratch = bytes_of(scratch_bytes);
                delivery.scratch_bytes = scratch_bytes;
            }
        }
        check_tally(s, &tally, &delivery, count);
    }
    free(late_ms);
    free(due);
    free(drafts);
    free(scratch);
}

/* ---- what came out ---- */

/* The two times that a delivered copy ends with, and nothing broken before them. */
static void check_times(const store *s, const ts_pulled *got, const uint8_t *properties)
{
    ts_text name, value;
    int32_t at = 0, seen = 0;
    int64_t n;

    while (ts_pair_next(properties, got->properties_size, &at, &name, &value)) {
        CHECK(properties[at - 1] == 2 && value.size > 0 && name.size > 0);
        if (!TS_IS(&name, "TIMER_ENQUEUE_MS") && !TS_IS(&name, "TIMER_DEQUEUE_MS"))
            continue;
        CHECK(ts_decimal_get_i64(value.at, value.size, &n) == 0 && n <= got->store_ms);
        CHECK(n >= s->is.start_ms - s->is.precision_ms);
        CHECK(TS_IS(&name, "TIMER_ENQUEUE_MS") || n == got->store_ms);
        seen++;
    }
    CHECK(seen == 2 && TS_IS(&name, "__CRC32#") == s->is.property_crc);
}

static void check_pulled(const store *s, int32_t index, const ts_pulled *got, const uint8_t *body,
                         const uint8_t *properties, int32_t *handed)
{
    int64_t due_ms = ts_get_i64(body);
    ts_marks marks;

    CHECK(got->body_size >= 12 && ts_get_i32(body + 8) == index);
    CHECK(got->store_ms >= due_ms && got->delivered_ms == got->store_ms); /* never early */
    CHECK(got->store_host_size == 8 && memcmp(got->store_host, s->log.host, 8) == 0);
    ts_marks_get(properties, got->properties_size, &marks);
    CHECK(marks.unique_key.at == NULL ? s->heads[index] > 0 : marks.unique_key.size == 32);
    if (marks.out_ms < 0) { /* it was due when it was put */
        CHECK(marks.timer_id < 0 && got->due_ms == got->store_ms);
        return;
    }
    CHECK(got->due_ms == due_ms && marks.timer_id >= 0 && marks.store_id == STORE_ID);
    CHECK(s->due_ms[marks.timer_id] == due_ms && s->real[marks.timer_id] == index);
    check_times(s, got, properties);
    handed[marks.timer_id]++;
}

static void pull_all(store *s, int32_t *handed)
{
    for (int32_t index = 0; index < REAL; index++) {
        ts_pulled pulled[5];
        int64_t bodies_bytes = 200, properties_bytes = 900;
        uint8_t *bodies = bytes_of(bodies_bytes), *properties = bytes_of(properties_bytes);

        CHECK(ts_units_below(s->queues[index], s->counts[index], log_end(s)) == s->counts[index]);
        CHECK(ts_units_below(s->queues[index], s->counts[index], 0) == 0);
        for (int32_t at = 0, got; at < s->counts[index]; at += got) {
            int32_t count = s->counts[index] - at < 5 ? s->counts[index] - at : 5;

            got = ts_pull(&s->view, &s->routes[index], s->queues[index] + 20 * at, NULL, count, at,
                          log_end(s), s->is.precision_ms, pulled, bodies, bodies_bytes, properties,
                          properties_bytes);
            CHECK(got > 0);
            for (int32_t i = 0; i < got; i++)
                check_pulled(s, index, &pulled[i], bodies + pulled[i].body_at,
                             properties + pulled[i].properties_at, handed);
        }
        CHECK(ts_pull(&s->view, &s->routes[index], s->queues[index], NULL, 1, 0, 10, 1, pulled,
                      bodies, bodies_bytes, properties, properties_bytes) == 0); /* not durable yet */
        CHECK(ts_pull(&s->view, &s->routes[index], s->queues[index], NULL, 1, 0, log_end(s), 1,
                      pulled, bodies, 11, properties, properties_bytes) == TS_NEED_ROOM);
        CHECK(ts_pull(&s->view, &s->routes[index], s->queues[index], NULL, 1, 1, log_end(s), 1,
                      pulled, bodies, bodies_bytes, properties, properties_bytes) == TS_CORRUPT);
        CHECK(s->view.fault == TS_FAULT_TOPIC);
        free(bodies);
        free(properties);
    }
}

/* A recovery's fold of the whole log gives the same states and counts. */
static void check_scan(store *s)
{
    ts_route empty[ROUTES] = {0}, *folded[ROUTES];
    uint8_t *block = bytes_of(BLOCK_BYTES);
    ts_states states = {&block, 0, 0};
    ts_scanned out[9];
    int64_t at = 0, next, need = -1;
    int32_t got, kinds[7] = {0}, first = 1;

    for (int32_t i = 0; i < ROUTES; i++)
        folded[i] = &empty[i];
    s->view.end = log_end(s);
    do {
        got = ts_scan(&s->view, &s->known, s->is.precision_ms, at, &next, 9, out);
        CHECK(got >= 0);
        for (int32_t from = 0; from < got;) {
            from += ts_states_fold(&states, folded, out + from, got - from, STORE_ID, &need);
            if (from < got) {
                CHECK(first && need >= 0 && states.end == 0);
                states.end = TS_BLOCK_IDS;
                first = 0;
            }
        }
        for (int32_t i = 0; i < got; i++) {
            CHECK(out[i].log_offset >= at && out[i].log_offset < next);
            kinds[out[i].kind]++;
        }
        CHECK(s->view.group_end <= next || s->view.group_start < next);
        at = next;
    } while (got > 0);
    CHECK(s->view.fault == TS_FAULT_END && at == s->view.end);
    CHECK(s->view.group_end <= at); /* no group is open at its end */
    CHECK(kinds[TS_KIND_UNUSABLE] == 0 &&
          kinds[TS_KIND_DELETE] == s->log.cancel_count + s->log.reschedule_count);
    CHECK(kinds[TS_KIND_DELETE] + kinds[TS_KIND_TIMER] == s->routes[TIMER].next_offset);
    CHECK(states.waiting == s->states.waiting);
    CHECK(memcmp(block, s->blocks[0], TS_BLOCK_BYTES) == 0);
    for (int32_t i = 0; i < REAL; i++)
        CHECK(empty[i].pending == s->routes[i].pending);
    free(block);
}

static void check_end(store *s)
{
    int32_t *handed = bytes_of(IDS_MAX * (int64_t)sizeof *handed);
    int64_t ids[4], next = 0;

    dispatch(s);
    pull_all(s, handed);
    for (int64_t id = 0; id < IDS_MAX; id++) {
        int32_t state = ts_state_get(&s->states, id);

        CHECK(handed[id] == (s->due_ms[id] != 0 && !s->cancelled[id])); /* exactly once */
        CHECK(state == (s->due_ms[id] == 0    ? TS_NONE
                        : s->cancelled[id] ? TS_CANCELLED
                                           : TS_HANDED));
    }
    CHECK(s->states.waiting == 0 && s->open.heap.count == 0);
    CHECK(ts_states_waiting(&s->states, 0, ids, 4, &next) == 0 && next == s->states.end);
    for (int32_t i = 0; i < ROUTES; i++)
        CHECK(s->routes[i].pending == 0 && s->routes[i].next_offset == s->counts[i]);
    check_scan(s);
    free(handed);
}

/* ---- the whole way ---- */

static void step(store *s, uint64_t *seed)
{
    dispatch(s);
    if (below(seed, 4) == 0) /* slots are read before all that was put is linked */
        dequeue(s, 9);
    enqueue(s, 1 + below(seed, BATCH));
    if (below(seed, 3))
        enqueue(s, 200);
    dequeue(s, 1 + below(seed, 40));
    deliver(s, 1 + below(seed, 20));
}

static void test_way(const shape *is, uint64_t seed, int64_t *seen)
{
    store *s = make_store(is);

    for (int32_t round = 0; round < 120; round++) {
        if (round < 60) {
            put_many(s, &seed, below(&seed, REAL), 1 + below(&seed, 12),
                     (int32_t)is->precision_ms * (1 + below(&seed, 60)));
            put_one(s, below(&seed, REAL), s->now_ms + below(&seed, (int32_t)is->precision_ms * 3));
            for (int32_t i = below(&seed, 4); i > 0; i--) {
                int64_t id = below(&seed, (int32_t)s->routes[TIMER].next_offset + 1);
                if (s->due_ms[id] != 0 && below(&seed, 2))
                    cancel(s, id);
                else if (s->due_ms[id] != 0)
                    reschedule(s, id, s->now_ms + below(&seed, (int32_t)is->precision_ms * 90) -
                                          is->precision_ms * 9);
            }
        }
        if (round == 50)
            check_scan(s);
        if (below(&seed, 5)) /* else: it stalls, and late ones come */
            step(s, &seed);
        s->now_ms += below(&seed, (int32_t)is->precision_ms * 2);
    }
    CHECK(s->cuts > 3 && log_end(s) > is->segment_bytes);
    for (int32_t round = 0; round < 200 && s->states.waiting > 0; round++) {
        step(s, &seed);
        s->now_ms += is->precision_ms;
    }
    check_end(s);
    seen[0] += s->rolled;
    seen[1] += s->late;
    seen[2] += s->routes[TIMER].next_offset;
    free_store(s);
}

/* ---- the parts ---- */

/* Of what was read a slot is free, unless it is kept. */
static void check_kept(store *s, ts_link link, ts_request request)
{
    int64_t now = link.write_slot, wanted = now + 20, taken = wanted - 128;
    const int64_t kept[3] = {taken - 9, taken, taken + 1};
    uint8_t *units = bytes_of(TS_TIMER_UNIT_BYTES), *all = bytes_of(64 * TS_SLOT_BYTES);
    ts_slot before;
    ts_due late;

    ts_slot_get(s->wheel.slots + wanted % 64 * TS_SLOT_BYTES, &before);
    CHECK(before.time == taken);
    memcpy(all, s->wheel.slots, 64 * TS_SLOT_BYTES);
    request.due_ms = wanted * 1000 + 1;
    link.kept = kept;
    for (int32_t begin = 0; begin < 3; begin++) {
        for (int32_t count = 0; begin + count <= 3; count++) {
            int32_t has_it = begin <= 1 && begin + count > 1;

            link.kept = kept + begin;
            link.kept_count = count;
            link.read_below = taken + 1;
            CHECK(ts_timer_link(&s->wheel, &link, &s->states, &request, 1, units, 52, &late) == 1);
            CHECK(link.first_slot == wanted - has_it); /* else the one before, which is free */
            memcpy(s->wheel.slots, all, 64 * TS_SLOT_BYTES);
            link.read_below = taken; /* not read then */
            CHECK(ts_timer_link(&s->wheel, &link, &s->states, &request, 1, units, 52, &late) == 1);
            CHECK(link.first_slot == wanted - 1);
            memcpy(s->wheel.slots, all, 64 * TS_SLOT_BYTES);
        }
    }
    free(units);
    free(all);
}

/* What finds no slot: in the open slot, and in a chain of the far wheel; a delete nowhere. */
static void check_parked(store *s, ts_link link, ts_request request)
{
    uint8_t *units = bytes_of(TS_TIMER_UNIT_BYTES);
    ts_far_unit far;
    ts_due late;

    request.due_ms = (link.write_slot + 3) * 1000 + 1;
    link.parks = 1;
    link.parked = -3;
    link.far = &far;
    CHECK(ts_timer_link(&s->wheel, &link, &s->states, &request, 1, units, 52, &late) == 1);
    CHECK(link.late_count == 1 && late.slot == -1 && late.flags == 0);
    CHECK(late.wake_ms == request.due_ms && late.due_ms == request.due_ms);
    CHECK(link.far_count == 1 && far.slot == -3 && far.due_ms == request.due_ms);
    CHECK(link.bytes == 52 && ts_get_i64(units + TS_TIMER_AT_PREV_POS) == -1);
    request.flags = TS_FLAG_AGAIN; /* it has its unit */
    CHECK(ts_timer_link(&s->wheel, &link, &s->states, &request, 1, units, 52, &late) == 1);
    CHECK(link.late_count == 1 && link.far_count == 1 && link.bytes == 0);
    request.flags = TS_FLAG_DELETE;
    CHECK(ts_timer_link(&s->wheel, &link, &s->states, &request, 1, units, 52, &late) == 1);
    CHECK(link.late_count == 0 && link.far_count == 0 && link.bytes == 52);
    free(units);
}

static void test_taken_slots(void)
{
    const shape is = {1000, 1 << 16, 4096, 64, 1700000000000, 1};
    store *s = make_store(&is);
    int64_t first, last, now = s->now_ms / 1000, wanted = now + 5;
    int32_t count;
    ts_slot old = {wanted - 2 * is.slot_count, 0, 52, 1, 0};
    ts_request request = {.id = 0, .due_ms = wanted * 1000 + 1, .log_offset = 1, .size = 100};
    ts_link link = {.segment_bytes = 4096, .write_slot = now, .frontier = now + 1,
                    .reuse_below = now - 1000, .roll_slots = 50};
    uint8_t *units = bytes_of(2 * TS_TIMER_UNIT_BYTES);
    ts_due late[2];

    s->log.need = 0;
    give_states(s);
    CHECK(ts_state_set(&s->states, 0, TS_WAITING) == TS_NONE);
    ts_slot_put(s->wheel.slots + wanted % 64 * TS_SLOT_BYTES, &old);
    CHECK(ts_timer_link(&s->wheel, &link, &s->states, &request, 1, units, 104, late) == 1);
    CHECK(link.first_slot == wanted - 1 && link.late_count == 0); /* the one before, and it rolls */
    CHECK(ts_get_i32(units + TS_TIMER_AT_MAGIC) == (TS_TIMER_MAGIC_DEFAULT | TS_TIMER_MAGIC_ROLL));
    CHECK(ts_wheel_slot(&s->wheel, wanted - 1, &first, &last, &count) && first == 0 && count == 1);
    CHECK(!ts_wheel_slot(&s->wheel, wanted, &first, &last, &count));
    CHECK(ts_wheel_next(&s->wheel, now, now + 64) == wanted - 1);

    for (int64_t slot = now - 70; slot < now + 40; slot++) { /* every one is taken */
        ts_slot_get(s->wheel.slots + slot % 64 * TS_SLOT_BYTES, &old);
        if (old.time == 0) {
            old = (ts_slot){slot - is.slot_count, 0, 52, 1, 0};
            ts_slot_put(s->wheel.slots + slot % 64 * TS_SLOT_BYTES, &old);
        }
    }
    request.due_ms = (now + 3) * 1000 + 1;
    link.bytes = 0;
    CHECK(ts_timer_link(&s->wheel, &link, &s->states, &request, 1, units, 104, late) == TS_BLOCKED);
    request.due_ms = (now - 3) * 1000;
    CHECK(ts_timer_link(&s->wheel, &link, &s->states, &request, 1, units, 104, late) == TS_BLOCKED);
    CHECK(link.bytes == 0 && link.late_count == 0 && link.first_slot == INT64_MAX);
    check_kept(s, link, request);
    check_parked(s, link, request);
    link.reuse_below = now;
    CHECK(ts_timer_link(&s->wheel, &link, &s->states, &request, 1, units, 104, late) == 1);
    CHECK(link.late_count == 1 && late[0].slot < now && late[0].wake_ms == request.due_ms);
    CHECK(ts_timer_link(&s->wheel, &link, &s->states, &request, 1, units, 51, late) == 0);
    request.id = 77; /* does not wait: its unit is linked nowhere */
    CHECK(ts_timer_link(&s->wheel, &link, &s->states, &request, 1, units, 52, late) == 1);
    CHECK(ts_get_i64(units + TS_TIMER_AT_PREV_POS) == -1 && link.first_slot == INT64_MAX);
    memset(s->wheel.slots + (wanted - 1) % s->wheel.slot_count * 32, 0, 32);
    CHECK(!ts_wheel_slot(&s->wheel, wanted - 1, &first, &last, &count));
    free(units);
    free_store(s);
}

/* A sealed unit whose bits changed, or that lies elsewhere; and one that was never sealed. */
static void test_seals(void)
{
    const ts_timer_unit in = {.prev_pos = 52, .magic = 1, .write_ms = 1700000000000,
                              .delay_ms = 5000, .log_offset = 4096, .size = 300};
    uint8_t *units = bytes_of(2 * TS_TIMER_UNIT_BYTES), is_sound[2];
    ts_timer_unit out;

    for (int64_t pos = 104; pos < (int64_t)1 << 33; pos = pos * 3 + 52) {
        ts_sealed_put(units, pos, &in);
        CHECK(ts_sealed_get(units, pos, &out) == 0 && out.log_offset == in.log_offset);
        CHECK(ts_sealed_get(units, pos + 52, &out) < 0);
        for (int32_t bit = 0; bit < 8 * TS_TIMER_UNIT_BYTES; bit++) {
            units[bit / 8] ^= (uint8_t)(1 << bit % 8);
            CHECK(ts_sealed_get(units, pos, &out) < 0);
            units[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        memcpy(units + TS_TIMER_UNIT_BYTES, units, TS_TIMER_UNIT_BYTES); /* as a stray block */
        ts_units_check(units, 2, pos, is_sound);
        CHECK(is_sound[0] && !is_sound[1]);
        ts_put_i64(units + TS_TIMER_AT_SEAL, 0);
        CHECK(ts_sealed_get(units, pos, &out) == 0);
    }
    free(units);
}

/* Chains that point at themselves, forward, outside or at what is no unit. */
static void test_chains(void)
{
    const struct {
        int64_t prev;
        int32_t size, status;
    } cases[] = {{-1, 52, 1}, {52, 52, TS_CORRUPT}, {104, 52, TS_CORRUPT}, {0, 52, 2},
                 {INT64_MAX, 52, TS_CORRUPT}, {1, 52, 1}, {-7, 52, TS_CORRUPT}, {-1, 51, TS_CORRUPT}};
    uint8_t *units = bytes_of(2 * TS_TIMER_UNIT_BYTES), *slots = bytes_of(8 * TS_SLOT_BYTES), dirty;
    const uint8_t *segments[1] = {units};
    ts_view view = {.segments = segments, .segment_count = 1, .segment_bytes = 4096, .end = 104};
    ts_wheel wheel = {slots, &dirty, 8, 1000};
    ts_chained out[4];
    ts_patch patches[8];
    int64_t slot = 3, next, position;
    uint8_t is_kept = 0;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ts_timer_unit unit = {.prev_pos = -1, .magic = 1, .write_ms = 3000};
        int32_t is_sound = cases[i].status > 0 && cases[i].prev != 1;

        ts_slot_put(slots + 3 * TS_SLOT_BYTES, &(ts_slot){3, 0, 52, 2, 0});
        ts_timer_unit_put(units, &unit);
        unit.prev_pos = cases[i].prev;
        ts_timer_unit_put(units + 52, &unit);
        ts_put_i32(units + 52, cases[i].size);
        next = -1;
        CHECK(ts_wheel_load(&view, &wheel, slot, &next, 4, out) ==
              (cases[i].status > 0 ? cases[i].status : TS_CORRUPT));
        position = -2;
        CHECK(ts_wheel_load_many(&view, &wheel, &slot, &position, 1, 4, out) == cases[i].status);
        CHECK((ts_wheel_recount(&view, &wheel, 3, &(ts_chain_walk){0}) == TS_OK) == is_sound);
        ts_slot_put(slots + 3 * TS_SLOT_BYTES, &(ts_slot){3, 0, 52, 2, 0});
        CHECK((ts_wheel_rechain(&view, &wheel, 3, 2, &slot, &is_kept, 0, patches, 8,
                                &(ts_chain_walk){0}) >= 0) == is_sound);
        ts_slot_put(slots + 3 * TS_SLOT_BYTES, &(ts_slot){3, 0, 52, 2, 0});
        CHECK((ts_wheel_cut(&view, &wheel, 0) >= 0) == is_sound);
    }
    ts_slot_put(slots + 3 * TS_SLOT_BYTES, &(ts_slot){3, 0, 104, 2, 0}); /* behind the end */
    next = -1;
    CHECK(ts_wheel_load(&view, &wheel, 3, &next, 4, out) == TS_CORRUPT);
    CHECK(view.fault == TS_FAULT_CHAIN && view.fault_offset == 104);
    free(units);
    free(slots);
}

/* Far units: five of two slots in files of two, 20 bytes of each unused; then every bit of one. */
static void test_far_units(void)
{
    enum { COUNT = 5, FILE_BYTES = 124 };
    ts_far_unit units[COUNT], out[COUNT];
    const int32_t places[COUNT] = {0, 1, 0, 0, 1};
    int64_t heads[2] = {-1, -1}, number;
    uint8_t *packed = bytes_of(COUNT * 52), *files = bytes_of(3 * FILE_BYTES);
    const uint8_t *segments[3] = {files, files + FILE_BYTES, files + 2 * FILE_BYTES};
    ts_view view = {.segments = segments, .segment_count = 3, .segment_bytes = FILE_BYTES,
                    .end = 2 * FILE_BYTES + 52};

    for (int32_t i = 0; i < COUNT; i++)
        units[i] = (ts_far_unit){.id = 10 + i, .log_offset = 100 * i, .due_ms = INT64_MAX - i,
                                 .slot = 7 + places[i], .size = 1 + i, .topic_hash = -i};
    ts_far_link(units, places, COUNT, 0, heads, packed);
    CHECK(heads[0] == 3 && heads[1] == 4);
    for (int32_t i = 0; i < COUNT; i++)
        memcpy(files + i / 2 * FILE_BYTES + i % 2 * 52, packed + 52 * i, 52);
    number = heads[0];
    CHECK(ts_far_walk(&view, 7, &number, 2, out) == 2 && number == 0);
    CHECK(out[0].id == 13 && out[1].id == 12 && out[1].due_ms == INT64_MAX - 2);
    CHECK(ts_far_walk(&view, 7, &number, 2, out) == 1 && number == -1 && out[0].id == 10);
    CHECK(ts_far_walk(&view, 7, &number, 2, out) == 0);
    number = heads[0];
    CHECK(ts_far_walk(&view, 8, &number, 2, out) == TS_CORRUPT); /* of another slot */
    CHECK(ts_far_scan(&view, 0, COUNT, out) == COUNT && memcmp(out, units, sizeof out) == 0);
    number = 5; /* behind the end */
    CHECK(ts_far_walk(&view, 7, &number, 2, out) == TS_CORRUPT);
    for (int32_t bit = 0; bit < 52 * 8; bit++) {
        files[2 * FILE_BYTES + bit / 8] ^= (uint8_t)(1 << bit % 8);
        number = 4;
        CHECK(ts_far_walk(&view, 8, &number, 2, out) == TS_CORRUPT &&
              view.fault == TS_FAULT_CHAIN && view.fault_offset == 2 * FILE_BYTES);
        files[2 * FILE_BYTES + bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    memset(files, 0, 52);
    CHECK(ts_far_scan(&view, 0, COUNT, out) == TS_CORRUPT);
    view.segment_count = 2;
    number = 4;
    CHECK(ts_far_walk(&view, 8, &number, 2, out) == TS_NEED_SEGMENT && view.need == 2);
    free(packed);
    free(files);
}

static void test_needs(void)
{
    const shape is = {1000, 1 << 14, 4096, 64, 1700000000000, 1};
    store *s = make_store(&is);
    ts_view *view = &s->view;
    const uint8_t *mapped;
    uint8_t units[60], body[4] = "body", *big = bytes_of(TS_PROPERTIES_BYTES_MAX);
    ts_request request;
    ts_scanned scanned;
    ts_chained chained = {.log_offset = 0, .slot = 1, .size = 100};
    ts_due due;
    int64_t next, offsets[3];
    int32_t indexes[3], got;

    CHECK(ts_put_one(&s->log, s->routes, body, 4, s->now_ms + 1, NULL, 0, s->now_ms) ==
          TS_NEED_STATES && s->log.need == 0 && s->log.filled == 0);
    give_states(s);
    s->log.room_end = 100;
    CHECK(ts_put_one(&s->log, s->routes, body, 4, 0, NULL, 0, s->now_ms) == TS_NEED_ROOM);
    CHECK(s->log.need > 100 && s->log.filled == 0 && s->routes[0].next_offset == 0);
    s->log.room_end = is.segment_bytes - 16;
    CHECK(ts_put_one(&s->log, s->routes, body, 4, 0, big, TS_PROPERTIES_BYTES_MAX, s->now_ms) ==
          TS_INVALID);
    CHECK(ts_put_one(&s->log, s->routes, body, 4, s->now_ms + 5, NULL, 0, s->now_ms) == 0);
    CHECK(ts_put_one(&s->log, s->routes, body, 4, 0, NULL, 0, s->now_ms) > 0);
    CHECK(ts_cancel(&s->log, s->routes, 5, NULL, 0, s->now_ms) == TS_NONE);
    view->end = log_end(s);
    CHECK(ts_dispatch(view, &s->known, NULL, 0, 0, &next, 3, units, indexes, offsets, NULL, NULL, NULL) ==
          TS_NEED_ROUTE && view->need == 0 && next == 0);
    CHECK(ts_scan(view, &s->known, 1000, 0, &next, 1, &scanned) == TS_NEED_ROUTE);
    know_route(s, TIMER);
    CHECK(ts_scan(view, &s->known, 1000, 0, &next, 1, &scanned) == TS_NEED_ROUTE); /* real */
    got = ts_dispatch(view, &s->known, NULL, 0, 0, &next, 3, units, indexes, offsets, NULL, NULL, NULL);
    CHECK(got == 1 && next > 0 && next < view->end && indexes[0] == TIMER);
    know_route(s, 0);
    CHECK(ts_dispatch(view, &s->known, NULL, 0, 0, &next, 3, units, indexes, offsets, NULL, NULL, NULL) == 2);
    CHECK(next == view->end && offsets[1] == 0 && indexes[1] == 0);

    mapped = s->segments[0];
    s->segments[0] = NULL;
    CHECK(ts_dispatch(view, &s->known, NULL, 0, 0, &next, 3, units, indexes, offsets, NULL, NULL, NULL) ==
          TS_NEED_SEGMENT && view->need == 0);
    CHECK(ts_scan(view, &s->known, 1000, 0, &next, 1, &scanned) == TS_NEED_SEGMENT);
    CHECK(ts_timer_requests(view, units, 1, 0, &s->states, STORE_ID, 1000, &request) == TS_NEED_SEGMENT);
    CHECK(ts_due_load(view, &s->states, STORE_ID, 1000, 1, &chained, 1, &due) == TS_NEED_SEGMENT);
    s->segments[0] = (uint8_t *)(uintptr_t)mapped;
    CHECK(ts_timer_requests(view, units, 1, 0, &s->states, STORE_ID, 1000, &request) == 1);
    CHECK(ts_timer_requests(view, units, 1, 1, &s->states, STORE_ID, 1000, &request) == TS_CORRUPT);
    CHECK(ts_timer_requests(view, units, 1, 0, &s->states, 5, 1000, &request) == 1 && request.id == 0);
    chained.size = request.size;
    CHECK(ts_due_load(view, &s->states, STORE_ID, 1000, s->now_ms / 1000 + 1, &chained, 1, &due) ==
          1 && view->need == 1 && due.id == 0 && due.due_ms == s->now_ms + 5);
    free(big);
    free_store(s);
}

/* A log that is cut anywhere in a group ends where the group begins; one whose records do not go on
 * as they said has no group. */
static void test_groups(int32_t property_crc, int32_t pad)
{
    const shape is = {1000, 1 << 14, 4096, 64, 1700000000000, property_crc};
    store *s = make_store(&is);
    ts_scanned out[4];
    uint8_t *whole = bytes_of(is.segment_bytes), body[600] = {0};
    int64_t start, middle, end, next;

    for (int32_t i = 0; i < ROUTES; i++)
        know_route(s, i);
    CHECK(ts_put_one(&s->log, s->routes, body, pad, 0, NULL, 0, s->now_ms) == 0);
    put_one(s, 0, s->now_ms + 5000);
    start = log_end(s);
    reschedule(s, 0, s->now_ms + 9000);
    CHECK(s->log.reschedule_count == 1 && s->states.waiting == 1 && s->routes[0].pending == 1);
    end = log_end(s);
    s->view.end = end;
    CHECK(ts_scan(&s->view, &s->known, 1000, 0, &next, 4, out) == 4 && next == end);
    CHECK(s->view.group_start == start && s->view.group_end == end);
    CHECK(out[2].kind == TS_KIND_DELETE && out[2].timer_id == 0 && out[3].timer_id == 2);
    middle = out[3].log_offset;
    memcpy(whole, s->segments[0], (size_t)is.segment_bytes);
    for (int64_t cut = start + 1; cut <= end; cut++) { /* zeros from here on */
        if (cut % 512 != 0 && cut != end)
            continue; /* whole sectors: a record that lost its end lost its own CRC, too */
        memset(s->segments[0] + cut, 0, (size_t)(end - cut));
        s->view.end = is.segment_bytes;
        s->view.group_end = 0;
        CHECK(ts_scan(&s->view, &s->known, 1000, 0, &next, 4, out) >= 1);
        CHECK(cut == end ? s->view.group_end == next : next == start || s->view.group_end > next);
        CHECK(next == start || s->view.group_start == start);
        memcpy(s->segments[0] + start, whole + start, (size_t)(end - start));
    }
    s->view.end = end;
    s->view.group_end = 0; /* in batches of one the group stays open between them */
    CHECK(ts_scan(&s->view, &s->known, 1000, start, &next, 1, out) == 1 && next == middle);
    CHECK(s->view.group_start == start && s->view.group_end == end);
    CHECK(ts_scan(&s->view, &s->known, 1000, middle, &next, 1, out) == 1);
    CHECK(s->view.group_end == next);
    s->view.group_end = 0; /* the second alone opens nothing */
    CHECK(ts_scan(&s->view, &s->known, 1000, middle, &next, 1, out) == 1);
    CHECK(s->view.group_end == 0);
    s->log.filled = s->filled_mark = middle; /* another record follows where the second was */
    CHECK(ts_put_one(&s->log, s->routes, body, 12, 0, NULL, 0, s->now_ms) == middle);
    s->view.end = log_end(s);
    CHECK(ts_scan(&s->view, &s->known, 1000, start, &next, 4, out) == 2);
    CHECK(s->view.group_end == 0 && next == s->view.end);
    free(whole);
    free_store(s);
}

/* A handle's names in a chain: topic, key and slot time, all three. */
static void test_chained_find(void)
{
    const shape is = {1000, 1 << 14, 4096, 64, 1700000000000, 1};
    store *s = make_store(&is);
    const uint8_t *orders = (const uint8_t *)"orders", *mail = (const uint8_t *)"mail12";
    uint8_t key[32];
    ts_chained chained[12];
    int32_t at = 0;
    int64_t id = -1, out_ms = is.start_ms + 4000;

    for (int32_t i = 0; i < 12; i++)
        put_one(s, i % 2, s->now_ms + 5000 + (i == 7));
    for (int32_t i = 0; i < 12; i++)
        chained[i] = (ts_chained){.log_offset = s->source_at[i]};
    s->view.end = log_end(s);
    memcpy(key, "7F00000100000000ABCD000000000003", 32);
    CHECK(ts_chained_find(&s->view, chained, 12, orders, 6, key, 32, out_ms, &s->states, STORE_ID, &at, &id) ==
          1 && at == 3 && id == 3);
    at++;
    CHECK(ts_chained_find(&s->view, chained, 12, orders, 6, key, 32, out_ms, &s->states, STORE_ID, &at, &id) ==
          0 && at == 12);
    at = 0;
    CHECK(ts_chained_find(&s->view, chained, 12, mail, 6, key, 32, out_ms, &s->states, STORE_ID, &at, &id) == 0);
    at = 0;
    CHECK(ts_chained_find(&s->view, chained, 12, orders, 6, key, 31, out_ms, &s->states, STORE_ID, &at, &id) ==
          0);
    at = 0;
    key[31] = '7';
    CHECK(ts_chained_find(&s->view, chained, 12, orders, 6, key, 32, out_ms, &s->states, STORE_ID, &at, &id) ==
          0); /* its slot is the next one */
    at = 0;
    CHECK(ts_chained_find(&s->view, chained, 12, orders, 6, key, 32, out_ms + 1000, &s->states, 7, &at, &id) ==
          1 && at == 7 && id == 7);
    s->view.end = s->source_at[5];
    at = 0;
    CHECK(ts_chained_find(&s->view, chained, 12, orders, 6, key, 32, 5, &s->states, 7, &at, &id) ==
          TS_CORRUPT && at == 5);
    free_store(s);
}

/* A batch on its way into the open slot: as a run, or one by one. */
static void open_push(ts_open *open, const ts_due *in, int32_t count, int32_t as_run)
{
    ts_heap_key *keys;
    ts_due *entries;

    if (!as_run) {
        ts_heap_push(&open->heap, in, count);
        return;
    }
    keys = bytes_of(2 * (count + 1) * (int64_t)sizeof *keys);
    entries = bytes_of((count + 1) * (int64_t)sizeof *entries);
    ts_run_sort(in, count, keys, entries);
    open->runs[open->run_count++] = (ts_run){entries, 0, count};
    free(keys);
}

static int64_t open_count(const ts_open *open)
{
    int64_t count = open->heap.count;

    for (int64_t i = 0; i < open->run_count; i++)
        count += open->runs[i].end - open->runs[i].at;
    return count;
}

/* The last few runs become one. */
static void open_merge(ts_open *open, int64_t run_count)
{
    ts_run *runs = &open->runs[open->run_count - run_count];
    int64_t count = 0;
    ts_due *entries;

    for (int64_t i = 0; i < run_count; i++)
        count += runs[i].end - runs[i].at;
    entries = bytes_of((count + 1) * (int64_t)sizeof *entries);
    ts_runs_merge(runs, run_count, entries);
    for (int64_t i = 0; i < run_count; i++)
        free((void *)(uintptr_t)runs[i].entries);
    *runs = (ts_run){entries, 0, count};
    open->run_count -= run_count - 1;
}

static void check_order(const ts_due *out, int64_t got, int64_t until)
{
    for (int64_t i = 0; i < got; i++) {
        CHECK(out[i].wake_ms <= until);
        CHECK(i == 0 || out[i - 1].wake_ms < out[i].wake_ms ||
              (out[i - 1].wake_ms == out[i].wake_ms && out[i - 1].id <= out[i].id));
    }
}

static void test_open(void)
{
    enum { CAPACITY = 100, MANY = 5000 };
    uint64_t seed = 3;
    ts_open open = {.run_count = 0};
    ts_due *in = bytes_of(MANY * (int64_t)sizeof *in), *out = bytes_of(MANY * (int64_t)sizeof *out);

    make_heap(&open.heap, CAPACITY);
    for (int32_t round = 0; round < 2000; round++) {
        int32_t as_run = below(&seed, 2) && open.run_count < 8;
        int32_t count = as_run ? below(&seed, below(&seed, 20) ? 40 : MANY)
                               : below(&seed, CAPACITY - (int32_t)open.heap.count + 1);
        int64_t had, until = below(&seed, 30), got, scale = below(&seed, 3) ? 1 : 1000003;

        for (int32_t i = 0; i < count; i++)
            in[i] = (ts_due){.wake_ms = below(&seed, 30) - below(&seed, 30) * (scale > 1),
                             .id = below(&seed, 1000) * scale};
        open_push(&open, in, count, as_run);
        if (open.run_count > 1 && below(&seed, 3) == 0)
            open_merge(&open, 2 + below(&seed, (int32_t)open.run_count - 1));
        had = open_count(&open);
        got = ts_open_pop(&open, until, 0, 1000, out, 1 + below(&seed, MANY));
        CHECK(open_count(&open) == had - got && !open.is_full);
        CHECK(open.heap.count + open.heap.unused_count == CAPACITY);
        check_order(out, got, until);
        CHECK(got == 0 || ts_open_wake(&open) >= out[got - 1].wake_ms);
    }
    while (ts_open_pop(&open, INT64_MAX, 0, 1000, out, MANY) > 0) {
    }
    CHECK(open_count(&open) == 0 && ts_open_wake(&open) == INT64_MAX);
    in[0] = (ts_due){.wake_ms = 10, .due_ms = 25, .id = 1, .flags = TS_FLAG_ROLL};
    in[1] = (ts_due){.wake_ms = 10, .due_ms = 5000, .id = 2, .flags = TS_FLAG_ROLL};
    for (int32_t as_run = 0; as_run < 2; as_run++) {
        open_push(&open, in, 2, as_run); /* the first one's own slot is loaded: it waits */
        CHECK(ts_open_pop(&open, 20, 1, 1000, out, CAPACITY) == 1 && out[0].id == 2 && out[0].flags);
        CHECK(ts_open_pop(&open, 24, 1, 1000, out, CAPACITY) == 0 && ts_open_wake(&open) == 25);
        CHECK(ts_open_pop(&open, 25, 1, 1000, out, CAPACITY) == 1 && out[0].id == 1);
        CHECK(!out[0].flags);
    }
    for (int32_t i = 0; i < CAPACITY; i++)
        out[i] = (ts_due){.wake_ms = 99, .due_ms = 99, .id = i};
    ts_heap_push(&open.heap, out, CAPACITY); /* no room for one whose roll is off */
    open_push(&open, in, 1, 1);
    CHECK(ts_open_pop(&open, 20, 1, 1000, out, 9) == 0 && open.is_full);
    free_open(&open);
    free(in);
    free(out);
}

static void test_states(void)
{
    uint8_t *blocks[2] = {bytes_of(BLOCK_BYTES), bytes_of(BLOCK_BYTES)};
    ts_states states = {blocks, 2 * TS_BLOCK_IDS, 0};
    int64_t ids[6] = {0, 3, TS_CHUNK_IDS - 1, TS_CHUNK_IDS, TS_BLOCK_IDS, 2 * TS_BLOCK_IDS - 1};
    int64_t got[6], next, chunks[5];
    uint8_t *payloads = bytes_of(5 * TS_CHUNK_BYTES);

    ts_states_set_many(&states, ids, 6, TS_WAITING);
    CHECK(states.waiting == 6);
    CHECK(ts_states_waiting(&states, 0, got, 6, &next) == 6 && memcmp(got, ids, sizeof ids) == 0);
    CHECK(ts_states_waiting(&states, 0, got, 2, &next) == 2 && next == 4);
    CHECK(ts_states_waiting(&states, next, got, 6, &next) == 4 && next == states.end);
    CHECK(ts_states_copy_dirty(&states, chunks, payloads, 1) == 1 && chunks[0] == 0);
    CHECK(ts_states_copy_dirty(&states, chunks, payloads, 5) == 3);
    CHECK(chunks[0] == 1 && chunks[1] == 128 && chunks[2] == 255 && payloads[0] == 1);
    CHECK(ts_states_copy_dirty(&states, chunks, payloads, 5) == 0);
    CHECK(ts_state_set(&states, 3, TS_HANDED) == TS_WAITING && states.waiting == 5);
    CHECK(ts_state_get(&states, 3) == TS_HANDED && ts_state_get(&states, 2) == TS_NONE);
    CHECK(ts_state_set(&states, states.end, TS_WAITING) == TS_NEED_STATES);
    CHECK(ts_state_set(&states, -1, TS_WAITING) == TS_NEED_STATES && states.waiting == 5);
    CHECK(ts_state_get(&states, -1) == TS_NONE && ts_state_get(&states, INT64_MAX) == TS_NONE);
    free(blocks[0]);
    free(blocks[1]);
    free(payloads);
}

/* ---- damage ---- */

/* A store's bytes in buffers of their own, to be damaged; the same before. */
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

    for (int32_t n = 1 + below(seed, 3); n > 0 && size > 8; n--) {
        int64_t i = below(seed, (int32_t)size - 8);

        switch (below(seed, 6)) {
        case 0:
        case 1:
            at[i] ^= (uint8_t)(1 << below(seed, 8));
            break;
        case 2:
            at[i] = (uint8_t)below(seed, 256);
            break;
        case 3:
            ts_put_i64(at + i, numbers[below(seed, 8)]);
            break;
        case 4:
            ts_put_i32(at + i, (int32_t)numbers[below(seed, 8)]);
            break;
        default:
            memmove(at + i, at + below(seed, (int32_t)size - 8), 8);
        }
    }
}

/* Fields of a unit or a slot at once: where sums and products are made. */
static void damage_field(uint8_t *at, int64_t count, int32_t bytes, int32_t field, uint64_t *seed)
{
    static const int64_t numbers[] = {INT64_MAX, INT64_MIN, INT64_MAX - 1000, -1, 52, 0};

    if (count > 0 && below(seed, 8) == 0)
        ts_put_i64(at + below(seed, (int32_t)count) * bytes + field, numbers[below(seed, 6)]);
}

static void open_broken(broken *b, const store *s, uint64_t *seed)
{
    int32_t what = below(seed, 8);

    b->log_bytes = log_end(s);
    b->timer_bytes = s->timer_end;
    b->slot_count = s->wheel.slot_count;
    if (what == 0)
        b->log_bytes = below(seed, (int32_t)b->log_bytes);
    if (what == 1)
        b->timer_bytes = below(seed, (int32_t)b->timer_bytes);
    b->log = check_copy(s->segments[0], (size_t)b->log_bytes);
    b->timer_log = check_copy(s->timer_segments[0], (size_t)b->timer_bytes);
    b->slots = check_copy(s->wheel.slots, (size_t)b->slot_count * TS_SLOT_BYTES);
    b->dirty = bytes_of((b->slot_count * TS_SLOT_BYTES + 4095) / 4096);
    for (int32_t i = 0; i < ROUTES; i++) {
        b->counts[i] = s->counts[i];
        b->queues[i] = check_copy(s->queues[i], (size_t)b->counts[i] * 20);
        if (what == 2 || below(seed, 12) == 0)
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
    b->wheel = (ts_wheel){b->slots, b->dirty, b->slot_count, s->wheel.precision_ms};
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

/* What the readers of a damaged store write to. */
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

    got = ts_dispatch(&b->view, &r->s->known, levels, 2, 0, &next, 256, units, indexes, offsets, NULL, NULL, NULL);
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

/* Slots in every way; what they hold goes on to due entries. */
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
    for (int32_t at = 0; at < count; at += got > 0 ? got : 1) { /* a bad one is passed over */
        got = ts_due_load(&b->view, &r->states, STORE_ID, r->s->is.precision_ms, base + 30,
                          chained + at, count - at, r->due + r->due_count);
        CHECK(is_status(got));
        r->due_count += got > 0 ? (int32_t)b->view.need : 0;
    }
    CHECK(is_status(ts_timer_log_loose(&b->timer_view, &b->wheel, 0, &next, base, NULL, 0, patches,
                                       64)));
    CHECK(is_status(ts_timer_log_loose(&b->timer_view, &b->wheel, 0, &next, base, living, 3,
                                       patches, 64)));
    for (int32_t i = 0; i < 64; i += 7)
        CHECK(is_status(ts_wheel_recount(&b->timer_view, &b->wheel, slots[i],
                                         &(ts_chain_walk){0})) &&
              is_status(ts_wheel_held(&b->timer_view, &b->wheel, slots[i], 0, held, 3,
                                      &(ts_chain_walk){0})) &&
              is_status(ts_wheel_rechain(&b->timer_view, &b->wheel, slots[i], base, living,
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
                        .write_slot = now, .frontier = now + 1, .reuse_below = now - 30,
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

/* Due entries of damaged units, delivered into a log of their own. */
static void read_sources(reading *r, uint64_t *seed)
{
    int64_t base = r->s->is.start_ms / r->s->is.precision_ms, scratch_bytes = 4096, mark = 0;
    uint8_t *scratch = bytes_of(scratch_bytes), *staging = bytes_of(16384);
    int64_t slots[256], counts[256];
    ts_draft *drafts = bytes_of(256 * (int64_t)sizeof *drafts);
    ts_log log = r->s->log;
    const ts_route *targets[2] = {&r->s->routes[TIMER], r->s->routes};
    int32_t got;

    log.staging = staging;
    log.filled_mark = &mark;
    log.base = log.filled = 0;
    log.staging_bytes = log.room_end = 16384;
    log.states = &r->states;
    for (int32_t i = 0; i < r->due_count; i++)
        r->due[i].flags = below(seed, 4) ? r->due[i].flags : TS_FLAG_ROLL;
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

/* A small store: one segment of log and timer log, some of it in the level topic. */
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
    CHECK(s->states.waiting > 4);
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
        r->states = (ts_states){&block, TS_BLOCK_IDS, s->states.waiting};
        open_broken(&r->b, s, &seed);
        read_log(r);
        memcpy(block, s->blocks[0], 256);
        read_queues(r);
        read_timers(r);
        close_broken(&r->b);
        open_broken(&r->b, s, &seed); /* linking has changed the wheel: others for the readers */
        read_wheel(r);
        read_sources(r, &seed);
        close_broken(&r->b);
        for (int32_t i = 0; i < ROUTES; i++) {
            delivered += s->routes[i].next_offset - offsets[i];
            s->routes[i].pending = pending[i];
            s->routes[i].next_offset = offsets[i];
        }
    }
    CHECK(delivered > rounds); /* the sound ones among them went on */
    free(r);
    free(block);
    free_store(s);
}

int main(void)
{
    static const shape shapes[] = {
        {1000, 1 << 14, 52 * 11 + 20, 64, 1700000000000, 1},
        {1000, 1 << 15, 52 * 7 + 16, 40, 1700000000123, 0},
        {100, 1 << 14, 4096, 64, 1700000000050, 1},
        {1000, 1 << 14, 52 * 5 + 67, 64, 900000000000000123, 1}, /* clocks may say anything */
    };
    int64_t seen[3] = {0};

    test_open();
    test_states();
    test_needs();
    for (int32_t pad = 0; pad < 600; pad += 8)
        test_groups(pad / 8 % 2, pad);
    test_chained_find();
    test_taken_slots();
    test_seals();
    test_chains();
    test_far_units();
    for (uint64_t seed = 1; seed <= 12; seed++)
        test_way(&shapes[seed % 4], seed, seen);
    CHECK(seen[0] > 100 && seen[1] > 100 && seen[2] > 2000); /* rolled, late, all */
    test_damage(1, 10000, 5);
    test_damage(0, 10000, 6);
    puts("test_engine: ok");
    return 0;
}
