/* The part of a staging half that recovery accepts, after damage anywhere in it. */
#include "store.h"

#include "format/staging_mark.h"
#include "log/view.h"

enum { SIZE = 1 << 14 };

/* Stage puts, a cancel, a group and the blank of a segment that is not the first. */
static store *make_staged(int32_t property_crc)
{
    const shape is = {1000, SIZE, 4096, 64, 1700000000000, property_crc};
    store *s = make_store(&is);
    uint8_t body[9] = "some text";

    CHECK(ts_put_one(&s->log, s->routes, body, 9, 0, NULL, 0, s->now_ms) == 0);
    s->log.need = 1;
    give_space(s);
    CHECK(ts_put_one(&s->log, s->routes, body, 9, 0, NULL, 0, s->now_ms) == SIZE);
    put_one(s, 2, s->now_ms + 5000);
    cancel(s, 0);
    put_one(s, 0, s->now_ms + 5000);
    reschedule(s, 2, s->now_ms + 9000);
    CHECK(ts_blank(&s->log) == TS_OK);
    CHECK(s->log.base == SIZE && ts_mark_filled(s->filled_mark) == s->log.filled);
    CHECK(ts_mark_has_crc(s->filled_mark) == !property_crc);
    return s;
}

static int64_t accepted(const store *s, const uint8_t *half)
{
    return ts_staged_bytes(half, SIZE, s->log.base, s->filled_mark);
}

/* Return where the record or blank with this byte begins. */
static int64_t begin_of(store *s, int64_t byte)
{
    int64_t at = 0;
    ts_record record;

    s->view.end = log_end(s);
    while (at + TS_BLANK_BYTES < s->log.filled &&
           ts_view_record(&s->view, s->log.base + at, &record) == TS_OK &&
           at + record.size <= byte)
        at += record.size;
    return at;
}

static void test_damage(int32_t property_crc)
{
    store *s = make_staged(property_crc);
    uint8_t *half = bytes_of(SIZE);
    int64_t blank = s->log.filled - TS_BLANK_BYTES;

    memcpy(half, s->log.staging, SIZE);
    CHECK(accepted(s, half) == s->log.filled);
    for (int64_t at = 0; at < s->log.filled; at++) {
        if (property_crc && at >= blank && at < blank + 4)
            continue; /* the scan of the log checks the blank's size */
        half[at] ^= 1;
        CHECK(accepted(s, half) == (property_crc ? begin_of(s, at) : 0));
        half[at] ^= 1;
    }
    for (int64_t from = s->log.filled - 1, changed = from; from >= 0; from--) { /* lose the end */
        half[from] = 0;
        if (s->log.staging[from] != 0)
            changed = from;
        if (half[changed] != s->log.staging[changed])
            CHECK(accepted(s, half) == (property_crc ? begin_of(s, changed) : 0));
    }
    free(half);
    free_store(s);
}

/* The mark and the half need not be of the same age, nor of the same place in the log. */
static void test_other_marks(int32_t property_crc)
{
    store *s = make_staged(property_crc);
    const uint8_t *half = s->log.staging;
    uint64_t mark = s->filled_mark;
    int64_t filled = s->log.filled, last = begin_of(s, filled - TS_BLANK_BYTES - 1);

    CHECK(ts_staged_bytes(half, filled, SIZE, mark) == filled);
    CHECK(ts_staged_bytes(half, filled - 1, SIZE, mark) == 0);
    CHECK(ts_staged_bytes(half, SIZE, SIZE, 0) == 0);
    CHECK(ts_staged_bytes(half, SIZE, SIZE, UINT64_MAX) == 0);
    CHECK(ts_staged_bytes(half, SIZE, INT64_MAX, mark) == (property_crc ? 0 : filled));
    CHECK(ts_staged_bytes(half, SIZE, 0, mark) == (property_crc ? 0 : filled));
    if (property_crc) { /* a mark within a record */
        CHECK(ts_staged_bytes(half, SIZE, SIZE, mark - TS_BLANK_BYTES - 1) == last);
        CHECK(ts_staged_bytes(half, SIZE, SIZE, mark - 1) == filled - TS_BLANK_BYTES);
    } else {
        CHECK(ts_staged_bytes(half, SIZE, SIZE, mark - 1) == 0);
        CHECK(ts_staged_bytes(half, SIZE, SIZE, (uint64_t)filled) == 0); /* no pairs */
    }
    free_store(s);
}

/* From a record without a pair on, marks have a CRC, which covers the records before it, too. */
static void test_record_without_pair(void)
{
    store *s = make_staged(1);
    uint8_t *half = s->log.staging;
    int64_t size = 0;

    CHECK(!ts_mark_has_crc(s->filled_mark));
    s->log.filled -= TS_BLANK_BYTES;
    s->filled_mark = (uint64_t)s->log.filled;
    s->log.property_crc = 0;
    s->log.mark_crc = 1;
    put_one(s, 0, s->now_ms + 7000);
    CHECK(ts_mark_has_crc(s->filled_mark) && accepted(s, half) == s->log.filled);
    size = s->log.filled;
    s->log.property_crc = 1;
    put_one(s, 0, s->now_ms + 7000);
    CHECK(s->log.filled > size && accepted(s, half) == s->log.filled);
    half[20] ^= 1;
    CHECK(accepted(s, half) == 0);
    free_store(s);
}

int main(void)
{
    for (int32_t property_crc = 0; property_crc < 2; property_crc++) {
        test_damage(property_crc);
        test_other_marks(property_crc);
    }
    test_record_without_pair();
    puts("test_staged: ok");
    return 0;
}
