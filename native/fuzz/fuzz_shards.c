/* Rows of a caller's column, with any offsets.¶Input: numbers, offsets, then bytes. */
#include "fuzz.h"

enum { ROWS = 8 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in = {data, size};
    int32_t shards[ROWS], shard_count = fuzz_below(&in, 6), wild = fuzz_below(&in, 4) == 0;
    int64_t offsets[ROWS + 1] = {0}, count = fuzz_below(&in, ROWS + 1);
    uint32_t crcs[ROWS] = {0};
    size_t took;
    uint8_t *bytes;

    for (int32_t i = 0; i < count; i++)
        offsets[i + 1] = wild ? fuzz_i64(&in) : offsets[i] + fuzz_byte(&in);
    bytes = fuzz_take(&in, 4096, &took);
    if (ts_shards_of_rows(bytes, (int64_t)took, offsets, count, shard_count, shards) == TS_OK) {
        for (int32_t i = 0; i < count; i++)
            CHECK(shards[i] >= -1 && shards[i] < shard_count);
        CHECK(ts_crc32_rows(bytes, (int64_t)took, offsets, count, crcs) == TS_OK);
    } else {
        (void)ts_crc32_rows(bytes, (int64_t)took, offsets, count, crcs);
    }
    free(bytes);
    return 0;
}
