/* Puts: rows with any texts, in batches, in groups and with ids. The log then holds the same messages.
 *
 * Input: numbers, the sizes of each row's texts, then the texts.
 */
#include "log.h"

#include "log/message_ids.h"

enum { ROWS = 6, SEGMENT = 4096, COLUMNS = 5, IDS = 8 };

typedef struct {
    int64_t offsets[COLUMNS][ROWS + 1]; /* bodies, extra, tags, keys, ids */
    uint8_t *bytes[COLUMNS];
    int64_t due[ROWS];
    ts_column_batch rows;
} batch;

static void take_batch(batch *b, fuzz_input *in)
{
    size_t took;

    memset(b, 0, sizeof *b);
    b->rows.count = 1 + fuzz_below(in, ROWS);
    for (int32_t i = 0; i < b->rows.count; i++)
        b->due[i] = fuzz_number(in);
    for (int32_t c = 0; c < COLUMNS; c++)
        for (int32_t i = 0; i < b->rows.count; i++)
            b->offsets[c][i + 1] = b->offsets[c][i] + fuzz_below(in, c == 0 ? 256 : 24);
    for (int32_t c = 0; c < COLUMNS; c++) {
        int64_t size = b->offsets[c][b->rows.count];

        b->bytes[c] = fuzz_take(in, (size_t)size, &took);
        for (int32_t i = 0; i <= b->rows.count; i++) {
            if (b->offsets[c][i] > (int64_t)took)
                b->offsets[c][i] = (int64_t)took;
        }
    }
    b->rows.bodies = b->bytes[0];
    b->rows.body_offsets = b->offsets[0];
    b->rows.due_ms = b->due;
    b->rows.extra = b->bytes[1];
    b->rows.extra_offsets = b->offsets[1];
    b->rows.tags = b->bytes[2];
    b->rows.tag_offsets = b->offsets[2];
    b->rows.keys = b->bytes[3];
    b->rows.key_offsets = b->offsets[3];
    b->rows.ids = b->bytes[4];
    b->rows.id_offsets = b->offsets[4];
}

typedef struct {
    fuzz_log log; /* its first segment is the staging */
    ts_log end;
    uint64_t filled_mark;
    ts_route *route;
    ts_id entries[IDS];
    uint32_t slots[2 * IDS];
    ts_ids ids;
} store;

static void make(store *s, int32_t property_crc)
{
    fuzz_log *log = &s->log;

    memset(s, 0, sizeof *s);
    log->segments[0] = fuzz_zeros(SEGMENT, 1);
    log->view = (ts_view){.segments = (const uint8_t **)log->segments, .segment_bytes = SEGMENT,
                          .segment_count = FUZZ_SEGMENTS};
    log->known = (ts_routes){log->table, FUZZ_TABLE - 1};
    fuzz_states_make(log);
    s->route = fuzz_route(log, (const uint8_t *)"orders", 6, 0);
    s->end = (ts_log){.staging = log->segments[0], .filled_mark = &s->filled_mark,
                      .staging_bytes = SEGMENT, .segment_bytes = SEGMENT, .precision_ms = 1000,
                      .append_limit = SEGMENT - 16, .states = &log->states,
                      .store_id = FUZZ_STORE_ID,
                      .timer_route = fuzz_route(log, (const uint8_t *)TS_TIMER_TOPIC, 19, 0),
                      .property_crc = property_crc, .mark_crc = !property_crc};
    memcpy(s->end.unique_prefix, "7F00000100000000ABCD", 20);
    s->ids = (ts_ids){.table_count = 1, .window_ms = 1000};
    s->ids.tables[0] = (ts_id_table){s->entries, s->slots, IDS, IDS / 2, 0, 0};
}

static int32_t put(store *s, const batch *b, int32_t way, int64_t now, int64_t *at,
                   int64_t *queue_offsets)
{
    int64_t below[ROWS] = {9999, 9999, 9999, 9999, 9999, 9999}, bytes = 0;
    int32_t timers = 0, got;

    if (way == 0)
        return ts_put_many(&s->end, s->route, &b->rows, 0, b->rows.count, now, at, queue_offsets);
    if (way == 1)
        return ts_put_once(&s->end, &s->ids, ts_identity((const uint8_t *)"orders", 6), s->route,
                           &b->rows, 0, b->rows.count, below, now, now, at, queue_offsets);
    got = ts_batch_measure(&s->end, s->route, &b->rows, 0, ROWS, 3000, now, &bytes, &timers);
    if (got <= 0)
        return got;
    CHECK(bytes <= 3000 && timers <= got && got <= b->rows.count);
    if (ts_put_group(&s->end, s->route, (const uint8_t *)"head", way == 2 ? 4 : 0, s->route,
                     &b->rows, 0, got, bytes, timers, now, at, queue_offsets) != TS_OK)
        return 0;
    return got;
}

/* Check that the bodies in log order are those of the rows, except rows whose id was known. */
static void check_log(store *s, const batch *b, const int64_t *at, const int64_t *queue_offsets,
                      int32_t got)
{
    for (int32_t i = 0; i < got; i++) {
        int64_t size = b->offsets[0][i + 1] - b->offsets[0][i];
        ts_record record;

        if (queue_offsets[i] == TS_DUPLICATE)
            continue;
        CHECK(ts_view_record(&s->log.view, at[i], &record) == TS_OK);
        CHECK(ts_record_check(&record) == TS_FAULT_NONE || s->end.property_crc == 0);
        CHECK(record.body_size == size);
        CHECK(size == 0 || memcmp(record.body, b->bytes[0] + b->offsets[0][i], (size_t)size) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in = {data, size};
    int32_t way = fuzz_below(&in, 4), property_crc = fuzz_below(&in, 2), count = 0;
    int64_t now = fuzz_number(&in) / 2 + 1, at[ROWS], places[ROWS], end = 0, next = 0, offset = 0;
    ts_record record;
    store s;
    batch b;

    make(&s, property_crc);
    take_batch(&b, &in);
    for (int32_t round = 0; round < 2; round++) { /* in the second round all ids are known */
        int32_t got = put(&s, &b, way, now, at, places);

        s.log.view.end = s.end.base + s.end.filled;
        CHECK(ts_staged_bytes(s.end.staging, SEGMENT, 0, s.filled_mark) == s.end.filled);
        CHECK(s.log.view.end <= SEGMENT - 16);
        if (got > 0)
            check_log(&s, &b, at, places, got);
    }
    (void)ts_batch_digest(&b.rows, (const uint8_t *)"orders", 6, 0, b.rows.count, 1);
    /* Records are adjacent up to the end. */
    for (end = s.log.view.end; offset < end; offset = next) {
        CHECK(ts_view_record(&s.log.view, offset, &record) == TS_OK);
        next = offset + record.size;
        count++;
    }
    CHECK(offset == end);
    CHECK(s.route->next_offset + s.end.timer_route->next_offset == count);
    for (int32_t c = 0; c < COLUMNS; c++)
        free(b.bytes[c]);
    fuzz_log_free(&s.log);
    return 0;
}
