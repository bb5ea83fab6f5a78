/* Properties: the quick read from the text's end says what the whole read says; nothing is read
 * beyond the text. Every text lies in a heap buffer of exactly its size. */
#include "check.h"

#include "format/properties.h"
#include "log/encode.h"
#include "log/parse.h"

enum { TEXT_ROOM = 4096, PAIRS_MAX = 24 };

typedef struct {
    int32_t size;
    uint8_t at[TEXT_ROOM];
} text;

/* ---- writing texts ---- */

static void put_bytes(text *out, const void *from, int32_t size)
{
    CHECK(out->size + size <= TEXT_ROOM);
    if (size > 0)
        memcpy(out->at + out->size, from, (size_t)size);
    out->size += size;
}

static void put_pair(text *out, const char *name, const void *value, int32_t size)
{
    put_bytes(out, name, (int32_t)strlen(name));
    put_bytes(out, "\001", 1);
    put_bytes(out, value, size);
    put_bytes(out, "\002", 1);
}

static void put_string(text *out, const char *name, const char *value)
{
    put_pair(out, name, value, (int32_t)strlen(value));
}

static void put_number(text *out, const char *name, int64_t number)
{
    uint8_t digits[TS_DECIMAL_BYTES_MAX];

    put_pair(out, name, digits, ts_decimal_put_i64(digits, number));
}

static int32_t below(uint64_t *seed, int32_t limit)
{
    return (int32_t)(check_random(seed) % (uint32_t)limit);
}

static int64_t random_i64(uint64_t *seed)
{
    uint64_t n = (uint64_t)check_random(seed) << 32;

    return (int64_t)((n | check_random(seed)) >> (1 + below(seed, 63)));
}

static int64_t random_ms(uint64_t *seed)
{
    return below(seed, 8) == 0 ? random_i64(seed) : 1700000000000 + below(seed, 1 << 30);
}

static void put_word(text *out, uint64_t *seed, const char *name, int32_t size)
{
    uint8_t word[256];

    for (int32_t i = 0; i < size; i++)
        word[i] = (uint8_t)('a' + below(seed, 26));
    put_pair(out, name, word, size);
}

static void put_users(text *out, uint64_t *seed)
{
    static const char *const names[] = {"TAGS", "KEYS", "WAIT", "a", "TIMERS", "XTIMER_OUT_MS",
                                        "REAL", "TS_IDS", "UNIQ_KEY2", "\xC3\xA4", "DELAYS"};
    static const char *const values[] = {"TIMER_DEL_UNIQKEY", "TIMER_DELAY_SEC", "", "1", "TS_ID"};

    for (int32_t n = below(seed, 5); n > 0; n--) {
        const char *name = names[below(seed, (int32_t)(sizeof names / sizeof *names))];

        if (below(seed, 3) == 0)
            put_string(out, name, values[below(seed, 5)]);
        else
            put_word(out, seed, name, below(seed, 50));
    }
}

static void put_crc(text *out, uint64_t *seed)
{
    uint8_t pair[TS_PROPERTY_CRC_BYTES];

    if (below(seed, 2) == 0)
        return;
    ts_property_crc_put(pair, check_random(seed) & INT32_MAX);
    put_bytes(out, pair, sizeof pair);
}

static void put_id(text *out, uint64_t *seed)
{
    uint8_t pair[TS_ID_PAIR_BYTES];

    ts_copy_timer_id(pair, check_random(seed), random_i64(seed));
    put_bytes(out, pair, sizeof pair);
}

static void put_target(text *out, uint64_t *seed)
{
    static const int32_t queues[] = {10, 100, 1000, 10000, INT32_MAX};

    put_number(out, "TIMER_DELIVER_MS", random_ms(seed));
    put_number(out, "TIMER_OUT_MS", random_ms(seed));
    put_word(out, seed, "REAL_TOPIC", below(seed, 3) == 0 ? 8 : 1 + below(seed, 255));
    put_number(out, "REAL_QID", below(seed, queues[below(seed, 5)]));
}

/* As append.c writes a source, but for TS_ID and what follows. */
static void put_source(text *out, uint64_t *seed)
{
    put_users(out, seed);
    put_word(out, seed, "UNIQ_KEY", 32);
    put_target(out, seed);
}

static void put_times(text *out, uint64_t *seed)
{
    put_number(out, "TIMER_ENQUEUE_MS", random_ms(seed));
    put_number(out, "TIMER_DEQUEUE_MS", random_ms(seed));
}

/* ---- comparing ---- */

static int same(const ts_text *a, const ts_text *b)
{
    return a->at == b->at && a->size == b->size;
}

/* The last value of the name that is not empty, found without any of the engine's code. */
static ts_text last_value(const uint8_t *at, int32_t size, const char *name)
{
    const uint8_t *end = at + size, *next;
    size_t name_size = strlen(name);
    ts_text found = {NULL, 0};

    for (; at < end; at = next + 1) {
        const uint8_t *split;

        next = memchr(at, 2, (size_t)(end - at));
        next = next == NULL ? end : next;
        split = next == at ? NULL : memchr(at, 1, (size_t)(next - at));
        if (split != NULL && (size_t)(split - at) == name_size && split + 1 < next &&
            memcmp(at, name, name_size) == 0) {
            found.at = split + 1;
            found.size = (int32_t)(next - split) - 1;
        }
    }
    return found;
}

static void check_whole(const uint8_t *at, int32_t size, const ts_marks *whole)
{
    ts_text topic = last_value(at, size, "REAL_TOPIC"), key = last_value(at, size, "UNIQ_KEY");
    ts_text tags = last_value(at, size, "TAGS");
    ts_text target = last_value(at, size, "TIMER_DEL_UNIQKEY");
    int32_t relative = last_value(at, size, "TIMER_DELAY_SEC").at != NULL ||
                       last_value(at, size, "TIMER_DELAY_MS").at != NULL;

    CHECK(same(&whole->real_topic, &topic) && same(&whole->unique_key, &key));
    CHECK(same(&whole->tags, &tags) && same(&whole->delete_key, &target));
    CHECK(whole->relative == relative);
    CHECK((whole->out_ms >= 0) <= (last_value(at, size, "TIMER_OUT_MS").at != NULL));
    CHECK((whole->real_queue >= 0) <= (last_value(at, size, "REAL_QID").at != NULL));
}

/* A source as it is carried over: all before a CRC pair, and TS_ID the last of it. */
static void check_plain(const uint8_t *at, int32_t size, const ts_marks *quick)
{
    ts_marks part;
    int32_t plain = quick->plain_size;
    uint8_t *copy = check_copy(at, (size_t)plain);

    CHECK(plain >= TS_ID_PAIR_BYTES && plain <= size && at[plain - 1] == 2);
    CHECK(memcmp(at + plain - TS_ID_PAIR_BYTES, "TS_ID\001", 6) == 0);
    CHECK(plain == size || memcmp(at + plain, "__CRC32#\001", 9) == 0);
    ts_marks_get(copy, plain, &part);
    CHECK(part.timer_id == quick->timer_id && part.out_ms == quick->out_ms);
    CHECK(ts_marks_usable(&part) == ts_marks_usable(quick));
    free(copy);
}

static void check_same(const ts_marks *whole, const ts_marks *quick)
{
    CHECK(same(&whole->real_topic, &quick->real_topic));
    CHECK(same(&whole->delete_key, &quick->delete_key));
    CHECK(whole->real_queue == quick->real_queue && whole->relative == quick->relative);
    CHECK(whole->out_ms == quick->out_ms && whole->deliver_ms == quick->deliver_ms);
    CHECK(whole->timer_id == quick->timer_id && whole->store_id == quick->store_id);
    CHECK(whole->roll_times == quick->roll_times && whole->delay_level == quick->delay_level);
    CHECK(whole->broken == quick->broken && ts_marks_usable(whole) == ts_marks_usable(quick));
    CHECK(ts_marks_due(whole, 1000) == ts_marks_due(quick, 1000));
    CHECK(whole->plain_size == 0 && quick->plain_size >= 0);
    CHECK(whole->last_key.at == NULL);
    CHECK(quick->last_key.at == NULL || (quick->last_key.at == whole->unique_key.at &&
                                         quick->last_key.size == whole->unique_key.size));
}

/* Both reads of the bytes, in a buffer of their size. Whether the quick way was taken, as far as
 * that shows. */
static int check_both(const uint8_t *bytes, int32_t size)
{
    uint8_t *at = check_copy(bytes, (size_t)size);
    static ts_tail before; /* of any text that was read before */
    ts_tail tail = {.real_size = 0};
    ts_marks whole, quick;
    int is_quick;

    ts_marks_get(at, size, &whole);
    ts_marks_get_timer(at, size, &tail, &quick);
    check_same(&whole, &quick);
    ts_marks_get_timer(at, size, &before, &quick);
    check_same(&whole, &quick);
    before = tail;
    ts_marks_get_timer(at, size, &tail, &quick); /* its own tail is known now */
    check_whole(at, size, &whole);
    check_same(&whole, &quick);
    if (quick.plain_size > 0)
        check_plain(at, size, &quick);
    is_quick = quick.plain_size > 0 || (whole.unique_key.at != NULL && quick.unique_key.at == NULL);
    free(at);
    return is_quick;
}

static int check_text(const text *from)
{
    return check_both(from->at, from->size);
}

/* ---- the texts of this engine ---- */

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
        put_number(&rolled, "TIMER_ROLL_TIMES", 1 + below(&seed, 100));
        put_crc(&rolled, &seed);
        CHECK(!check_text(&rolled));
        cut = source;
        cut.size--; /* brokers to 5.1.4 leave out the last 0x02 */
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
        put_word(&own, &seed, "TIMER_DEL_UNIQKEY", 34 + below(&seed, 20));
        put_id(&own, &seed);
        put_crc(&own, &seed);
        CHECK(!check_text(&own));
        ts_marks_get_timer(own.at, own.size, &(ts_tail){.real_size = 0}, &marks);
        CHECK(marks.delete_key.at != NULL && marks.timer_id >= 0 && ts_marks_usable(&marks));

        put_users(&early, &seed);
        put_word(&early, &seed, "TIMER_DEL_UNIQKEY", 1 + below(&seed, 40));
        put_source(&early, &seed);
        put_id(&early, &seed);
        put_crc(&early, &seed);
        CHECK(!check_text(&early));
        ts_marks_get_timer(early.at, early.size, &(ts_tail){.real_size = 0}, &marks);
        CHECK(marks.delete_key.at != NULL);
    }
}

/* A mark of every kind before what would be read quickly. */
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
        put_string(&source, names[i % 13], values[below(&seed, 6)]);
        put_source(&source, &seed);
        put_id(&source, &seed);
        if (below(&seed, 2))
            put_times(&source, &seed);
        put_crc(&source, &seed);
        check_text(&source);
    }
}

/* ---- texts of others ---- */

/* Pairs of a text in any order, as a broker's hash map gives them; or two of them changed. */
static void shuffle(text *out, const text *from, uint64_t *seed, int32_t swaps)
{
    int32_t starts[PAIRS_MAX + 1], count = 0;

    for (int32_t i = 0; i < from->size; i++) {
        if (i == 0 || from->at[i - 1] == 2) {
            CHECK(count < PAIRS_MAX);
            starts[count++] = i;
        }
    }
    int32_t order[PAIRS_MAX];
    for (int32_t i = 0; i < count; i++)
        order[i] = i;
    starts[count] = from->size;
    for (; swaps > 0; swaps--) {
        int32_t a = below(seed, count), b = below(seed, count), kept = order[a];

        order[a] = order[b];
        order[b] = kept;
    }
    out->size = 0;
    for (int32_t i = 0; i < count; i++)
        put_bytes(out, from->at + starts[order[i]], starts[order[i] + 1] - starts[order[i]]);
}

static void test_shuffled(void)
{
    uint64_t seed = 5;

    for (int i = 0; i < 40000; i++) {
        text source = {0}, mixed;

        put_source(&source, &seed);
        put_id(&source, &seed);
        if (below(&seed, 2))
            put_times(&source, &seed);
        if (below(&seed, 3) == 0)
            put_number(&source, "TIMER_ROLL_TIMES", below(&seed, 9));
        if (below(&seed, 3) == 0)
            put_number(&source, "TIMER_DELAY_SEC", below(&seed, 9));
        if (below(&seed, 3) == 0)
            put_word(&source, &seed, "TIMER_DEL_UNIQKEY", 40);
        put_crc(&source, &seed);
        shuffle(&mixed, &source, &seed, i % 2 ? 40 : 1 + below(&seed, 3));
        check_text(&mixed);
        mixed.size--;
        check_text(&mixed);
    }
}

/* Own texts with bytes that are changed, taken out or put in. */
static void test_changed(void)
{
    static const uint8_t bytes[] = {0, 1, 2, 3, '0', '9', '-', '+', 'T', 'R', 'D', 0xFF};
    uint64_t seed = 6;

    for (int i = 0; i < 60000; i++) {
        text source = {0};

        if (below(&seed, 4) == 0)
            put_word(&source, &seed, "TIMER_DEL_UNIQKEY", 3);
        put_source(&source, &seed);
        put_id(&source, &seed);
        if (below(&seed, 2))
            put_times(&source, &seed);
        put_crc(&source, &seed);
        for (int32_t n = 1 + below(&seed, 3); n > 0; n--) {
            int32_t at = below(&seed, source.size), way = below(&seed, 3);

            if (below(&seed, 2)) /* where the quick way looks */
                at = source.size - 1 - below(&seed, source.size < 60 ? source.size : 60);
            if (way == 0)
                source.at[at] = bytes[below(&seed, sizeof bytes)];
            if (way == 1)
                memmove(source.at + at, source.at + at + 1, (size_t)(--source.size - at));
            if (way == 2) {
                memmove(source.at + at + 1, source.at + at, (size_t)(source.size++ - at));
                source.at[at] = bytes[below(&seed, sizeof bytes)];
            }
        }
        check_text(&source);
    }
}

/* Any sequence of names, ends and values. */
static void test_tokens(void)
{
    static const char *const tokens[] = {
        "\001", "\002", "\001", "\002", "\002", "TIMER_DELIVER_MS\001", "TIMER_OUT_MS\001",
        "REAL_TOPIC\001", "REAL_QID\001", "TS_ID\001", "TIMER_ENQUEUE_MS\001",
        "TIMER_DEQUEUE_MS\001", "__CRC32#\001", "TIMER_DEL_UNIQKEY\001", "TIMER_DELAY_MS\001",
        "UNIQ_KEY\001", "DELAY\001", "AAAAAAAAAAAAAAAA\002", "1700000000000\002", "5\002", "abc",
        "topicabc\002", "1234567890\002", "x", "77"};
    uint64_t seed = 7;

    for (int i = 0; i < 150000; i++) {
        text any = {0};

        for (int32_t n = below(&seed, 24); n > 0; n--) {
            const char *token = tokens[below(&seed, (int32_t)(sizeof tokens / sizeof *tokens))];

            put_bytes(&any, token, (int32_t)strlen(token));
        }
        check_text(&any);
        if (any.size > 0 && any.at[any.size - 1] == 2) {
            put_target(&any, &seed);
            put_id(&any, &seed);
            check_text(&any);
        }
        any.size = 0;
        for (int32_t n = below(&seed, 80); n > 0; n--)
            put_bytes(&any, &(uint8_t){(uint8_t)below(&seed, i % 2 ? 4 : 256)}, 1);
        check_text(&any);
    }
}

/* Values of the usual size that hold the end of a pair: two pairs, not one. */
static void test_ends_inside(void)
{
    static const char head[] = "UNIQ_KEY\001k\002TIMER_DELIVER_MS\0011700000001000\002"
                               "TIMER_OUT_MS\0011700000000000\002";
    static const char id[] = "TS_ID\001AAAAAQAAAAAAAAAH\002";
    static const char times[] = "TIMER_ENQUEUE_MS\0011700000000000\002";
    static const struct {
        const char *topic, *end;
    } cases[] = {
        {"REAL_TOPIC\001a\002b\001cdef\002REAL_QID\0011\002", ""},
        {"REAL_TOPIC\001\002REAL_QID\0011\002", ""},
        {"REAL_TOPIC\001topicabc\002REAL_QID\0011\002",
         "TIMER_DEQUEUE_MS\0011\002REAL_QID\00177\002"},
        {"REAL_TOPIC\001topicabc\002REAL_QID\0011\002", "__CRC32#\001a\002DELAY\001xx\002"},
        {"REAL_TOPIC\001old\002REAL_TOPIC\001\002REAL_QID\0011\002", ""},
        {"REAL_TOPIC\001a\001bcdefg\002REAL_QID\0011\002", ""},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        text any = {0};

        put_bytes(&any, head, sizeof head - 1);
        put_bytes(&any, cases[i].topic, (int32_t)strlen(cases[i].topic));
        put_bytes(&any, id, sizeof id - 1);
        if (cases[i].end[0] == 'T')
            put_bytes(&any, times, sizeof times - 1);
        put_bytes(&any, cases[i].end, (int32_t)strlen(cases[i].end));
        check_text(&any);
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

/* ---- the pieces ---- */

static void test_find(void)
{
    uint64_t seed = 8;

    for (int i = 0; i < 100000; i++) {
        size_t size = (size_t)below(&seed, 40);
        uint8_t any[40], byte = (uint8_t)below(&seed, i % 2 ? 4 : 256), *at;
        const uint8_t *wanted;

        for (size_t k = 0; k < size; k++)
            any[k] = (uint8_t)below(&seed, i % 2 ? 4 : 256);
        if (size > 1 && i % 3 == 0) /* byte ^ 1 above byte: where a borrow would show */
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
        int32_t size = below(&seed, 48), at = 0, before = 0;
        uint8_t any[48], *bytes;
        ts_text name, value;

        for (int32_t k = 0; k < size; k++)
            any[k] = (uint8_t)below(&seed, 5);
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
    test_ends_inside();
    test_shuffled();
    test_changed();
    test_tokens();
    puts("test_parse: ok");
    return 0;
}
