/* Commit-log records: test vectors, truncated and invalid records, blanks, and CRCs. */
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

enum { RECORD_CAPACITY = 512 };

static const uint8_t host_1[20] = {127, 0, 0, 1, 0, 0, 0x9C, 0x40};
static const uint8_t host_2[20] = {127, 0, 0, 1, 0, 0, 0x2A, 0x9F};

/* Make the reference's message, with the fields that a test varies. */
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

static void test_record_vectors(void)
{
    static const char head[] =
        "daa320a7 3610a686 00000003 00000000 0000000000000007 0000000000000000 00000000"
        "0000018bcfe56800 7f000001 00009c40 0000018bcfe5687b 7f000001 00002a9f 00000000"
        "0000000000000000 00000005 68656c6c6f 09 546f70696354657374";
    uint8_t at[RECORD_CAPACITY], properties[30];
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

/* Read every byte of a record, for the sanitizer. */
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
        if (n >= 4) { /* and with a size that says so */
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

    for (int template = 0; template < 8; template++) {
        int32_t magic = magics[template & 1];
        int32_t sys_flag = (template & 2 ? TS_SYS_BORN_HOST_IPV6 : 0) |
                           (template & 4 ? TS_SYS_STORE_HOST_IPV6 : 0);
        int32_t wanted = 115 + (template & 1) + (template & 2 ? 12 : 0) + (template & 4 ? 12 : 0);
        ts_record in = message(magic, sys_flag, TEXT("TAGS\001TagA\002")), out;
        uint8_t at[RECORD_CAPACITY];

        CHECK(ts_record_put(at, &in) == wanted);
        CHECK(ts_record_get(at, wanted, &out) == 0 && out.size == wanted);
        check_same_record(&in, &out);
        CHECK(ts_record_get(at, RECORD_CAPACITY, &out) == 0); /* later bytes do not matter */
        check_cut_and_wrong(at, wanted);
    }
}

static void test_record_wide_topic(void)
{
    uint8_t topic[256], at[RECORD_CAPACITY];
    ts_record in = message(TS_RECORD_MAGIC_V2, 0, NULL, 0), out;
    int32_t size;

    memset(topic, 't', sizeof topic);
    in.topic = topic;
    in.topic_size = 255;
    size = ts_record_put(at, &in);
    CHECK(size == 92 + 5 + 255);
    CHECK(ts_record_get(at, size, &out) == 0);
    check_same_record(&in, &out);
    /* One byte more than any folder's name can have. Readers have space for 255 bytes. */
    in.topic_size = 256;
    size = ts_record_put(at, &in);
    CHECK(ts_record_get(at, size, &out) == TS_RECORD_LENGTHS);
}

static void test_record_queue_offset(void)
{
    const int64_t offsets[] = {0, TS_QUEUE_OFFSET_MAX, TS_QUEUE_OFFSET_MAX + 1, -1};
    uint8_t at[RECORD_CAPACITY];
    ts_record in = message(TS_RECORD_MAGIC_V1, 0, NULL, 0), out;

    for (int32_t i = 0; i < 4; i++) {
        in.queue_offset = offsets[i];
        CHECK(ts_record_get(at, ts_record_put(at, &in), &out) == (i < 2 ? 0 : TS_RECORD_LENGTHS));
    }
}

static void test_record_faults(void)
{
    uint8_t at[RECORD_CAPACITY] = {0};
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
    for (int round = 0; round < 20000; round++) { /* several wrong bytes, in buffers of exactly
                                                   * their size */
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
    memcpy(at + 9, "8463847412", 10); /* 2147483648 has more than 31 bits */
    CHECK(ts_property_crc_get(at, &crc) == 1 && crc == UINT32_MAX);
    memcpy(at + 9, "9999999999", 10);
    CHECK(ts_property_crc_get(at, &crc) == 1 && crc == UINT32_MAX);
    free(at);
}

int main(void)
{
    test_record_vectors();
    test_record_forms();
    test_record_wide_topic();
    test_record_queue_offset();
    test_record_faults();
    test_blank();
    test_property_crc();
    puts("test_record: ok");
    return 0;
}
