/* The two readers of properties agree: the fast one, from the text's end, and the complete one.
 * Every text is in a heap buffer of exactly its size, so that a read outside of it is detected. */
#include "property_texts.h"

static void test_own(void)
{
    uint64_t seed = 1;

    for (int i = 0; i < 20000; i++) {
        text source = {0}, copy, rolled, cut;

        put_source(&source, &seed);
        copy = rolled = source;
        put_id(&source, &seed);
        copy = source;
        put_crc(&source, &seed);
        CHECK(check_text(&source));
        put_times(&copy, &seed);
        put_crc(&copy, &seed);
        CHECK(check_text(&copy));
        put_id(&rolled, &seed);
        put_times(&rolled, &seed);
        put_number(&rolled, "TIMER_ROLL_TIMES", 1 + check_below(&seed, 100));
        put_crc(&rolled, &seed);
        CHECK(!check_text(&rolled));
        cut = source;
        cut.size--; /* brokers to 5.1.4 omit the last 0x02 */
        check_text(&cut);
    }
}

static void test_every_cut(void)
{
    uint64_t seed = 2;

    for (int i = 0; i < 60; i++) {
        text source = {0};

        put_source(&source, &seed);
        put_id(&source, &seed);
        if (i % 3 == 1)
            put_times(&source, &seed);
        put_crc(&source, &seed);
        for (int32_t n = 0; n <= source.size; n++) {
            check_both(source.at, n);
            check_both(source.at + n, source.size - n);
        }
    }
}

static void test_deletes(void)
{
    uint64_t seed = 3;

    for (int i = 0; i < 10000; i++) {
        text own = {0}, early = {0};
        ts_marks marks;

        put_string(&own, "TAGS", "_RECALL_TAG_");
        put_word(&own, &seed, "UNIQ_KEY", 32);
        put_target(&own, &seed);
        put_word(&own, &seed, "TIMER_DEL_UNIQKEY", 34 + check_below(&seed, 20));
        put_id(&own, &seed);
        put_crc(&own, &seed);
        CHECK(!check_text(&own));
        ts_marks_get_timer(own.at, own.size, &(ts_tail){.real_size = 0}, &marks);
        CHECK(marks.delete_key.at != NULL && marks.timer_id >= 0 && ts_marks_usable(&marks));

        put_users(&early, &seed);
        put_word(&early, &seed, "TIMER_DEL_UNIQKEY", 1 + check_below(&seed, 40));
        put_source(&early, &seed);
        put_id(&early, &seed);
        put_crc(&early, &seed);
        CHECK(!check_text(&early));
        ts_marks_get_timer(early.at, early.size, &(ts_tail){.real_size = 0}, &marks);
        CHECK(marks.delete_key.at != NULL);
    }
}

/* Deliveries without the real topic, and texts that are nearly such. */
static void test_needed_only(void)
{
    uint64_t seed = 9;
    ts_marks marks;

    for (int i = 0; i < 20000; i++) {
        text sent = {0};
        int32_t is_whole = check_below(&seed, 4) != 0, size;

        put_users(&sent, &seed);
        if (check_below(&seed, 4) == 0)
            put_word(&sent, &seed, "REAL_TOPIC", 1 + check_below(&seed, 9));
        put_word(&sent, &seed, "UNIQ_KEY", is_whole ? 32 : 30 + check_below(&seed, 4));
        put_due(&sent, &seed);
        put_id(&sent, &seed);
        size = sent.size;
        put_crc(&sent, &seed);
        (void)check_text(&sent);
        ts_marks_get_timer(sent.at, sent.size, &(ts_tail){.real_size = 0}, &marks);
        CHECK(marks.out_ms >= 0 && marks.deliver_ms >= 0 && marks.plain_size == 0);
        for (int32_t cut = 1; cut < 9; cut++) { /* a text that ends or begins elsewhere */
            check_both(sent.at, size - cut);
            check_both(sent.at + cut, sent.size - cut);
        }
    }
}

/* A property of every kind before the part that is read fast. */
static void test_marks_before(void)
{
    static const char *const names[] = {"TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_ROLL_TIMES",
                                        "TIMER_DEL_UNIQKEY", "TIMER_OUT_MS", "TIMER_DELIVER_MS",
                                        "REAL_TOPIC", "REAL_QID", "DELAY", "TS_ID",
                                        "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "__CRC32#"};
    static const char *const values[] = {"5", "", "x", "-1", "99999999999", "AAAAAAAAAAAAAAAA"};
    uint64_t seed = 4;

    for (int i = 0; i < 20000; i++) {
        text source = {0};

        put_users(&source, &seed);
        put_string(&source, names[i % 13], values[check_below(&seed, 6)]);
        put_source(&source, &seed);
        put_id(&source, &seed);
        if (check_below(&seed, 2))
            put_times(&source, &seed);
        put_crc(&source, &seed);
        check_text(&source);
    }
}

static void test_due(void)
{
    ts_marks marks;
    text any = {0};

    put_number(&any, "TIMER_OUT_MS", INT64_MAX);
    ts_marks_get(any.at, any.size, &marks);
    CHECK(marks.out_ms == INT64_MAX && ts_marks_due(&marks, 1000) == INT64_MAX);
    marks.out_ms = 5000;
    CHECK(ts_marks_due(&marks, 1000) == 6000);
    marks.deliver_ms = 5500;
    CHECK(ts_marks_due(&marks, 1000) == 5500);
    marks.relative = 1;
    CHECK(ts_marks_due(&marks, 1000) == 6000);
    marks.out_ms = -1;
    CHECK(ts_marks_due(&marks, 1000) == 0);
}

static void test_find(void)
{
    uint64_t seed = 8;

    for (int i = 0; i < 100000; i++) {
        size_t size = (size_t)check_below(&seed, 40);
        uint8_t any[40], byte = (uint8_t)check_below(&seed, i % 2 ? 4 : 256), *at;
        const uint8_t *wanted;

        for (size_t k = 0; k < size; k++)
            any[k] = (uint8_t)check_below(&seed, i % 2 ? 4 : 256);
        if (size > 1 && i % 3 == 0) /* byte ^ 1 after byte would show a borrow between bytes of
                                     * the word */
            any[size / 2] = byte, any[size / 2 - 1] = byte ^ 1;
        at = check_copy(any, size);
        wanted = size == 0 ? NULL : memchr(at, byte, size);
        CHECK(ts_find(at, at + size, byte) == (wanted == NULL ? at + size : wanted));
        free(at);
    }
}

static void test_pairs(void)
{
    uint64_t seed = 9;

    for (int i = 0; i < 50000; i++) {
        int32_t size = check_below(&seed, 48), at = 0, before = 0;
        uint8_t any[48], *bytes;
        ts_text name, value;

        for (int32_t k = 0; k < size; k++)
            any[k] = (uint8_t)check_below(&seed, 5);
        bytes = check_copy(any, (size_t)size);
        while (ts_pair_next(bytes, size, &at, &name, &value)) {
            CHECK(name.at >= bytes + before && name.size >= 0 && value.size >= 0);
            CHECK(name.at + name.size + 1 == value.at && *(value.at - 1) == 1);
            CHECK(value.at + value.size == bytes + at - 1 && at > before && at <= size + 1);
            CHECK(at == size + 1 || bytes[at - 1] == 2);
            CHECK(name.size == 0 || memchr(name.at, 1, (size_t)name.size) == NULL);
            CHECK(ts_find(name.at, value.at + value.size, 2) == value.at + value.size);
            before = at;
        }
        CHECK(at >= size);
        free(bytes);
    }
}

int main(void)
{
    test_find();
    test_pairs();
    test_due();
    test_own();
    test_every_cut();
    test_deletes();
    test_marks_before();
    test_needed_only();
    puts("test_parse: ok");
    return 0;
}
