/* The store in memory: making it, and giving it space. */
#include "store.h"

#include "base/hash.h"
#include "format/wheel_slot.h"
#include "log/parse.h"

void *bytes_of(int64_t size)
{
    void *at = calloc(1, (size_t)size);

    CHECK(at != NULL);
    return at;
}

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

void know_route(store *s, int32_t index)
{
    ts_route *route = &s->routes[index];
    uint64_t at = ts_route_key(route->topic, route->topic_size, route->queue_id) & s->known.mask;

    while (s->table[at] != NULL)
        at = (at + 1) & s->known.mask;
    s->table[at] = route;
}

uint8_t *log_segment(store *s, int64_t number)
{
    CHECK(number < SEGMENTS);
    if (s->segments[number] == NULL)
        s->segments[number] = bytes_of(s->is.segment_bytes);
    return s->segments[number];
}

void make_heap(ts_heap *heap, int64_t capacity)
{
    heap->keys = bytes_of(capacity * (int64_t)sizeof *heap->keys);
    heap->entries = bytes_of(capacity * (int64_t)sizeof *heap->entries);
    heap->unused = bytes_of(capacity * (int64_t)sizeof *heap->unused);
    heap->capacity = heap->unused_count = capacity;
    heap->count = 0;
    for (int64_t i = 0; i < capacity; i++)
        heap->unused[i] = i;
}

void free_heap(ts_heap *heap)
{
    free(heap->keys);
    free(heap->entries);
    free(heap->unused);
}

void free_open(ts_open *open)
{
    for (int64_t i = 0; i < open->run_count; i++)
        free((void *)(uintptr_t)open->runs[i].entries);
    free_heap(&open->heap);
}

/* Load the entries of a slot, mostly as a run. Frees the runs that are used up. */
void load_open(store *s, const ts_due *in, int32_t count)
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

store *make_store(const shape *is)
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
                      .append_limit = is->segment_bytes - 16, .precision_ms = is->precision_ms,
                      .timer_route = &s->routes[TIMER], .states = &s->states,
                      .store_id = STORE_ID, .property_crc = is->property_crc,
                      .mark_crc = !is->property_crc,
                      .host = {127, 0, 0, 1, 0, 0, 0x2A, 0x9F}};
    memcpy(s->log.unique_prefix, "7F00000100000000ABCD", 20);
    s->view = (ts_view){.segments = (const uint8_t **)s->segments, .segment_count = SEGMENTS,
                        .segment_bytes = is->segment_bytes};
    s->timer_view = (ts_view){.segments = (const uint8_t **)s->timer_segments,
                              .segment_count = TIMER_SEGMENTS,
                              .segment_bytes = is->timer_segment_bytes};
    s->wheel = (ts_wheel){.slots = bytes_of(is->slot_count * TS_SLOT_BYTES),
                          .dirty_pages = bytes_of((is->slot_count * TS_SLOT_BYTES + 4095) / 4096),
                          .slot_count = is->slot_count,
                          .precision_ms = is->precision_ms};
    s->read_slot = s->now_ms / is->precision_ms;
    make_heap(&s->open.heap, IDS_MAX);
    return s;
}

void free_store(store *s)
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

int64_t log_end(const store *s)
{
    return s->log.base + s->log.filled;
}

void give_states(store *s)
{
    CHECK(s->states.end == 0 && s->log.need >= 0);
    s->blocks[0] = bytes_of(BLOCK_BYTES);
    s->states.end = TS_BLOCK_IDS;
}

/* Make the next segment the staging. */
void give_space(store *s)
{
    CHECK(s->log.need > 0);
    CHECK(ts_blank(&s->log) == TS_OK);
    CHECK(ts_staged_bytes(s->log.staging, s->is.segment_bytes, s->log.base, s->filled_mark) ==
          s->log.filled);
    s->filled_mark = 0;
    s->log.base = (s->log.base / s->is.segment_bytes + 1) * s->is.segment_bytes;
    s->log.filled = 0;
    s->log.staging = log_segment(s, s->log.base / s->is.segment_bytes);
    s->log.append_limit = s->log.base + s->is.segment_bytes - 16;
}

void serve_log(store *s, int64_t status)
{
    if (status == TS_NEED_STATES)
        give_states(s);
    else {
        CHECK(status == TS_NEED_SPACE);
        give_space(s);
    }
}
