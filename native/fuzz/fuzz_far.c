/* Units of the far wheel: chains wherever they lead, and units in sequence.
 *
 * Input: numbers, then the files' bytes. If the lowest bit of the first byte is set, every unit's
 * CRC is corrected, so that the fields are reached, too.
 */
#include "fuzz.h"

#include "base/checksum.h"
#include "format/far_unit.h"

enum { SEGMENTS = 8, CAPACITY = 3 };

static void set_crc(uint8_t *at, int64_t number)
{
    uint8_t head[8];

    ts_put_i64(head, number);
    ts_put_u32(at + TS_FAR_AT_CRC, ts_crc32(ts_crc32(0, head, sizeof head), at, TS_FAR_AT_CRC));
}

static void read_all(ts_view *view, int64_t first, int64_t slot, int64_t units)
{
    ts_far_unit out[CAPACITY];

    for (int64_t number = first, steps = 0; number >= 0; steps++) {
        int64_t before = number;
        int32_t got = ts_far_walk(view, slot, &number, CAPACITY, out);

        CHECK(got <= CAPACITY && steps <= units);
        if (got <= 0)
            break;
        CHECK(number < before && out[0].number == before);
        for (int32_t k = 0; k < got; k++)
            CHECK(out[k].slot == slot && out[k].size > 0 && out[k].previous < out[k].number);
    }
    for (int64_t at = 0; at < units; at++)
        CHECK(ts_far_scan(view, at, CAPACITY, out) <= CAPACITY);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in = {data, size};
    int32_t has_checksum = fuzz_byte(&in) & 1;
    int64_t segment_bytes = 60 + (int64_t)fuzz_below(&in, 200), per, units;
    int64_t slot = fuzz_number(&in), first = fuzz_number(&in);
    uint8_t *segments[SEGMENTS] = {NULL}, *bytes;
    ts_view view;
    size_t took;

    per = segment_bytes / TS_FAR_UNIT_BYTES;
    bytes = fuzz_take(&in, (size_t)(SEGMENTS * segment_bytes), &took);
    for (int64_t at = 0; at < (int64_t)took; at += segment_bytes) {
        int64_t left = (int64_t)took - at;
        uint8_t *segment = fuzz_zeros(segment_bytes, 1);

        memcpy(segment, bytes + at, (size_t)(left < segment_bytes ? left : segment_bytes));
        for (int64_t k = 0; k < per && has_checksum; k++)
            set_crc(segment + k * TS_FAR_UNIT_BYTES, at / segment_bytes * per + k);
        segments[at / segment_bytes] = segment;
    }
    units = ((int64_t)took + segment_bytes - 1) / segment_bytes * per;
    view = (ts_view){.segments = (const uint8_t **)segments, .segment_count = SEGMENTS,
                     .segment_bytes = segment_bytes, .begin = 0, .end = (int64_t)took};
    read_all(&view, first, slot, units);
    if (units > 0)
        read_all(&view, first % units, slot, units);
    for (int32_t k = 0; k < SEGMENTS; k++)
        free(segments[k]);
    free(bytes);
    return 0;
}
