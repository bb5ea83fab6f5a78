/* Commit-log records: scanned as by a recovery, then read by every other reader.
 *
 * Input: two bytes of log.h, precision, then the log.
 */
#include "log.h"

enum { FOUND = 64 };

static void read_one(fuzz_log *log, int64_t offset, int64_t precision_ms)
{
    int64_t topic_at = 0, properties_at = 0, store_ms = 0;
    int32_t topic_size = 0, properties_size = 0, queue_id = 0, size = 0, got;
    uint8_t topic[INT16_MAX], *body, *properties;
    ts_pulled out;

    if (ts_record_at(&log->view, offset, &topic_at, &topic_size, &properties_at, &properties_size,
                     &queue_id, &size) != TS_OK)
        return;
    CHECK(topic_at + topic_size < size && properties_at + properties_size == size);
    CHECK(ts_record_store_ms(&log->view, offset, &store_ms) == TS_OK);
    got = ts_pull_one(&log->view, offset, precision_ms, &out, topic, 0, topic, 0, topic);
    if (got == TS_CORRUPT)
        return;
    body = malloc((size_t)size);
    properties = malloc((size_t)properties_size);
    got = ts_pull_one(&log->view, offset, precision_ms, &out, body, size, properties,
                      properties_size, topic);
    CHECK(got == topic_size && out.properties_size == properties_size && out.size == size);
    CHECK(out.store_ms == store_ms && out.body_size >= 0 && out.body_size < size);
    free(body);
    free(properties);
}

static void read_ids(fuzz_log *log, int64_t precision_ms)
{
    ts_id ids[5];
    int64_t at = 0, next = 0, id_offsets[2] = {0, 1};
    const ts_column_batch rows = {.ids = (const uint8_t *)"K", .id_offsets = id_offsets};
    int32_t got, which = 0;

    while ((got = ts_ids_scan(&log->view, FUZZ_STORE_ID, at, &next, 5, ids)) >= 0 && next > at) {
        for (int32_t i = 0; i < got; i++) {
            ts_first_message first = {.log_offset = ids[i].log_offset};

            CHECK(ids[i].log_offset >= 0 && ids[i].log_offset < next);
            (void)ts_first_messages(&log->view, &log->states, FUZZ_STORE_ID, precision_ms,
                                    (const uint8_t *)"orders", 6, &rows, &which, 1, &first);
        }
        at = next;
    }
}

static void read_keys(fuzz_log *log, const int64_t *offsets, int32_t count)
{
    ts_key found[16];
    int64_t at = 0, next = 0;
    ts_found rows[FOUND];
    int32_t matched = 0;
    ts_query query = {.topic = (const uint8_t *)"orders", .topic_size = 6, .end_ms = INT64_MAX,
                      .begin_ms = INT64_MIN, .key = (const uint8_t *)"k", .key_size = 1,
                      .store_id = FUZZ_STORE_ID};

    for (;;) {
        ts_keys keys = {found, 16, 0, 0, 1};
        int64_t got = ts_index_keys(&log->view, at, &next, 3, &keys);

        if (got < 0 || next == at)
            break;
        CHECK(keys.count <= 16);
        at = next;
    }
    for (int32_t way = 0; way < 3; way++) {
        int32_t got = ts_index_check(&log->view, &query, offsets, count, rows, &matched);

        CHECK(got <= count && matched <= count);
        query.key = NULL;
        query.topic = (const uint8_t *)TS_TIMER_TOPIC;
        query.topic_size = 19;
        query.real = (const uint8_t *)"orders";
        query.real_size = 6;
        if (way == 1)
            query.states = &log->states;
    }
}

/* Read the routes of records as the calendar does: one by one, and all in one call. */
static void read_routes(fuzz_log *log, const int64_t *offsets, int32_t count)
{
    int32_t sizes[FOUND] = {0}, one[FOUND], got = 0, is_level = count & 1;

    for (int32_t i = 0; i < count; i += got > 0 ? got : 1) {
        got = ts_real_routes(&log->view, &log->known, offsets + i, sizes + i, count - i, is_level,
                             one);
        CHECK(got <= count - i);
        for (int32_t k = 0; k < got; k++)
            CHECK(one[k] >= -1 && one[k] < log->route_count);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in = {data, size};
    int64_t precision_ms = fuzz_below(&in, 2) ? 1000 : 100, offsets[FOUND];
    int64_t odd = fuzz_number(&in);
    int32_t count;
    fuzz_log log;

    fuzz_log_make(&log, &in);
    count = fuzz_log_fold(&log, precision_ms, offsets, FOUND);
    for (int32_t i = 0; i < count; i++)
        read_one(&log, offsets[i], precision_ms);
    read_one(&log, odd, precision_ms);
    read_ids(&log, precision_ms);
    read_keys(&log, offsets, count);
    read_routes(&log, offsets, count);
    fuzz_log_free(&log);
    return 0;
}
