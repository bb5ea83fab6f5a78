/* The two readers of properties agree on texts of other writers, and on changed texts. */
#include "property_texts.h"

/* Put the pairs of a text in any order, as a broker's hash map does, or swap a few of them. */
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
        int32_t a = check_below(seed, count), b = check_below(seed, count), kept = order[a];

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
        if (check_below(&seed, 2))
            put_times(&source, &seed);
        if (check_below(&seed, 3) == 0)
            put_number(&source, "TIMER_ROLL_TIMES", check_below(&seed, 9));
        if (check_below(&seed, 3) == 0)
            put_number(&source, "TIMER_DELAY_SEC", check_below(&seed, 9));
        if (check_below(&seed, 3) == 0)
            put_word(&source, &seed, "TIMER_DEL_UNIQKEY", 40);
        put_crc(&source, &seed);
        shuffle(&mixed, &source, &seed, i % 2 ? 40 : 1 + check_below(&seed, 3));
        check_text(&mixed);
        mixed.size--;
        check_text(&mixed);
    }
}

/* Our own texts with bytes changed, removed or inserted. */
static void test_changed(void)
{
    static const uint8_t bytes[] = {0, 1, 2, 3, '0', '9', '-', '+', 'T', 'R', 'D', 0xFF};
    uint64_t seed = 6;

    for (int i = 0; i < 60000; i++) {
        text source = {0};

        if (check_below(&seed, 4) == 0)
            put_word(&source, &seed, "TIMER_DEL_UNIQKEY", 3);
        put_source(&source, &seed);
        put_id(&source, &seed);
        if (check_below(&seed, 2))
            put_times(&source, &seed);
        put_crc(&source, &seed);
        for (int32_t n = 1 + check_below(&seed, 3); n > 0; n--) {
            int32_t at = check_below(&seed, source.size), way = check_below(&seed, 3);

            if (check_below(&seed, 2)) /* where the fast reader looks */
                at = source.size - 1 - check_below(&seed, source.size < 60 ? source.size : 60);
            if (way == 0)
                source.at[at] = bytes[check_below(&seed, sizeof bytes)];
            if (way == 1)
                memmove(source.at + at, source.at + at + 1, (size_t)(--source.size - at));
            if (way == 2) {
                memmove(source.at + at + 1, source.at + at, (size_t)(source.size++ - at));
                source.at[at] = bytes[check_below(&seed, sizeof bytes)];
            }
        }
        check_text(&source);
    }
}

/* Any sequence of names, separators and values. */
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

        for (int32_t n = check_below(&seed, 24); n > 0; n--) {
            const char *token = tokens[check_below(&seed,
                                                   (int32_t)(sizeof tokens / sizeof *tokens))];

            put_bytes(&any, token, (int32_t)strlen(token));
        }
        check_text(&any);
        if (any.size > 0 && any.at[any.size - 1] == 2) {
            put_target(&any, &seed);
            put_id(&any, &seed);
            check_text(&any);
        }
        any.size = 0;
        for (int32_t n = check_below(&seed, 80); n > 0; n--)
            put_bytes(&any, &(uint8_t){(uint8_t)check_below(&seed, i % 2 ? 4 : 256)}, 1);
        check_text(&any);
    }
}

/* Values of the usual size that contain the end of a pair: two pairs, not one. */
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

int main(void)
{
    test_ends_inside();
    test_shuffled();
    test_changed();
    test_tokens();
    puts("test_parse_foreign: ok");
    return 0;
}
