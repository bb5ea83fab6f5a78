/* Rows and columns of tables. Whatever part of a log a window holds, and whatever its bytes are,
 * nothing outside of it is read, and columns are exactly as long as the sums. */
#include "check.h"

#include "format/properties.h"
#include "format/record.h"
#include "format/timer_unit.h"
#include "format/wheel_slot.h"
#include "log/parse.h"

enum { SEGMENT = 4096, BASE = 3 * SEGMENT, CAPACITY = 64, SUMS = TS_SPAN_COUNT + 3 };

static const uint8_t host[8] = {127, 0, 0, 1, 0, 0, 0x2A, 0x9F};

static int32_t put_record(uint8_t *at, int32_t room, int64_t offset, int32_t number)
{
    static const char *const texts[] = {
        "",
        "UNIQ_KEY\001ABC\002TAGS\001green\002KEYS\001one two\002",
        "a\0011\002b\0012\002a\0013\002UNIQ_KEY\001X\002b\001\002\0015\002broken\002a\0014\002",
        "TIMER_DELIVER_MS\0011700000005000\002TIMER_OUT_MS\0011700000004000\002REAL_TOPIC\001Real\002"
        "REAL_QID\0010\002UNIQ_KEY\001K\002",
    };
    const char *text = texts[number % 4];
    const char *topic = number % 4 == 3 ? "rmq_sys_wheel_timer" : "Topic";

    return ts_encode(at, room, (const uint8_t *)topic, (int32_t)strlen(topic), number % 3, number,
                     offset, 0, 0, 1700000000000, host, 1700000000000 + number, host,
                     (const uint8_t *)"body of some size", number % 17, (const uint8_t *)text,
                     (int32_t)strlen(text), number % 5 == 0);
}

/* Fill a segment with records and a blank. Return the number of records. */
static int32_t make_segment(uint8_t *segment, int64_t *starts)
{
    int32_t at = 0, count = 0;

    memset(segment, 0, SEGMENT);
    for (;;) {
        int32_t size = put_record(segment + at, SEGMENT - at - 16, BASE + at, count);

        if (size <= 0)
            break;
        starts[count++] = BASE + at;
        at += size;
    }
    ts_blank_put(segment + at, SEGMENT - at, BASE + at);
    starts[count] = BASE + SEGMENT;
    return count;
}

static ts_window window_of(const uint8_t *bytes, int64_t size, int64_t offset)
{
    return (ts_window){.bytes = bytes, .size = size, .offset = offset, .end = BASE + SEGMENT,
                       .segment_bytes = SEGMENT, .verify = 1};
}

/* Fill every column, in buffers of exactly the sums. Checks that the numbers of rows and pairs
 * match. */
static void fill(const ts_window *window, const ts_table_filter *filter,
                 const ts_table_row *rows, int32_t count,
                 const int64_t *sums)
{
    size_t n = (size_t)count;

    for (int32_t span = 0; span < TS_SPAN_COUNT; span++) {
        int32_t *offsets = malloc((n + 1) * sizeof *offsets);
        uint8_t *data = malloc((size_t)sums[span]), *validity = malloc((n + 7) / 8);

        ts_table_text(window, rows, count, span, offsets, data, validity);
        CHECK(offsets[count] == sums[span]);
        free(offsets);
        free(data);
        free(validity);
    }
    int32_t *offsets = malloc((n + 1) * sizeof *offsets);
    int32_t *names = malloc(((size_t)sums[7] + 1) * sizeof *names);
    int32_t *values = malloc(((size_t)sums[7] + 1) * sizeof *values);
    uint8_t *name_text = malloc((size_t)sums[8]), *value_text = malloc((size_t)sums[9]);

    ts_table_pairs(window, rows, count, filter, offsets, names, name_text, values, value_text);
    CHECK(offsets[count] == sums[7]);
    CHECK(names[sums[7]] == sums[8] && values[sums[7]] == sums[9]);
    free(offsets);
    free(names);
    free(values);
    free(name_text);
    free(value_text);
}

/* Read from an offset to the end of one window. Return the number of rows; *next is where it
 * stopped. */
static int32_t read_rows(const uint8_t *bytes, int64_t size, int64_t offset, int64_t *next,
                         int32_t *status, ts_window *window)
{
    const ts_table_filter all = {.due_to_ms = 0};
    int32_t wants = TS_WANT_MARKS | TS_WANT_NAMES | TS_WANT_PAIRS, total = 0;
    int64_t from = offset;

    *window = window_of(bytes, size, offset);
    for (;;) {
        ts_table_row rows[CAPACITY];
        int64_t sums[SUMS];
        int32_t count = ts_table_scan(window, 1000, &all, wants, from, next, 512, CAPACITY, rows,
                                      sums);

        CHECK(count <= CAPACITY && *next >= from);
        *status = count;
        if (count > 0)
            fill(window, &all, rows, count, sums);
        if (count < 0 || *next == from)
            return total;
        total += count;
        from = *next;
    }
}

static void test_every_window(void)
{
    uint8_t segment[SEGMENT];
    int64_t starts[SEGMENT / TS_RECORD_FIXED_BYTES + 2];
    int32_t count = make_segment(segment, starts);

    CHECK(count > 8);
    for (int32_t size = 1; size <= SEGMENT; size += size < 700 ? 1 : 97) {
        uint8_t *bytes = check_copy(segment, (size_t)size);
        ts_window window;
        int64_t next;
        int32_t status, whole = 0, got = read_rows(bytes, size, BASE, &next, &status, &window);

        while (whole < count && starts[whole] - BASE + ts_get_i32(segment + starts[whole] - BASE) <=
                                    size)
            whole++;
        CHECK(got == whole);
        if (whole < count) {
            CHECK(next == starts[whole] && status == TS_NEED_SPACE && window.need >= 0);
            CHECK(window.need <= BASE + SEGMENT - next);
        } else {
            /* the blank is skipped if it can be read */
            CHECK(next == BASE + SEGMENT || status == TS_NEED_SPACE);
        }
        free(bytes);
    }
}

static void test_rows_say_what_was_put(void)
{
    uint8_t segment[SEGMENT];
    int64_t starts[SEGMENT / TS_RECORD_FIXED_BYTES + 2], next, sums[SUMS];
    int32_t count = make_segment(segment, starts), got;
    ts_window window = window_of(segment, SEGMENT, BASE);
    ts_table_filter filter = {.kinds = 1 << TS_KIND_TIMER};
    ts_table_row rows[CAPACITY];

    got = ts_table_scan(&window, 1000, &filter, TS_WANT_PAIRS | TS_WANT_NAMES, BASE, &next,
                        INT64_MAX, CAPACITY, rows, sums);
    CHECK(got == count / 4 && next == BASE + SEGMENT);
    for (int32_t i = 0; i < got; i++) {
        CHECK(rows[i].queue_offset == 4 * i + 3 && rows[i].kind == TS_KIND_TIMER);
        CHECK(rows[i].log_offset == starts[4 * i + 3] && rows[i].due_ms == 1700000005000);
        CHECK(rows[i].sizes[TS_SPAN_REAL_TOPIC] == 4 && rows[i].at[TS_SPAN_TAGS] == -1);
        CHECK(rows[i].pair_count == 5 || rows[i].queue_offset % 5 == 0);
    }
    filter = (ts_table_filter){.by_real_topic = 1, .topic_count = 1,
                               .topic_offsets = (int32_t[]){0, 4},
                               .topics = window.bytes + rows[0].at[TS_SPAN_REAL_TOPIC]};
    got = ts_table_scan(&window, 1000, &filter, 0, BASE, &next, INT64_MAX, CAPACITY, rows, sums);
    CHECK(got == count / 4 && rows[0].kind == TS_KIND_TIMER);
    CHECK(rows[0].log_offset + rows[0].size == starts[4]);
    filter = (ts_table_filter){.kinds = 1 << TS_KIND_TIMER, .first_timer = 2,
                               .timer_bits = (const uint8_t *)"\x22", .timer_bit_count = 6};
    got = ts_table_scan(&window, 1000, &filter, 0, BASE, &next, INT64_MAX, CAPACITY, rows, sums);
    CHECK(got == 2 && rows[0].queue_offset == 3 && rows[1].queue_offset == 7);
    filter.timer_bit_count = 5;
    got = ts_table_scan(&window, 1000, &filter, 0, BASE, &next, INT64_MAX, CAPACITY, rows, sums);
    CHECK(got == 1);
    filter = (ts_table_filter){.has_store = 1, .store_from_ms = 1700000000002,
                             .store_to_ms = 1700000000003};
    got = ts_table_scan(&window, 1000, &filter, TS_WANT_PAIRS, BASE, &next, INT64_MAX, CAPACITY,
                        rows, sums);
    /* the third text: of three pairs `a` the last counts; of two `b` the first, as the second is
     * empty; UNIQ_KEY */
    CHECK(got == 1 && rows[0].pair_count == 3 && sums[9] == 3);
    filter = (ts_table_filter){.has_due = 1, .due_from_ms = INT64_MIN, .due_to_ms = INT64_MAX};
    got = ts_table_scan(&window, 1000, &filter, 0, BASE, &next, INT64_MAX, CAPACITY, rows, sums);
    CHECK(got == count / 4); /* a record without a due time does not match */
    for (int32_t k = 0; k < 4; k++) { /* KEYS is "one two" */
        static const char *const keys[] = {"two", "one", "tw", "one two"};

        filter = (ts_table_filter){.key_count = 2, .keys = (const uint8_t *)keys[k],
                                   .key_offsets = (int32_t[]){0, (int32_t)strlen(keys[k]),
                                                              (int32_t)strlen(keys[k])}};
        got = ts_table_scan(&window, 1000, &filter, 0, BASE, &next, INT64_MAX, CAPACITY, rows,
                            sums);
        CHECK(got == (k < 2 ? (count + 2) / 4 : 0));
        CHECK(got == 0 || (rows[0].queue_offset == 1 && rows[0].at[TS_SPAN_KEYS] == -1));
    }
    filter = (ts_table_filter){.kinds = 1 << TS_KIND_TIMER, .name_count = 2,
                               .names = (const uint8_t *)"REAL_QIDTIMER",
                               .name_offsets = (int32_t[]){0, 8, 13}};
    got = ts_table_scan(&window, 1000, &filter, TS_WANT_PAIRS, BASE, &next, INT64_MAX, CAPACITY,
                        rows, sums);
    CHECK(got == count / 4 && sums[7] == got && sums[8] == 8 * got && sums[9] == got);
    fill(&window, &filter, rows, got, sums);
    filter = (ts_table_filter){.without = (const uint8_t *)"Topic", .without_size = 5};
    got = ts_table_scan(&window, 1000, &filter, 0, BASE, &next, INT64_MAX, CAPACITY, rows, sums);
    CHECK(got == count / 4 && rows[0].queue_offset == 3);
    got = (int32_t)ts_window_count(&window, BASE, &next, 3);
    CHECK(got == 3 && next == starts[3]);
    window.end = starts[3] + 1; /* no record may reach past the end */
    got = ts_table_scan(&window, 1000, &filter, 0, starts[3], &next, INT64_MAX, CAPACITY, rows,
                        sums);
    CHECK(got < 0 && next == starts[3]);
}

/* Change any bytes: the result is rows, a fault, or a request for more bytes. The sanitizers detect
 * the rest. */
static void test_damage(void)
{
    uint8_t segment[SEGMENT];
    int64_t starts[SEGMENT / TS_RECORD_FIXED_BYTES + 2], next;
    uint64_t seed = 7;

    make_segment(segment, starts);
    for (int32_t round = 0; round < 30000; round++) {
        int32_t size = 1 + check_below(&seed, 900), status;
        uint8_t *bytes = check_copy(segment, (size_t)size);
        ts_scanned scanned[CAPACITY];
        ts_window window;

        for (int32_t n = check_below(&seed, 4); n > 0; n--)
            bytes[check_below(&seed, size)] = (uint8_t)check_random(&seed);
        if (round % 16 == 0)
            for (int32_t i = 88; i < size; i++)
                bytes[i] = (uint8_t)check_below(&seed, 4);
        (void)read_rows(bytes, size, BASE, &next, &status, &window);
        window.verify = 0;
        window.fault = 0;
        (void)ts_window_scan(&window, 1000, BASE, &next, CAPACITY, scanned);
        for (int64_t from = BASE;; from = next) {
            const ts_table_filter all = {.topic_count = 0};
            ts_table_row rows[CAPACITY];
            int64_t sums[SUMS];
            int32_t count = ts_table_scan(&window, 1000, &all, TS_WANT_PAIRS | TS_WANT_NAMES, from,
                                          &next, 4096, CAPACITY, rows, sums);

            if (count > 0)
                fill(&window, &all, rows, count, sums);
            if (count < 0 || next == from)
                break;
        }
        free(bytes);
    }
}

static void test_units(void)
{
    uint8_t log[256];
    ts_unit_row rows[8];
    int64_t next;

    memset(log, 0, sizeof log);
    for (int32_t i = 0; i < 4; i++) {
        const ts_timer_unit unit = {.prev_pos = i - 1, .magic = 1 + 2 * (i & 1),
                                    .write_ms = i == 3 ? INT64_MAX : 1000 * i, .delay_ms = 5000,
                                    .log_offset = 100 * i, .size = 90 + i};
        ts_timer_unit_put(log + 52 * i, &unit);
    }
    ts_timer_blank_put(log + 208, 48);
    for (int32_t size = 1; size <= 256; size++) {
        uint8_t *bytes = check_copy(log, (size_t)size);
        ts_window window = {.bytes = bytes, .size = size, .offset = 512, .end = 768,
                            .segment_bytes = 256};
        int32_t count = ts_units_scan(&window, 512, &next, 8, rows);

        CHECK(size < 52 ? count == TS_NEED_SPACE : count == (size < 208 ? size / 52 : 4));
        CHECK(next == (size >= 224 ? 768 : 512 + 52 * (count > 0 ? count : 0)));
        if (count > 1)
            CHECK(rows[1].slot_ms == 6000 && rows[1].magic == 3 && rows[1].timer_pos == 564);
        free(bytes);
    }
    ts_window window = {.bytes = log, .size = 256, .offset = 512, .end = 768,
                        .segment_bytes = 256};
    log[52 + 3] = 51; /* its size */
    CHECK(ts_units_scan(&window, 512, &next, 8, rows) == 1 && next == 564);
    CHECK(ts_units_scan(&window, 564, &next, 8, rows) == TS_CORRUPT && window.fault_offset == 564);
}

static void test_slots(void)
{
    uint8_t wheel[32 * 4];
    ts_slot_row rows[4];
    const ts_slot here = {.time = 41, .first_pos = 52, .last_pos = 104, .count = 2};
    const ts_slot elsewhere = {.time = 40, .first_pos = 52, .last_pos = 104, .count = 2};
    const ts_slot negative = {.time = -7, .count = 1};

    memset(wheel, 0, sizeof wheel);
    ts_slot_put(wheel + 32, &here);
    ts_slot_put(wheel + 64, &elsewhere);
    ts_slot_put(wheel + 96, &negative);
    CHECK(ts_slots_scan(wheel, 0, 4, 10, rows) == 1);
    CHECK(rows[0].slot == 1 && rows[0].time == 41 && rows[0].count == 2 && rows[0].last_pos == 104);
}

int main(void)
{
    test_every_window();
    test_rows_say_what_was_put();
    test_damage();
    test_units();
    test_slots();
    puts("test_table_rows: ok");
    return 0;
}
