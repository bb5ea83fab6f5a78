/* Shards of many rows, and checksums of many rows, in one call. Pure; any thread may call it. */
#include "base/checksum.h"

#include "timerstore.h"

static int is_span(const int64_t *offsets, int64_t row, int64_t size)
{
    return offsets[row] >= 0 && offsets[row] <= offsets[row + 1] && offsets[row + 1] <= size;
}

int ts_shards_of_rows(const uint8_t *data, int64_t size, const int64_t *offsets, int64_t count,
                      int32_t shard_count, int32_t *shards)
{
    if (shard_count < 1)
        return TS_INVALID;
    for (int64_t row = 0; row < count; row++) {
        int64_t length;

        if (!is_span(offsets, row, size))
            return TS_INVALID;
        length = offsets[row + 1] - offsets[row];
        shards[row] = -1;
        if (length > 0)
            shards[row] = (int32_t)(ts_crc32(0, data + offsets[row], length) %
                                    (uint32_t)shard_count);
    }
    return TS_OK;
}

int ts_crc32_rows(const uint8_t *data, int64_t size, const int64_t *offsets, int64_t count,
                  uint32_t *crcs)
{
    for (int64_t row = 0; row < count; row++) {
        if (!is_span(offsets, row, size))
            return TS_INVALID;
        if (offsets[row + 1] > offsets[row])
            crcs[row] = ts_crc32(crcs[row], data + offsets[row], offsets[row + 1] - offsets[row]);
    }
    return TS_OK;
}
