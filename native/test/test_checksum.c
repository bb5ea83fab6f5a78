/* CRC-32, compared with the definition bit by bit: every size and offset, at once and in parts. */
#include "check.h"

#include "base/checksum.h"

/* Include the source again under another name, to reach the implementations that this machine does
 * not use. */
#define ts_crc32 checksum_again
#include "base/checksum.c"
#undef ts_crc32

enum { SIZE_MAX_TESTED = 2048, OFFSETS = 16 };

static uint32_t definition(uint32_t crc, uint8_t byte)
{
    crc = ~crc ^ byte;
    for (int bit = 0; bit < 8; bit++)
        crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xEDB88320u : 0);
    return ~crc;
}

static void test_known_values(void)
{
    CHECK(ts_crc32(0, (const uint8_t *)"123456789", 9) == 0xCBF43926u);
    CHECK((ts_crc32(0, (const uint8_t *)"0", 1) & 0x7FFFFFFFu) == 1960566561u);
    CHECK(ts_crc32(0, (const uint8_t *)"hello", 5) == 0x3610A686u);
    CHECK(ts_crc32(0, NULL, 0) == 0);
    CHECK(ts_crc32(77, NULL, 0) == 77);
    CHECK(ts_crc32(77, NULL, -1) == 77);
}

static void test_every_size_and_offset(void)
{
    uint64_t seed = 1;

    for (size_t size = 0; size <= SIZE_MAX_TESTED; size++) {
        /* The buffer ends with the data, so that a read past it is detected. */
        for (size_t offset = 0; offset < OFFSETS; offset++) {
            uint8_t *buffer = malloc(size + offset + 1);
            uint8_t *data = buffer + offset + 1;
            uint32_t crc = 0;

            CHECK(buffer != NULL);
            for (size_t i = 0; i < size; i++) {
                data[i] = (uint8_t)check_random(&seed);
                crc = definition(crc, data[i]);
            }
            CHECK(ts_crc32(0, data, (int64_t)size) == crc);
            CHECK(checksum_again(0, data, (int64_t)size) == crc);
            CHECK(~crc_slices(~0u, data, size) == crc);
#if defined(TS_CRC32_FOLDS)
            CHECK(size < 16 || !can_fold || ~crc_fold(~0u, data, size) == crc);
#endif
            CHECK(~crc_bytes(~0u, data, size) == crc);
            free(buffer);
        }
    }
}

static void test_chained(void)
{
    uint8_t data[700];
    uint64_t seed = 2;
    uint32_t whole;

    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)check_random(&seed);
    whole = ts_crc32(0, data, sizeof data);
    for (int64_t cut = 0; cut <= (int64_t)sizeof data; cut++) {
        uint32_t crc = ts_crc32(0, data, cut);

        CHECK(ts_crc32(crc, data + cut, (int64_t)sizeof data - cut) == whole);
        crc = ~crc_slices(~0u, data, (size_t)cut);
        CHECK(~crc_slices(~crc, data + cut, sizeof data - (size_t)cut) == whole);
    }
    for (int round = 0; round < 2000; round++) {
        uint32_t crc = 0;
        int64_t at = 0;

        while (at < (int64_t)sizeof data) {
            int64_t piece = check_random(&seed) % 150;

            if (piece > (int64_t)sizeof data - at)
                piece = (int64_t)sizeof data - at;
            crc = ts_crc32(crc, data + at, piece);
            at += piece;
        }
        CHECK(crc == whole);
    }
}

int main(void)
{
    test_known_values();
    test_every_size_and_offset();
    test_chained();
    puts("test_checksum: ok");
    return 0;
}
