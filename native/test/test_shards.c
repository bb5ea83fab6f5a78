/* Shards and CRCs of rows, compared with the definition: edge cases, and invalid offsets. */
#include "check.h"

#include "base/checksum.h"
#include "timerstore.h"

enum { ROWS = 5 };

static const char text[] = "orderkeylonger than sixteen bytes";
static const int64_t spans[ROWS + 1] = {0, 5, 5, 8, 8, 33};

static void rows_go_by_their_crc(void)
{
    uint8_t *data = check_copy((const uint8_t *)text, sizeof text - 1);
    int32_t shards[ROWS];

    for (int32_t count = 1; count < 40; count++) {
        CHECK(ts_shards_of_rows(data, sizeof text - 1, spans, ROWS, count, shards) == TS_OK);
        for (int row = 0; row < ROWS; row++) {
            int64_t size = spans[row + 1] - spans[row];
            uint32_t crc = ts_crc32(0, data + spans[row], size);

            CHECK(shards[row] == (size == 0 ? -1 : (int32_t)(crc % (uint32_t)count)));
        }
    }
    CHECK(ts_shards_of_rows(NULL, 0, spans, 0, 3, shards) == TS_OK);
    CHECK(ts_shards_of_rows(data, sizeof text - 1, spans, ROWS, 0, shards) == TS_INVALID);
    free(data);
}

static void crcs_go_on(void)
{
    uint8_t *data = check_copy((const uint8_t *)text, sizeof text - 1);
    uint32_t crcs[ROWS] = {0, 0, 7, 7, 0};

    CHECK(ts_crc32_rows(data, sizeof text - 1, spans, ROWS, crcs) == TS_OK);
    CHECK(crcs[0] == ts_crc32(0, data, 5) && crcs[1] == 0);
    CHECK(crcs[2] == ts_crc32(7, data + 5, 3) && crcs[3] == 7);
    CHECK(crcs[4] == ts_crc32(0, data + 8, 25));
    free(data);
}

static void wrong_offsets_are_refused(void)
{
    static const int64_t wrong[][2] = {{-1, 3}, {3, 2}, {0, 34}, {INT64_MAX, INT64_MAX}};
    uint8_t *data = check_copy((const uint8_t *)text, sizeof text - 1);
    int32_t shard = 0;
    uint32_t crc = 0;

    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        CHECK(ts_shards_of_rows(data, sizeof text - 1, wrong[k], 1, 3, &shard) == TS_INVALID);
        CHECK(ts_crc32_rows(data, sizeof text - 1, wrong[k], 1, &crc) == TS_INVALID);
    }
    free(data);
}

int main(void)
{
    rows_go_by_their_crc();
    crcs_go_on();
    wrong_offsets_are_refused();
    return 0;
}
