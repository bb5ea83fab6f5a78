/* Values of properties: timer ids, groups, level marks, decimal numbers, and Java's hash. */
#include "check.h"

#include "base/checksum.h"
#include "format/level_mark.h"
#include "format/properties.h"
#include "format/queue_unit.h"
#include "format/record.h"
#include "format/store_checkpoint.h"
#include "format/timer_check.h"
#include "format/timer_unit.h"
#include "format/wheel_slot.h"

#define TEXT(literal) (const uint8_t *)(literal), (int32_t)sizeof(literal) - 1

static void test_level_mark(void)
{
    uint8_t *at = malloc(TS_LEVEL_MARK_TEXT_BYTES);
    uint32_t store = 0;
    int64_t place = 0, due_ms = 0;
    uint64_t seed = 5;

    CHECK(at != NULL);
    ts_level_mark_put(at, 1, (int64_t)1 << 48 | 7, 1700000000000);
    CHECK(memcmp(at, "AAAAAQABAAAAAAAHAYvP5WgA", 24) == 0); /* as drawn in level_mark.h */
    for (int round = 0; round < 10000; round++) {
        uint32_t in_store = check_random(&seed);
        int64_t in_place = (int64_t)(check_random(&seed) & 0x7FFFFFFF) << 32 | check_random(&seed);
        int64_t in_due = (int64_t)(check_random(&seed) & 0xFFFF) << 32 | check_random(&seed);

        ts_level_mark_put(at, in_store, in_place, in_due);
        CHECK(ts_level_mark_get(at, &store, &place, &due_ms) == 0);
        CHECK(store == in_store && place == in_place && due_ms == in_due);
    }
    for (int n = 0; n < 24; n++) {
        memset(at, 'A', 24);
        at[n] = '=';
        CHECK(ts_level_mark_get(at, &store, &place, &due_ms) == -1);
    }
    memset(at, '_', 24); /* a queue number that is too large */
    CHECK(ts_level_mark_get(at, &store, &place, &due_ms) == -1);
    free(at);
}

static void test_timer_id(void)
{
    uint8_t *at = malloc(TS_TIMER_ID_TEXT_BYTES);
    uint32_t store = 0;
    uint64_t id = 0, seed = 4;

    CHECK(at != NULL);
    ts_timer_id_put(at, 1, 7);
    CHECK(memcmp(at, "AAAAAQAAAAAAAAAH", 16) == 0);
    ts_timer_id_put(at, UINT32_MAX, UINT64_MAX);
    CHECK(memcmp(at, "________________", 16) == 0);
    ts_timer_id_put(at, 0x01234567u, 0x89ABCDEFFEDCBA98u);
    CHECK(memcmp(at, "ASNFZ4mrze_-3LqY", 16) == 0);
    for (int round = 0; round < 10000; round++) {
        uint32_t in_store = check_random(&seed);
        uint64_t in_id = (uint64_t)check_random(&seed) << 32 | check_random(&seed);

        ts_timer_id_put(at, in_store, in_id);
        CHECK(ts_timer_id_get(at, &store, &id) == 0 && store == in_store && id == in_id);
    }
    for (int n = 0; n < 16; n++) {
        for (int c = 0; c < 256; c++) {
            int is_one = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
                         (c >= 'a' && c <= 'z') || c == '-' || c == '_';

            memset(at, 'A', 16);
            at[n] = (uint8_t)c;
            CHECK((ts_timer_id_get(at, &store, &id) == 0) == is_one);
        }
    }
    free(at);
}

static void test_group(void)
{
    uint8_t *at = malloc(TS_GROUP_TEXT_BYTES);
    int64_t start = 0, left = 0;

    CHECK(at != NULL);
    ts_group_put(at, 1000, 280);
    CHECK(memcmp(at, "AAABGAAAAAAAAAPo", 16) == 0);
    CHECK(ts_group_get(at, &start, &left) == 0 && start == 1000 && left == 280);
    ts_group_put(at, INT64_MAX, INT32_MAX);
    CHECK(ts_group_get(at, &start, &left) == 0 && start == INT64_MAX && left == INT32_MAX);
    memset(at, '_', 16); /* a start that is too large for an offset */
    CHECK(ts_group_get(at, &start, &left) == -1);
    memset(at, '=', 16);
    CHECK(ts_group_get(at, &start, &left) == -1);
    free(at);
}

static void check_decimal(int64_t number)
{
    char wanted[32];
    uint8_t *got;
    int64_t back = 0;
    int size = snprintf(wanted, sizeof wanted, "%lld", (long long)number);

    got = malloc((size_t)size);
    CHECK(got != NULL);
    CHECK(ts_decimal_put_i64(got, number) == size);
    CHECK(memcmp(got, wanted, (size_t)size) == 0);
    CHECK(ts_decimal_get_i64(got, size, &back) == 0 && back == number);
    free(got);
}

static void test_decimal(void)
{
    static const char *const refused[] = {
        "", "+", "-", "--1", "+-1", " 1", "1 ", "0x1", "1.0", "1e3", "9223372036854775808",
        "-9223372036854775809", "18446744073709551616", "99999999999999999999", "1/", "1:",
    };
    uint64_t seed = 5;
    int64_t back = 0, power = 1;

    check_decimal(0);
    check_decimal(INT64_MAX);
    check_decimal(INT64_MIN);
    for (int n = 0; n < 19; n++, power *= n < 19 ? 10 : 1) {
        check_decimal(power);
        check_decimal(power - 1);
        check_decimal(-power);
    }
    for (int64_t four = 0; four < 10000; four++) { /* both halves of eight digits, with all
                                                    * values */
        check_decimal(1700000000000 + four * 10001);
        check_decimal(9999900000000 - four * 100000);
    }
    for (int round = 0; round < 20000; round++) {
        uint64_t bits = (uint64_t)check_random(&seed) << 32 | check_random(&seed);

        check_decimal((int64_t)(bits >> (round & 63)));
        check_decimal((int64_t)bits);
    }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        size_t size = strlen(refused[i]);
        uint8_t *exact = check_copy((const uint8_t *)refused[i], size);

        CHECK(ts_decimal_get_i64(exact, (int32_t)size, &back) < 0);
        free(exact);
    }
    CHECK(ts_decimal_get_i64(TEXT("+5"), &back) == 0 && back == 5);
    CHECK(ts_decimal_get_i64(TEXT("-0"), &back) == 0 && back == 0);
    CHECK(ts_decimal_get_i64(TEXT("0000000000000000000000000000012"), &back) == 0 && back == 12);
    CHECK(ts_decimal_get_i64(TEXT("-9223372036854775808"), &back) == 0 && back == INT64_MIN);
}

static void test_java_hash(void)
{
    uint64_t seed = 6;

    CHECK(ts_java_hash(TEXT("")) == 0);
    CHECK(ts_java_hash(TEXT("TagA")) == 2598919);
    CHECK(ts_java_hash(TEXT("TagB")) == 2598920);
    CHECK(ts_java_hash(TEXT("TopicTest")) == -1902610879);
    CHECK(ts_java_hash(TEXT("_RECALL_TAG_")) == -847619372);
    CHECK(ts_java_hash(TEXT("TopicTest#KEY1")) == 1656969516 ||
          ts_java_hash(TEXT("TopicTest#KEY1")) == -1656969516);
    CHECK(ts_java_hash(TEXT("\xE4\xB8\xAD\xE6\x96\x87")) == 646394);
    CHECK(ts_java_hash(TEXT("\xF0\x9F\x98\x80")) == 1772899);
    /* Malformed UTF-8: as many U+FFFD as Java's decoder makes. */
    CHECK(ts_java_hash(TEXT("\xFF")) == 0xFFFD);
    CHECK(ts_java_hash(TEXT("\xE4\xB8")) == 0xFFFD);
    CHECK(ts_java_hash(TEXT("\xF0\x9F\x98")) == 0xFFFD);
    CHECK(ts_java_hash(TEXT("\xED\xA0\x80")) == 0xFFFD);
    CHECK(ts_java_hash(TEXT("\xE4\x41")) == 0xFFFD * 31 + 'A');
    CHECK(ts_java_hash(TEXT("\xC0\x80")) == 0xFFFD * 31 + 0xFFFD);
    CHECK(ts_java_hash(TEXT("\xF5\x80")) == 0xFFFD * 31 + 0xFFFD);
    CHECK(ts_java_hash(TEXT("\xF4\x90")) == 0xFFFD * 31 + 0xFFFD);
    for (int round = 0; round < 20000; round++) { /* random bytes in buffers of exactly their
                                                   * size */
        uint8_t raw[24];
        uint32_t slow = 0;
        int32_t size = (int32_t)(check_random(&seed) % sizeof raw);
        uint8_t *exact;

        for (int32_t i = 0; i < size; i++)
            raw[i] = (uint8_t)(check_random(&seed) & (round & 1 ? 0x7Fu : 0xFFu));
        exact = check_copy(raw, (size_t)size);
        for (int32_t i = 0; i < size; i++)
            slow = slow * 31 + raw[i];
        CHECK(ts_java_hash(exact, size) == (int32_t)slow || !(round & 1));
        free(exact);
    }
}

int main(void)
{
    test_timer_id();
    test_group();
    test_level_mark();
    test_decimal();
    test_java_hash();
    puts("test_property_values: ok");
    return 0;
}
