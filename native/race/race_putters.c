/* The threads that put, cancel and reschedule. */
#include "race_store.h"

void remember(int64_t id, int64_t log_offset)
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
    int32_t count = 1 + check_below(seed, BATCH), status;
    int64_t need;
    ts_column_batch rows = {.bodies = (const uint8_t *)bodies, .body_offsets = body_at,
                            .due_ms = due,
                    .properties = (const uint8_t *)"TAGS\001a\002", .properties_size = 7,
                    .count = count, .first_unique = check_below(seed, 1 << 30)};

    for (int32_t i = 0; i < count; i++) {
        body_at[i + 1] = body_at[i] + 1 + check_below(seed, 7);
        due[i] = now + check_below(seed, 4000) - 200;
    }
    for (int32_t from = 0; from < count;) {
        from += ts_put_many_locking(&s->log, &s->routes[check_below(seed, REAL)], &rows, from,
                                    count, BATCH / 3, now, at, ids, &status, &need);
        if (status != TS_OK) {
            CHECK(status == TS_NEED_SPACE && need > 0);
            make_space();
        }
    }
    for (int32_t i = 0; i < count; i++) {
        if (due[i] > now)
            remember(ids[i], at[i]);
    }
}

static void put_single(uint64_t *seed)
{
    int64_t at, id, now = get(&s->now_ms), due = now + 1 + check_below(seed, 3000);

    for (;;) {
        lock(&s->append);
        at = ts_put_one(&s->log, &s->routes[0], (const uint8_t *)"body", 4, due, NULL, 0, now);
        id = s->log.out[0];
        unlock(&s->append);
        if (at >= 0)
            break;
        CHECK(at == TS_NEED_SPACE);
        make_space();
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
        if (got != TS_NEED_SPACE)
            break;
        make_space();
    }
    CHECK(got >= 0);
}

static void reschedule(uint64_t *seed, int64_t id, int64_t log_offset, ts_route *real)
{
    char text[256], moved[256];
    uint8_t record[1024];
    int64_t now = get(&s->now_ms), due = now + 1 + check_below(seed, 2000), queue_offset;
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
        if (got == TS_PENDING)
            log_offset = s->log.out[1] - encoded;
        unlock(&s->append);
        if (got != TS_NEED_SPACE)
            break;
        make_space();
    }
    CHECK(got >= 0);
    if (got == TS_PENDING)
        remember(queue_offset, log_offset);
}

/* Return the route that a source's properties name. */
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

void *putter(void *argument)
{
    uint64_t seed = (uint64_t)(uintptr_t)argument;

    for (int32_t round = 0; round < ROUNDS; round++) {
        int64_t id, at;

        put_rows(&seed);
        put_single(&seed);
        id = check_below(&seed, 2 + round * 8);
        at = get(&s->source_at[id]) - 1;
        if (at < 0)
            continue;
        if (check_below(&seed, 2))
            cancel(&seed, id, real_of(at));
        else
            reschedule(&seed, id, at, real_of(at));
        lock(&s->given);
        s->now_ms += check_below(&seed, 12);
        unlock(&s->given);
    }
    lock(&s->given);
    s->finished++;
    unlock(&s->given);
    return NULL;
}
