/* Tables: a window of a log becomes rows and columns of exactly the sums' sizes.
 *
 * Input: numbers, then the window's bytes.
 */
#include "log.h"

enum { ROWS = 8, BASE = 3, SUMS = TS_SPAN_COUNT + 3 };

/* Fill every column, in buffers of exactly the sums. */
static void fill(const ts_window *window, const ts_table_filter *filter,
                 const ts_table_row *rows, int32_t count,
                 const int64_t *sums, int32_t has_pairs)
{
    size_t n = (size_t)count;
    int32_t *offsets = malloc((n + 1) * sizeof *offsets), *names, *values;
    uint8_t *text, *other, *validity = malloc((n + 7) / 8);

    for (int32_t span = 0; span < TS_SPAN_COUNT; span++) {
        text = malloc((size_t)sums[span]);
        ts_table_text(window, rows, count, span, offsets, text, validity);
        CHECK(offsets[count] == sums[span]);
        free(text);
    }
    if (has_pairs) {
        names = malloc(((size_t)sums[7] + 1) * sizeof *names);
        values = malloc(((size_t)sums[7] + 1) * sizeof *values);
        text = malloc((size_t)sums[8]);
        other = malloc((size_t)sums[9]);
        ts_table_pairs(window, rows, count, filter, offsets, names, text, values, other);
        CHECK(offsets[count] == sums[7]);
        CHECK(names[sums[7]] == sums[8] && values[sums[7]] == sums[9]);
        free(names);
        free(values);
        free(text);
        free(other);
    }
    free(offsets);
    free(validity);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in = {data, size};
    int32_t wants = fuzz_below(&in, 8), kinds = fuzz_byte(&in), is_repaired = fuzz_below(&in, 2);
    int64_t segment_bytes = (int64_t)512 << fuzz_below(&in, 4), cut = fuzz_byte(&in);
    int32_t topic_offsets[2] = {0, 6};
    ts_table_filter filter = {.kinds = kinds & 1 ? kinds : 0, .has_due = kinds >> 1 & 1,
                              .due_to_ms = INT64_MAX, .has_store = kinds >> 2 & 1,
                              .store_to_ms = fuzz_number(&in), .topic_count = kinds >> 3 & 1,
                              .by_real_topic = kinds >> 4 & 1,
                              .timer_bits = kinds >> 5 & 1 ? (const uint8_t *)"\x5a\xc3" : NULL,
                              .first_timer = kinds >> 6, .timer_bit_count = 16,
                              .topics = (const uint8_t *)"orders", .topic_offsets = topic_offsets,
                              .key_count = kinds >> 7, .keys = (const uint8_t *)"orders",
                              .key_offsets = topic_offsets,
                              .without = (const uint8_t *)"orders", .without_size = kinds >> 4 & 6,
                              .names = (const uint8_t *)"orders", .name_offsets = topic_offsets,
                              .name_count = kinds >> 2 & 1};
    size_t took;
    uint8_t *bytes = fuzz_take(&in, (size_t)segment_bytes, &took);
    ts_window window = {.bytes = bytes, .size = (int64_t)took, .segment_bytes = segment_bytes,
                        .end = segment_bytes - cut, .verify = 1};
    ts_table_row rows[ROWS];
    ts_scanned scanned[ROWS];
    int64_t from = 0, next = 0, sums[SUMS];
    int32_t got;

    if (is_repaired)
        fuzz_repair(bytes, window.size, segment_bytes);
    while ((got = ts_table_scan(&window, 1000, &filter, wants, from, &next, 700, ROWS, rows,
                                sums)) >= 0 && next > from) {
        CHECK(got <= ROWS);
        fill(&window, &filter, rows, got, sums, wants & TS_WANT_PAIRS);
        from = next;
    }
    CHECK(window.need >= 0 && window.need <= segment_bytes);
    window.verify = 0;
    for (from = 0; (got = ts_window_scan(&window, 1000, from, &next, ROWS, scanned)) > 0 &&
                   next > from;)
        from = next;
    for (from = 0; ts_window_count(&window, from, &next, 3) > 0 && next > from;)
        from = next;
    free(bytes);
    return 0;
}
