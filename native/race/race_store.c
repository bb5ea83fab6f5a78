/* The store that all threads share, and the end of its log. */
#include "race_store.h"

store *s;

void lock(pthread_mutex_t *mutex)
{
    CHECK(pthread_mutex_lock(mutex) == 0);
}

void unlock(pthread_mutex_t *mutex)
{
    CHECK(pthread_mutex_unlock(mutex) == 0);
}

int64_t get(const int64_t *of)
{
    int64_t value;

    lock(&s->given);
    value = *of;
    unlock(&s->given);
    return value;
}

void set(int64_t *of, int64_t value)
{
    lock(&s->given);
    *of = value;
    unlock(&s->given);
}

int is_over(void)
{
    int over;

    lock(&s->given);
    over = s->stopping;
    unlock(&s->given);
    return over;
}

void *zeros(int64_t size)
{
    void *at = calloc(1, (size_t)size);

    CHECK(at != NULL);
    return at;
}

ts_view log_view(void)
{
    return (ts_view){.segments = (const uint8_t **)s->segments, .segment_count = SEGMENTS,
                     .segment_bytes = SEGMENT, .end = get(&s->written)};
}

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

void make_store(void)
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
    s->read_slot = s->open_read_slot = START_MS / PRECISION;
    s->wheel = (ts_wheel){.slots = zeros(SLOTS * TS_SLOT_BYTES),
                          .dirty_pages = zeros((SLOTS * TS_SLOT_BYTES + 4095) / 4096),
                          .slot_count = SLOTS,
                          .precision_ms = PRECISION};
    s->heap = (ts_heap){zeros(IDS_MAX * (int64_t)sizeof(ts_heap_key)),
                        zeros(IDS_MAX * (int64_t)sizeof(ts_due)), zeros(IDS_MAX * 8), 0, IDS_MAX,
                        IDS_MAX};
    for (int64_t i = 0; i < IDS_MAX; i++)
        s->heap.unused[i] = i;
    s->log = (ts_log){.lock = &s->append, .staging = s->halves[0], .filled_mark = &s->marks[0],
                      .staging_bytes = HALF, .segment_bytes = SEGMENT, .append_limit = HALF - 16,
                      .precision_ms = PRECISION,
                      .timer_route = &s->routes[TIMER], .states = &s->states,
                      .store_id = STORE_ID, .property_crc = 1};
    memcpy(s->log.unique_prefix, "7F00000100000000ABCD", 20);
}

/* Like CommitLog.write_out: the other half takes appends while this one is copied. */
void write_out(int roll)
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
    s->log.append_limit = s->log.base + HALF - 16;
    if (s->log.append_limit > (s->log.base / SEGMENT + 1) * SEGMENT - 16)
        s->log.append_limit = (s->log.base / SEGMENT + 1) * SEGMENT - 16;
    unlock(&s->append);
    CHECK(base / SEGMENT < SEGMENTS - 1);
    memcpy(s->segments[base / SEGMENT] + base % SEGMENT, s->halves[half], (size_t)filled);
    set(&s->written, roll ? (base / SEGMENT + 1) * SEGMENT : base + filled);
    unlock(&s->write);
}

void make_space(void)
{
    int roll;

    lock(&s->append);
    roll = s->log.base % SEGMENT + s->log.filled > SEGMENT - 4096;
    unlock(&s->append);
    write_out(roll);
}
