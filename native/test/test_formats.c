/* Formats: the reference's vectors bit for bit, both ways; and bytes that are cut or wrong. */
#include "check.h"

#include "format/level_mark.h"
#include "format/properties.h"
#include "format/queue_unit.h"
#include "format/record.h"
#include "format/store_checkpoint.h"
#include "format/timer_check.h"
#include "format/timer_unit.h"
#include "format/wheel_slot.h"
#include "base/checksum.h"

#define TEXT(literal) (const uint8_t *)(literal), (int32_t)sizeof(literal) - 1

enum { RECORD_ROOM = 512 };

static const uint8_t host_1[20] = {127, 0, 0, 1, 0, 0, 0x9C, 0x40};
static const uint8_t host_2[20] = {127, 0, 0, 1, 0, 0, 0x2A, 0x9F};

/* The reference's message, with what a test wants to vary. */
static ts_record message(int32_t magic, int32_t sys_flag, const uint8_t *properties, int32_t size)
{
    ts_record record = {
        .magic = magic,
        .body_crc = 0x3610A686,
        .queue_id = 3,
        .queue_offset = 7,
        .sys_flag = sys_flag,
        .born_ms = 1700000000000,
        .born_host = host_1,
        .born_host_size = (sys_flag & TS_SYS_BORN_HOST_IPV6) != 0 ? 20 : 8,
        .store_ms = 1700000000123,
        .store_host = host_2,
        .store_host_size = (sys_flag & TS_SYS_STORE_HOST_IPV6) != 0 ? 20 : 8,
        .body = (const uint8_t *)"hello",
        .body_size = 5,
        .topic = (const uint8_t *)"TopicTest",
        .topic_size = 9,
        .properties = properties,
        .properties_size = size,
    };

    return record;
}

static int same_text(const uint8_t *a, int32_t a_size, const uint8_t *b, int32_t b_size)
{
    return a_size == b_size && (a_size == 0 || memcmp(a, b, (size_t)a_size) == 0);
}

static void check_same_record(const ts_record *a, const ts_record *b)
{
    CHECK(a->magic == b->magic && a->body_crc == b->body_crc && a->queue_id == b->queue_id);
    CHECK(a->flag == b->flag && a->queue_offset == b->queue_offset);
    CHECK(a->log_offset == b->log_offset && a->sys_flag == b->sys_flag);
    CHECK(a->born_ms == b->born_ms && a->store_ms == b->store_ms);
    CHECK(a->reconsume_times == b->reconsume_times);
    CHECK(a->prepared_offset == b->prepared_offset);
    CHECK(same_text(a->born_host, a->born_host_size, b->born_host, b->born_host_size));
    CHECK(same_text(a->store_host, a->store_host_size, b->store_host, b->store_host_size));
    CHECK(same_text(a->body, a->body_size, b->body, b->body_size));
    CHECK(same_text(a->topic, a->topic_size, b->topic, b->topic_size));
    CHECK(same_text(a->properties, a->properties_size, b->properties, b->properties_size));
}

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

static void test_record_vectors(void)
{
    static const char head[] =
        "daa320a7 3610a686 00000003 00000000 0000000000000007 0000000000000000 00000000"
        "0000018bcfe56800 7f000001 00009c40 0000018bcfe5687b 7f000001 00002a9f 00000000"
        "0000000000000000 00000005 68656c6c6f 09 546f70696354657374";
    uint8_t at[RECORD_ROOM], properties[30];
    char wanted[1024];
    ts_record in = message(TS_RECORD_MAGIC_V1, 0, TEXT("TAGS\001TagA\002")), out;
    uint32_t crc = 0;

    CHECK(ts_record_put(at, &in) == 115);
    snprintf(wanted, sizeof wanted, "00000073 %s 000a 544147530154616741 02", head);
    CHECK(check_is_hex(at, 115, wanted));
    CHECK(ts_record_get(at, 115, &out) == 0 && out.size == 115 && out.base == at);
    check_same_record(&in, &out);
    CHECK(ts_get_i64(at + TS_RECORD_AT_STORE_MS) == in.store_ms);
    CHECK(memcmp(at + TS_RECORD_AT_STORE_HOST, host_2, 8) == 0);
    CHECK(ts_get_i32(at + TS_RECORD_AT_RECONSUME) == 0);
    CHECK(ts_get_i64(at + TS_RECORD_AT_PREPARED) == 0);
    CHECK(ts_get_i32(at + TS_RECORD_AT_BODY_SIZE) == 5 && at[TS_RECORD_AT_BODY] == 'h');

    /* The same with its CRC. */
    memcpy(properties, "TAGS\001TagA\002", 10);
    ts_property_crc_put(properties + 10, 0);
    in = message(TS_RECORD_MAGIC_V1, 0, properties, sizeof properties);
    CHECK(ts_record_put(at, &in) == 135);
    ts_property_crc_put(at + 115, ts_crc32(0, at, 115) & 0x7FFFFFFFu);
    snprintf(wanted, sizeof wanted,
             "00000087 %s 001e 544147530154616741 02"
             "5f5f435243333223 01 35353033313534393031 02", head);
    CHECK(check_is_hex(at, 135, wanted));
    CHECK(ts_property_crc_get(at + 115, &crc) == 1 && crc == 1094513055);
}

/* Reads every byte that a record claims, for the sanitizer. */
static void touch(const ts_record *record)
{
    uint32_t crc = ts_crc32(0, record->born_host, record->born_host_size);

    crc = ts_crc32(crc, record->store_host, record->store_host_size);
    crc = ts_crc32(crc, record->body, record->body_size);
    crc = ts_crc32(crc, record->topic, record->topic_size);
    crc = ts_crc32(crc, record->properties, record->properties_size);
    CHECK(crc == ts_crc32(crc, NULL, 0));
    CHECK(record->properties + record->properties_size == record->base + record->size);
}

static void check_cut_and_wrong(const uint8_t *whole, int32_t size)
{
    static const uint8_t others[] = {0x00, 0x01, 0x7F, 0x80, 0xFF};
    ts_record out;

    for (int32_t n = 0; n < size; n++) {
        uint8_t *cut = check_copy(whole, (size_t)n);

        CHECK(ts_record_get(cut, n, &out) == TS_RECORD_SHORT);
        if (n >= 4) { /* and where the size itself says so */
            int fault;

            ts_put_i32(cut, n);
            fault = ts_record_get(cut, n, &out);
            CHECK(fault == (n < 8 ? TS_RECORD_SHORT : TS_RECORD_LENGTHS));
        }
        free(cut);
    }
    for (int32_t n = 0; n < size; n++) {
        for (size_t i = 0; i <= sizeof others; i++) {
            uint8_t *wrong = check_copy(whole, (size_t)size);

            wrong[n] = i < sizeof others ? others[i] : (uint8_t)(wrong[n] ^ 1);
            if (ts_record_get(wrong, size, &out) == 0)
                touch(&out);
            free(wrong);
        }
    }
}

static void test_record_forms(void)
{
    static const int32_t magics[] = {TS_RECORD_MAGIC_V1, TS_RECORD_MAGIC_V2};

    for (int form = 0; form < 8; form++) {
        int32_t magic = magics[form & 1];
        int32_t sys_flag = (form & 2 ? TS_SYS_BORN_HOST_IPV6 : 0) |
                           (form & 4 ? TS_SYS_STORE_HOST_IPV6 : 0);
        int32_t wanted = 115 + (form & 1) + (form & 2 ? 12 : 0) + (form & 4 ? 12 : 0);
        ts_record in = message(magic, sys_flag, TEXT("TAGS\001TagA\002")), out;
        uint8_t at[RECORD_ROOM];

        CHECK(ts_record_put(at, &in) == wanted);
        CHECK(ts_record_get(at, wanted, &out) == 0 && out.size == wanted);
        check_same_record(&in, &out);
        CHECK(ts_record_get(at, RECORD_ROOM, &out) == 0); /* what follows does not matter */
        check_cut_and_wrong(at, wanted);
    }
}

static void test_record_wide_topic(void)
{
    uint8_t topic[256], at[RECORD_ROOM];
    ts_record in = message(TS_RECORD_MAGIC_V2, 0, NULL, 0), out;
    int32_t size;

    memset(topic, 't', sizeof topic);
    in.topic = topic;
    in.topic_size = 255;
    size = ts_record_put(at, &in);
    CHECK(size == 92 + 5 + 255);
    CHECK(ts_record_get(at, size, &out) == 0);
    check_same_record(&in, &out);
    /* One byte more than any folder's name can have: readers have room for so many and no more. */
    in.topic_size = 256;
    size = ts_record_put(at, &in);
    CHECK(ts_record_get(at, size, &out) == TS_RECORD_LENGTHS);
}

static void test_record_queue_offset(void)
{
    const int64_t offsets[] = {0, TS_QUEUE_OFFSET_MAX, TS_QUEUE_OFFSET_MAX + 1, -1};
    uint8_t at[RECORD_ROOM];
    ts_record in = message(TS_RECORD_MAGIC_V1, 0, NULL, 0), out;

    for (int32_t i = 0; i < 4; i++) {
        in.queue_offset = offsets[i];
        CHECK(ts_record_get(at, ts_record_put(at, &in), &out) == (i < 2 ? 0 : TS_RECORD_LENGTHS));
    }
}

static void test_record_faults(void)
{
    uint8_t at[RECORD_ROOM] = {0};
    ts_record in = message(TS_RECORD_MAGIC_V1, 0, TEXT("TAGS\001TagA\002")), out;
    uint64_t seed = 3;

    CHECK(ts_record_get(at, sizeof at, &out) == TS_RECORD_ENDS);
    CHECK(ts_record_get(at, 4, &out) == TS_RECORD_ENDS);
    CHECK(ts_record_get(at, 3, &out) == TS_RECORD_SHORT);
    ts_record_put(at, &in);
    ts_put_i32(at + TS_RECORD_AT_MAGIC, TS_BLANK_MAGIC);
    CHECK(ts_record_get(at, sizeof at, &out) == TS_RECORD_MAGIC);
    ts_record_put(at, &in);
    ts_put_i32(at, -115);
    CHECK(ts_record_get(at, sizeof at, &out) == TS_RECORD_LENGTHS);
    ts_put_i32(at, INT32_MAX);
    CHECK(ts_record_get(at, sizeof at, &out) == TS_RECORD_SHORT);
    ts_put_i32(at, 90);
    CHECK(ts_record_get(at, sizeof at, &out) == TS_RECORD_LENGTHS);
    ts_put_i32(at, 114);
    CHECK(ts_record_get(at, sizeof at, &out) == TS_RECORD_LENGTHS);
    ts_put_i32(at, 116);
    CHECK(ts_record_get(at, sizeof at, &out) == TS_RECORD_LENGTHS);
    for (int i = 0; i < 3; i++) { /* the three lengths inside, each negative or too large */
        static const int32_t wrong[] = {INT32_MIN, -1, INT32_MAX, 25};

        for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++) {
            ts_record_put(at, &in);
            if (i == 0)
                ts_put_i32(at + TS_RECORD_AT_BODY_SIZE, wrong[w]);
            else if (i == 1)
                at[TS_RECORD_AT_BODY + 5] = (uint8_t)wrong[w];
            else
                ts_put_i16(at + TS_RECORD_AT_BODY + 5 + 1 + 9, (int16_t)wrong[w]);
            CHECK(ts_record_get(at, 115, &out) != 0);
        }
    }
    for (int round = 0; round < 20000; round++) { /* several wrong bytes, exact buffers */
        uint8_t *wrong;
        int32_t size;

        in = message(round & 1 ? TS_RECORD_MAGIC_V2 : TS_RECORD_MAGIC_V1, 0,
                     TEXT("TAGS\001TagA\002"));
        size = ts_record_put(at, &in);
        wrong = check_copy(at, (size_t)size);
        for (int n = 0; n < 3; n++)
            wrong[8 + check_random(&seed) % (uint32_t)(size - 8)] = (uint8_t)check_random(&seed);
        if (ts_record_get(wrong, size, &out) == 0)
            touch(&out);
        free(wrong);
    }
}

static void test_blank(void)
{
    uint8_t at[TS_BLANK_BYTES];
    int32_t remaining = 0;
    int64_t position = 0;
    ts_record record;

    ts_blank_put(at, 1000, 0x1122334455);
    CHECK(check_is_hex(at, 16, "000003e8 cbd43194 0000001122334455"));
    CHECK(ts_blank_is(at, 16, &remaining) && remaining == 1000);
    CHECK(ts_blank_position_get(at, 16, &position) && position == 0x1122334455);
    CHECK(!ts_blank_position_get(at, 15, &position));
    CHECK(ts_record_get(at, 16, &record) == TS_RECORD_MAGIC);
    for (int32_t left = 8; left <= 16; left++) {
        uint8_t *exact = malloc((size_t)left);

        CHECK(exact != NULL);
        ts_blank_put(exact, left, 5);
        CHECK(ts_blank_is(exact, left, &remaining) && remaining == left);
        CHECK(ts_blank_position_get(exact, left, &position) == (left == 16));
        free(exact);
    }
    for (int32_t n = 0; n < 8; n++) {
        uint8_t *cut = check_copy(at, (size_t)n);

        CHECK(!ts_blank_is(cut, n, &remaining));
        free(cut);
    }
    ts_put_i32(at, 7);
    CHECK(!ts_blank_is(at, 16, &remaining));
    ts_put_i32(at, -1);
    CHECK(!ts_blank_is(at, 16, &remaining));
    memset(at, 0, sizeof at);
    CHECK(!ts_blank_is(at, 16, &remaining));
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
    CHECK(out.size == in.size && out.topic_hash == in.topic_hash && out.seal == 0);
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

static void test_property_crc(void)
{
    static const uint32_t values[] = {0, 1, 7, 10, 1094513055, INT32_MAX};
    uint8_t *at = malloc(TS_PROPERTY_CRC_BYTES);
    uint32_t crc = 0;

    CHECK(at != NULL);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        ts_property_crc_put(at, values[i]);
        CHECK(ts_property_crc_get(at, &crc) == 1 && crc == values[i]);
    }
    ts_property_crc_put(at, 7);
    CHECK(memcmp(at, "__CRC32#\0017000000000\002", 20) == 0);
    for (int n = 0; n < TS_PROPERTY_CRC_BYTES; n++) {
        uint8_t kept = at[n];

        at[n] = 'x';
        CHECK(ts_property_crc_get(at, &crc) == 0);
        at[n] = kept;
    }
    memcpy(at + 9, "8463847412", 10); /* 2147483648: one beyond 31 bits */
    CHECK(ts_property_crc_get(at, &crc) == 1 && crc == UINT32_MAX);
    memcpy(at + 9, "9999999999", 10);
    CHECK(ts_property_crc_get(at, &crc) == 1 && crc == UINT32_MAX);
    free(at);
}

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
    memset(at, '_', 24); /* a place beyond what a queue number can be */
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
    memset(at, '_', 16); /* start beyond what an offset can be */
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
    for (int64_t four = 0; four < 10000; four++) { /* both halves of eight digits, in all values */
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
    /* Broken UTF-8: U+FFFD as often as Java's decoder puts it. */
    CHECK(ts_java_hash(TEXT("\xFF")) == 0xFFFD);
    CHECK(ts_java_hash(TEXT("\xE4\xB8")) == 0xFFFD);
    CHECK(ts_java_hash(TEXT("\xF0\x9F\x98")) == 0xFFFD);
    CHECK(ts_java_hash(TEXT("\xED\xA0\x80")) == 0xFFFD);
    CHECK(ts_java_hash(TEXT("\xE4\x41")) == 0xFFFD * 31 + 'A');
    CHECK(ts_java_hash(TEXT("\xC0\x80")) == 0xFFFD * 31 + 0xFFFD);
    CHECK(ts_java_hash(TEXT("\xF5\x80")) == 0xFFFD * 31 + 0xFFFD);
    CHECK(ts_java_hash(TEXT("\xF4\x90")) == 0xFFFD * 31 + 0xFFFD);
    for (int round = 0; round < 20000; round++) { /* any bytes, in exact buffers */
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
    test_bytes();
    test_record_vectors();
    test_record_forms();
    test_record_wide_topic();
    test_record_queue_offset();
    test_record_faults();
    test_blank();
    test_queue_unit();
    test_timer_unit();
    test_timer_blank();
    test_wheel_slot();
    test_timer_check();
    test_store_checkpoint();
    test_property_crc();
    test_timer_id();
    test_group();
    test_level_mark();
    test_decimal();
    test_java_hash();
    puts("test_formats: ok");
    return 0;
}
