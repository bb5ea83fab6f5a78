/* Wheel and timer log: slots with any contents, chains wherever they lead.
 *
 * Input: numbers, then the wheel's slots, then the timer log.
 */
#include "fuzz.h"

#include "format/timer_unit.h"
#include "format/wheel_slot.h"

enum { SLOTS_MAX = 32, SEGMENTS = 16, CAPACITY = 8, PATCHES = 64 };

typedef struct {
    ts_view view;
    uint8_t *segments[SEGMENTS];
    ts_wheel wheel;
    uint8_t dirty[1];
} timer;

static void make(timer *t, fuzz_input *in)
{
    int64_t segment_bytes = (int64_t)104 << fuzz_below(in, 3), end, begin;
    size_t took;
    uint8_t *bytes;

    memset(t, 0, sizeof *t);
    t->wheel = (ts_wheel){.slot_count = 1 + fuzz_below(in, SLOTS_MAX), .dirty_pages = t->dirty,
                          .precision_ms = fuzz_below(in, 2) ? 1000 : 100};
    begin = fuzz_below(in, 4) == 3 ? segment_bytes : 0;
    t->wheel.slots = fuzz_zeros(t->wheel.slot_count, TS_SLOT_BYTES);
    bytes = fuzz_take(in, (size_t)t->wheel.slot_count * TS_SLOT_BYTES, &took);
    memcpy(t->wheel.slots, bytes, took);
    free(bytes);
    bytes = fuzz_take(in, (size_t)(SEGMENTS * segment_bytes), &took);
    end = (int64_t)took;
    for (int64_t at = 0; at < end; at += segment_bytes) {
        int64_t size = end - at < segment_bytes ? end - at : segment_bytes;

        t->segments[at / segment_bytes] = fuzz_zeros(segment_bytes, 1);
        memcpy(t->segments[at / segment_bytes], bytes + at, (size_t)size);
    }
    free(bytes);
    t->view = (ts_view){.segments = (const uint8_t **)t->segments, .segment_count = SEGMENTS,
                        .segment_bytes = segment_bytes, .begin = begin < end ? begin : 0,
                        .end = end};
}

static void load(timer *t, const int64_t *slots, int32_t count)
{
    int64_t positions[CAPACITY];
    ts_chained out[CAPACITY];

    for (int32_t i = 0; i < count; i++) {
        int64_t pos = -1, first, last;
        int32_t got, length;

        (void)ts_wheel_slot(&t->wheel, slots[i], &first, &last, &length);
        do {
            got = ts_wheel_load(&t->view, &t->wheel, slots[i], &pos, 3, out);
        } while (got > 0 && pos >= 0);
        positions[i] = -2;
    }
    while (ts_wheel_load_many(&t->view, &t->wheel, slots, positions, count, CAPACITY, out) > 0) {
    }
}

static void change(timer *t, const int64_t *slots, int32_t count, int64_t number)
{
    ts_patch patches[PATCHES];
    int64_t living[4] = {0, 100, 1000, number < 1000 ? 1001 : number}, next = 0, at = 0, pages[1];
    int64_t held[2];
    uint8_t *page = malloc(4096), is_kept[4] = {0};

    for (int32_t i = 0; i < count; i++)
        (void)ts_wheel_recount(&t->view, &t->wheel, slots[i], &(ts_chain_walk){0});
    for (int32_t i = 0; i < count; i++) {
        int64_t got = ts_wheel_compact_chain(&t->view, &t->wheel, slots[i], 1, living, is_kept, 4,
                                             patches, PATCHES, &(ts_chain_walk){0});
        CHECK(got <= PATCHES);
    }
    for (int32_t i = 0; i < count; i++) {
        ts_chain_walk walk = {0};

        while (ts_wheel_chain_positions(&t->view, &t->wheel, slots[i], 1, held, 2, &walk) == 2)
            CHECK(held[0] > held[1]);
    }
    for (int32_t pass = 0; pass < 2; pass++, at = 0)
        while (ts_timer_log_unchained(&t->view, &t->wheel, at, &next, 1, pass ? living : NULL, 4,
                                      patches, 5) >= 0 && next > at)
            at = next;
    (void)ts_wheel_cut(&t->view, &t->wheel, t->view.end / 2);
    (void)ts_wheel_empty(&t->wheel, 3, 9, slots, 1);
    (void)ts_wheel_copy_dirty(&t->wheel, pages, page, 1);
    free(page);
}

static void tables(const timer *t)
{
    ts_slot_row *rows = fuzz_zeros(t->wheel.slot_count, sizeof *rows);
    ts_unit_row units[5];
    int32_t got = ts_slots_scan(t->wheel.slots, 0, t->wheel.slot_count, t->wheel.slot_count, rows);

    CHECK(got >= 0 && got <= t->wheel.slot_count);
    free(rows);
    for (int64_t at = 0; at < t->view.end; at += t->view.segment_bytes) {
        int64_t size = t->view.end - at, next = at, from = at;
        ts_window window = {.bytes = t->segments[at / t->view.segment_bytes], .offset = at,
                            .end = t->view.end, .segment_bytes = t->view.segment_bytes};

        window.size = size < t->view.segment_bytes ? size : t->view.segment_bytes;
        while (ts_units_scan(&window, from, &next, 5, units) > 0 && next > from)
            from = next;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in = {data, size};
    int64_t number = fuzz_number(&in), slots[CAPACITY], next;
    int32_t count = 0;
    timer t;

    make(&t, &in);
    /* The slots that dequeue-get would find, then one from the input. */
    for (int64_t from = 0; count < CAPACITY - 1; from = next + 1) {
        next = ts_wheel_next(&t.wheel, from, (int64_t)1 << 40);
        if (next < 0)
            break;
        CHECK(next >= from && next < (int64_t)1 << 40);
        slots[count++] = next;
    }
    slots[count++] = number & (((int64_t)1 << 40) - 1);
    load(&t, slots, count);
    tables(&t);
    change(&t, slots, count, number);
    for (int32_t i = 0; i < SEGMENTS; i++)
        free(t.segments[i]);
    free(t.wheel.slots);
    return 0;
}
