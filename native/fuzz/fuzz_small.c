/* The small files of fixed size: timercheck, the broker's checkpoint, an index file's header; and
 * texts of numbers and ids.
 *
 * Input: the bytes of the file.
 */
#include "fuzz.h"

#include "format/digits.h"
#include "format/group.h"
#include "format/index_file.h"
#include "format/level_mark.h"
#include "format/properties.h"
#include "format/store_checkpoint.h"
#include "format/timer_check.h"

static void check_timer(const uint8_t *bytes, int64_t size)
{
    int64_t fields[TS_TIMER_CHECK_BYTES / 8];
    uint8_t again[TS_TIMER_CHECK_BYTES];
    int64_t known = size < TS_TIMER_CHECK_BYTES ? size / 8 * 8 : TS_TIMER_CHECK_BYTES;

    if (ts_timer_check_unpack(bytes, size, fields) != TS_OK)
        return;
    ts_timer_check_pack(fields, again);
    CHECK(memcmp(again, bytes, (size_t)known) == 0);
}

static void check_header(const uint8_t *bytes, int64_t size)
{
    uint8_t again[TS_INDEX_HEADER_BYTES];
    ts_index index = {.slot_count = 16, .entry_count = 64};

    if (size < TS_INDEX_HEADER_BYTES || ts_index_header_get(&index, bytes) != TS_OK)
        return;
    CHECK(index.next_entry >= 1 && index.next_entry <= 64 && index.slots_used < 64);
    ts_index_header_put(&index, again);
    CHECK(memcmp(again, bytes, 36) == 0);
}

static void check_texts(const uint8_t *bytes, int32_t size)
{
    uint8_t text[TS_DECIMAL_BYTES_MAX];
    int64_t number = 0, place = 0, due_ms = 0, start = 0, left = 0;
    uint32_t store_id = 0, crc = 0;
    uint64_t id = 0;

    if (ts_decimal_get_i64(bytes, size, &number) == 0 && size <= TS_DECIMAL_BYTES_MAX) {
        int64_t again = 0;

        CHECK(ts_decimal_get_i64(text, ts_decimal_put_i64(text, number), &again) == 0);
        CHECK(again == number);
    }
    if (size >= TS_TIMER_ID_TEXT_BYTES && ts_timer_id_get(bytes, &store_id, &id) == 0) {
        ts_timer_id_put(text, store_id, id);
        CHECK(memcmp(text, bytes, TS_TIMER_ID_TEXT_BYTES) == 0);
    }
    if (size >= TS_GROUP_TEXT_BYTES)
        (void)ts_group_get(bytes, &start, &left);
    if (size >= TS_LEVEL_MARK_TEXT_BYTES)
        (void)ts_level_mark_get(bytes, &store_id, &place, &due_ms);
    if (size >= TS_PROPERTY_CRC_BYTES)
        (void)ts_property_crc_get(bytes, &crc);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in = {data, size};
    size_t took;
    uint8_t *bytes = fuzz_take(&in, 8192, &took);

    check_timer(bytes, (int64_t)took);
    check_header(bytes, (int64_t)took);
    check_texts(bytes, (int32_t)took);
    free(bytes);
    return 0;
}
