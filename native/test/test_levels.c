/* Copies of messages with a fixed level: their properties, rejected sources, and limits of size. */
#include "check.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "format/level_mark.h"
#include "format/properties.h"
#include "format/staging_mark.h"
#include "log/message_copy.h"
#include "log/parse.h"
#include "log/view.h"

enum { SEGMENT = 1 << 17, STAGING = 1 << 17, SCRATCH = 1 << 17, QUEUE = 3, OFFSET = 5 };

static const int64_t DUE_MS = 1700000005000;
static const int64_t PLACE = (int64_t)QUEUE << TS_LEVEL_OFFSET_BITS | OFFSET;

typedef struct {
    uint8_t *segment, *staging, *scratch;
    const uint8_t *segments[1];
    ts_view view;
    ts_route route, *slots[4];
    ts_routes routes;
    ts_log log;
    uint64_t filled_mark;
    ts_level_due due;
    ts_level_draft draft;
} bench;

static bench *bench_new(const char *properties, int32_t size, int32_t property_crc)
{
    static const uint8_t host[8] = {127, 0, 0, 1, 0, 0, 42, 159};
    bench *b = calloc(1, sizeof *b);
    int32_t record;

    CHECK(b != NULL);
    b->segment = calloc(1, SEGMENT);
    b->staging = malloc(STAGING);
    b->scratch = malloc(SCRATCH);
    CHECK(b->segment != NULL && b->staging != NULL && b->scratch != NULL);
    record = ts_encode(b->segment, SEGMENT, (const uint8_t *)"SCHEDULE_TOPIC_XXXX", 19, QUEUE,
                       OFFSET, 0, 9, 0, 1700000000000, host, 1700000000001, host,
                       (const uint8_t *)"body", 4, (const uint8_t *)properties, size, 0);
    CHECK(record > 0);
    b->segments[0] = b->segment;
    b->view = (ts_view){.segments = b->segments, .segment_count = 1, .segment_bytes = SEGMENT,
                        .end = record};
    b->route.kind = TS_ROUTE_REAL;
    b->route.queue_id = 2;
    b->route.next_offset = 41;
    b->route.topic_size = 1;
    b->route.topic[0] = 'T';
    b->slots[ts_route_key(b->route.topic, 1, 2) & 3] = &b->route;
    b->routes = (ts_routes){b->slots, 3};
    b->log.staging = b->staging;
    b->log.filled_mark = &b->filled_mark;
    b->log.staging_bytes = STAGING;
    b->log.base = 1000;
    b->log.append_limit = 1000 + STAGING;
    b->log.store_id = 77;
    b->log.property_crc = property_crc;
    b->log.mark_crc = !property_crc;
    b->due = (ts_level_due){.place = PLACE, .due_ms = DUE_MS, .size = record};
    return b;
}

static void bench_free(bench *b)
{
    free(b->segment);
    free(b->staging);
    free(b->scratch);
    free(b);
}

static int32_t encode(bench *b, int64_t now_ms, int64_t scratch_bytes)
{
    return ts_level_encode(&b->view, &b->routes, &b->log, &b->due, 1, now_ms, b->scratch,
                           scratch_bytes, &b->draft);
}

/* Read the placed copy like any reader. */
static void read_copy(bench *b, ts_record *record, ts_marks *marks)
{
    const uint8_t *segments[1];
    ts_view view = {.segments = segments, .first_segment = 0, .segment_count = 1,
                    .segment_bytes = SEGMENT, .end = 1000 + b->log.filled};

    memmove(b->segment + 1000, b->staging, (size_t)b->log.filled);
    segments[0] = b->segment;
    CHECK(ts_view_record(&view, 1000, record) == TS_OK);
    CHECK(ts_record_check(record) == TS_FAULT_NONE);
    CHECK(ts_staged_bytes(b->staging, SEGMENT, 1000, b->filled_mark) == b->log.filled);
    ts_marks_get(record->properties, record->properties_size, marks);
}

#define WHOLE                                                                     \
    "REAL_TOPIC\001T\002REAL_QID\0012\002DELAY\0014\002UNIQ_KEY\001K\002TAGS\001x\002" \
    "TS_ID\001AAAAAQAAAAAAAAAH\002TS_LEVEL\001old\002__CRC32#\0011234567890\002a\001b"

static void test_copy(int32_t property_crc)
{
    bench *b = bench_new(WHOLE, (int32_t)sizeof WHOLE - 1, property_crc);
    ts_record copy;
    ts_marks marks;

    CHECK(encode(b, DUE_MS, SCRATCH) == 1 && b->draft.size > 0 && !b->draft.unusable);
    CHECK(ts_level_place(&b->log, b->scratch, &b->draft, 0, 1, DUE_MS + 3) == 1);
    CHECK(b->draft.placed == 1000 && b->route.next_offset == 42);
    CHECK(ts_mark_filled(b->filled_mark) == b->draft.size && b->log.last_store_ms == DUE_MS + 3);
    read_copy(b, &copy, &marks);
    CHECK(copy.queue_offset == 41 && copy.queue_id == 2 && copy.topic_size == 1);
    CHECK(copy.flag == 9 && copy.born_ms == 1700000000000 && copy.store_ms == DUE_MS + 3);
    CHECK(copy.body_size == 4 && memcmp(copy.body, "body", 4) == 0);
    CHECK(marks.level_place == PLACE && marks.level_store_id == 77 && marks.timer_id == -1);
    CHECK(ts_marks_leveled(&marks) && ts_marks_due(&marks, 1000) == DUE_MS);
    CHECK(marks.delay_level == 4 && marks.real_queue == 2 && marks.tags.size == 1);
    bench_free(b);
}

static void test_refusals(void)
{
    bench *b = bench_new(WHOLE, (int32_t)sizeof WHOLE - 1, 1);

    CHECK(encode(b, DUE_MS - 1, SCRATCH) == TS_INVALID);
    CHECK(encode(b, DUE_MS, b->due.size) == TS_NEED_SPACE && b->view.need > b->due.size);
    CHECK(encode(b, DUE_MS, b->view.need) == 1);
    b->log.append_limit = 1000 + b->draft.size - 1;
    CHECK(ts_level_place(&b->log, b->scratch, &b->draft, 0, 1, DUE_MS) == TS_NEED_SPACE);
    CHECK(b->draft.placed == -1 && b->log.filled == 0 && b->route.next_offset == 41);
    b->log.append_limit++;
    CHECK(ts_level_place(&b->log, b->scratch, &b->draft, 0, 1, DUE_MS) == 1);
    b->due.place++;
    CHECK(encode(b, DUE_MS, SCRATCH) == TS_CORRUPT && b->view.fault == TS_FAULT_TOPIC);
    b->due.place = PLACE + ((int64_t)1 << TS_LEVEL_OFFSET_BITS);
    CHECK(encode(b, DUE_MS, SCRATCH) == TS_CORRUPT && b->view.fault == TS_FAULT_TOPIC);
    b->due.place = PLACE;
    b->due.size--;
    CHECK(encode(b, DUE_MS, SCRATCH) == TS_CORRUPT && b->view.fault == TS_FAULT_TOPIC);
    b->due.size++;
    b->segment[90]++; /* in the body */
    CHECK(encode(b, DUE_MS, SCRATCH) == TS_CORRUPT);
    b->segment[90]--;
    b->slots[ts_route_key(b->route.topic, 1, 2) & 3] = NULL;
    CHECK(encode(b, DUE_MS, SCRATCH) == TS_NEED_ROUTE && b->view.need == 0);
    bench_free(b);
}

static void test_unusable(void)
{
    static const char *const texts[] = {
        "", "DELAY\0014\002", "REAL_TOPIC\001T\002DELAY\0014\002",
        "REAL_QID\0012\002DELAY\0014\002", "REAL_TOPIC\001T\002REAL_QID\0012\002",
        "REAL_TOPIC\001T\002REAL_QID\001-2\002DELAY\0014\002",
        "REAL_TOPIC\001a/b\002REAL_QID\0012\002DELAY\0014\002",
        "REAL_TOPIC\001RMQ_SYS_TRANS_HALF_TOPIC\002REAL_QID\0012\002DELAY\0014\002",
    };

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        bench *b = bench_new(texts[i], (int32_t)strlen(texts[i]), 1);

        CHECK(encode(b, DUE_MS, SCRATCH) == 1 && b->draft.unusable && b->draft.size == 0);
        CHECK(ts_level_place(&b->log, b->scratch, &b->draft, 0, 1, DUE_MS) == 1);
        CHECK(b->draft.placed == -1 && b->log.filled == 0);
        bench_free(b);
    }
}

/* Sources whose properties leave too little space: the copy first omits the CRC, which the filled
 * mark then has, then what the head repeats. */
static void test_no_space(void)
{
    static const char here[] = "REAL_TOPIC\001T\002REAL_QID\0012\002DELAY\0014\002p\001";
    const int32_t head = (int32_t)sizeof here - 1;
    char *text = malloc(TS_PROPERTIES_BYTES_MAX);
    int32_t slim = 0, none = 0, unpaired = 0;

    CHECK(text != NULL);
    for (int32_t left = 0; left < 80; left++) {
        int32_t size = TS_PROPERTIES_BYTES_MAX - left;
        bench *b;

        memcpy(text, here, (size_t)head);
        memset(text + head, 'v', (size_t)(size - head));
        text[size - 1] = 2;
        b = bench_new(text, size, 1);
        CHECK(encode(b, DUE_MS, SCRATCH) == 1 && !b->draft.unusable);
        if (b->draft.size > 0) {
            ts_record copy;
            ts_marks marks;

            CHECK(ts_level_place(&b->log, b->scratch, &b->draft, 0, 1, DUE_MS) == 1);
            read_copy(b, &copy, &marks);
            CHECK(marks.level_place == PLACE && ts_marks_leveled(&marks));
            slim += marks.real_topic.at == NULL;
            unpaired += ts_mark_has_crc(b->filled_mark);
            CHECK(ts_mark_has_crc(b->filled_mark) ==
                  !ts_copy_has_crc(b->staging, b->draft.size));
        } else {
            none++;
        }
        bench_free(b);
    }
    CHECK(slim > 0 && unpaired > 0 && none == 10);
    free(text);
}

int main(void)
{
    test_copy(0);
    test_copy(1);
    test_refusals();
    test_unusable();
    test_no_space();
    puts("test_levels: ok");
    return 0;
}
