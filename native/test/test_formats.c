/* File formats: test vectors of the reference in both directions, and truncated or invalid bytes.
 */
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

static void test_bytes(void)
{
    uint8_t at[9];

    ts_put_u8(at, 0xFE);
    CHECK(ts_get_u8(at) == 0xFE && ts_get_i8(at) == -2);
    ts_put_i16(at + 1, -2);
    CHECK(check_is_hex(at + 1, 2, "fffe"));
    CHECK(ts_get_i16(at + 1) == -2 && ts_get_u16(at + 1) == 0xFFFE);
    ts_put_u32(at + 1, 0x89ABCDEFu);
    CHECK(check_is_hex(at + 1, 4, "89abcdef"));
    CHECK(ts_get_u32(at + 1) == 0x89ABCDEFu && ts_get_i32(at + 1) < 0);
    ts_put_i32(at + 1, INT32_MIN);
    CHECK(ts_get_i32(at + 1) == INT32_MIN);
    ts_put_i64(at + 1, 0x0123456789ABCDEF);
    CHECK(check_is_hex(at + 1, 8, "0123456789abcdef"));
    CHECK(ts_get_i64(at + 1) == 0x0123456789ABCDEF);
    ts_put_i64(at + 1, INT64_MIN);
    CHECK(ts_get_i64(at + 1) == INT64_MIN);
}

static void test_queue_unit(void)
{
    uint8_t *at = malloc(TS_QUEUE_UNIT_BYTES);
    int64_t log_offset = -1, tags = -1;
    int32_t size = -1;

    CHECK(at != NULL);
    ts_queue_unit_put(at, 0, 115, ts_java_hash(TEXT("TagA")));
    CHECK(check_is_hex(at, 20, "0000000000000000 00000073 000000000027a807"));
    CHECK(ts_queue_unit_is_valid(at));
    ts_queue_unit_put(at, 115, 115, ts_java_hash(TEXT("TopicTest")));
    CHECK(check_is_hex(at, 20, "0000000000000073 00000073 ffffffff8e987641"));
    ts_queue_unit_get(at, &log_offset, &size, &tags);
    CHECK(log_offset == 115 && size == 115 && tags == -1902610879);
    memset(at, 0, TS_QUEUE_UNIT_BYTES);
    CHECK(!ts_queue_unit_is_valid(at));
    ts_queue_unit_put(at, -1, 115, 0);
    CHECK(!ts_queue_unit_is_valid(at));
    free(at);
}

static void test_timer_unit(void)
{
    uint8_t *at = malloc(TS_TIMER_UNIT_BYTES);
    ts_timer_unit in = {
        .prev_pos = TS_TIMER_PREV_NONE,
        .magic = TS_TIMER_MAGIC_DEFAULT,
        .write_ms = 1700000000000,
        .delay_ms = 5000,
        .log_offset = 0x1122334455,
        .size = 300,
        .topic_hash = ts_java_hash(TEXT("TopicTest")),
    };
    ts_timer_unit out;

    CHECK(at != NULL);
    ts_timer_unit_put(at, &in);
    CHECK(check_is_hex(at, 52,
                       "00000034 ffffffffffffffff 00000001 0000018bcfe56800 00001388"
                       "0000001122334455 0000012c 8e987641 0000000000000000"));
    CHECK(ts_timer_unit_get(at, &out) == 0);
    CHECK(out.prev_pos == in.prev_pos && out.magic == in.magic && out.write_ms == in.write_ms);
    CHECK(out.delay_ms == in.delay_ms && out.log_offset == in.log_offset);
    CHECK(out.size == in.size && out.topic_hash == in.topic_hash && out.checksum == 0);
    for (int32_t magic = 0; magic <= 15; magic++) {
        ts_put_i32(at + TS_TIMER_AT_MAGIC, magic);
        CHECK(ts_timer_unit_get(at, &out) == 0 && out.magic == magic);
    }
    ts_put_i32(at + TS_TIMER_AT_MAGIC, 16);
    CHECK(ts_timer_unit_get(at, &out) < 0);
    ts_put_i32(at + TS_TIMER_AT_MAGIC, -1);
    CHECK(ts_timer_unit_get(at, &out) < 0);
    ts_put_i32(at + TS_TIMER_AT_MAGIC, 1);
    ts_put_i64(at + TS_TIMER_AT_PREV_POS, -2);
    CHECK(ts_timer_unit_get(at, &out) < 0);
    ts_put_i64(at + TS_TIMER_AT_PREV_POS, -1);
    ts_put_i64(at + TS_TIMER_AT_LOG_OFFSET, -1);
    CHECK(ts_timer_unit_get(at, &out) < 0);
    ts_put_i64(at + TS_TIMER_AT_LOG_OFFSET, 0);
    CHECK(ts_timer_unit_get(at, &out) == 0);
    ts_put_i32(at, 51);
    CHECK(ts_timer_unit_get(at, &out) < 0);
    ts_put_i32(at, 53);
    CHECK(ts_timer_unit_get(at, &out) < 0);
    memset(at, 0, TS_TIMER_UNIT_BYTES);
    CHECK(ts_timer_unit_get(at, &out) < 0);
    free(at);
}

static void test_timer_blank(void)
{
    uint8_t *at = malloc(TS_TIMER_BLANK_BYTES);
    int32_t remaining = 0;

    CHECK(at != NULL);
    ts_timer_blank_put(at, 16);
    CHECK(check_is_hex(at, 16, "00000010 0000000000000000 cbd43194"));
    CHECK(ts_timer_blank_is(at, 16, &remaining) && remaining == 16);
    for (int32_t n = 0; n < 16; n++) {
        uint8_t *cut = check_copy(at, (size_t)n);

        CHECK(!ts_timer_blank_is(cut, n, &remaining));
        free(cut);
    }
    ts_put_i32(at, 15);
    CHECK(!ts_timer_blank_is(at, 16, &remaining));
    memset(at, 0, 16);
    CHECK(!ts_timer_blank_is(at, 16, &remaining));
    free(at);
}

static void test_wheel_slot(void)
{
    uint8_t *at = malloc(TS_SLOT_BYTES);
    ts_slot in = {.time = 1700000005000 / 1000, .first_pos = 104, .last_pos = 312, .count = 3};
    ts_slot out;

    CHECK(at != NULL);
    ts_slot_put(at, &in);
    CHECK(check_is_hex(at, 32,
                       "000000006553f105 0000000000000068 0000000000000138 00000003 00000000"));
    ts_slot_get(at, &out);
    CHECK(out.time == in.time && out.first_pos == 104 && out.last_pos == 312);
    CHECK(out.count == 3 && out.magic == 0);
    CHECK(in.time % TS_WHEEL_SLOT_COUNT * TS_SLOT_BYTES == 16384160);
    free(at);
}

static void test_timer_check(void)
{
    uint8_t *at = malloc(TS_TIMER_CHECK_BYTES);
    ts_timer_check in = {1700000004000, 52000, 900, 905, 0, 1700000004321, 42}, out;

    CHECK(at != NULL);
    ts_timer_check_put(at, &in);
    CHECK(check_is_hex(at, 56,
                       "0000018bcfe577a0 000000000000cb20 0000000000000384 0000000000000389"
                       "0000000000000000 0000018bcfe578e1 000000000000002a"));
    CHECK(ts_timer_check_get(at, 56, &out) == 0 && out.read_ms == in.read_ms);
    CHECK(out.flushed_pos == 52000 && out.queue_offset == 900);
    CHECK(out.master_queue_offset == 905 && out.state_version == 0);
    CHECK(out.version_ms == 1700000004321 && out.counter == 42);
    for (int64_t n = 0; n < 56; n++) {
        uint8_t *cut = check_copy(at, (size_t)n);
        int fault = ts_timer_check_get(cut, n, &out);

        CHECK((fault == 0) == (n >= 32));
        if (fault == 0)
            CHECK(out.counter == 0 && out.version_ms == (n < 48 ? 0 : in.version_ms));
        free(cut);
    }
    free(at);
}

static void test_store_checkpoint(void)
{
    uint8_t *at = malloc(TS_STORE_CHECKPOINT_BYTES);
    ts_store_checkpoint in = {1700000000001, 1700000000002, 1700000000003, 4, 5}, out;

    CHECK(at != NULL);
    ts_store_checkpoint_put(at, &in);
    CHECK(check_is_hex(at, 40,
                       "0000018bcfe56801 0000018bcfe56802 0000018bcfe56803"
                       "0000000000000004 0000000000000005"));
    CHECK(ts_store_checkpoint_get(at, 40, &out) == 0);
    CHECK(out.log_ms == in.log_ms && out.queues_ms == in.queues_ms);
    CHECK(out.index_ms == in.index_ms && out.master_flushed_offset == 4);
    CHECK(out.confirm_offset == 5);
    for (int64_t n = 0; n < 40; n++) {
        uint8_t *cut = check_copy(at, (size_t)n);
        int fault = ts_store_checkpoint_get(cut, n, &out);

        CHECK((fault == 0) == (n >= 32));
        CHECK(fault != 0 || out.confirm_offset == 0);
        free(cut);
    }
    free(at);
}

int main(void)
{
    test_bytes();
    test_queue_unit();
    test_timer_unit();
    test_timer_blank();
    test_wheel_slot();
    test_timer_check();
    test_store_checkpoint();
    puts("test_formats: ok");
    return 0;
}
