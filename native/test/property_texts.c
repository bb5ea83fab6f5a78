/* Making property texts, and comparing the two readers on them. */
#include "property_texts.h"

void put_bytes(text *out, const void *from, int32_t size)
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

void put_string(text *out, const char *name, const char *value)
{
    put_pair(out, name, value, (int32_t)strlen(value));
}

void put_number(text *out, const char *name, int64_t number)
{
    uint8_t digits[TS_DECIMAL_BYTES_MAX];

    put_pair(out, name, digits, ts_decimal_put_i64(digits, number));
}

static int64_t random_i64(uint64_t *seed)
{
    uint64_t n = (uint64_t)check_random(seed) << 32;

    return (int64_t)((n | check_random(seed)) >> (1 + check_below(seed, 63)));
}

static int64_t random_ms(uint64_t *seed)
{
    return check_below(seed, 8) == 0 ? random_i64(seed) : 1700000000000 + check_below(seed,
                                                                                      1 << 30);
}

void put_word(text *out, uint64_t *seed, const char *name, int32_t size)
{
    uint8_t word[256];

    for (int32_t i = 0; i < size; i++)
        word[i] = (uint8_t)('a' + check_below(seed, 26));
    put_pair(out, name, word, size);
}

void put_users(text *out, uint64_t *seed)
{
    static const char *const names[] = {"TAGS", "KEYS", "WAIT", "a", "TIMERS", "XTIMER_OUT_MS",
                                        "REAL", "TS_IDS", "UNIQ_KEY2", "\xC3\xA4", "DELAYS"};
    static const char *const values[] = {"TIMER_DEL_UNIQKEY", "TIMER_DELAY_SEC", "", "1", "TS_ID"};

    for (int32_t n = check_below(seed, 5); n > 0; n--) {
        const char *name = names[check_below(seed, (int32_t)(sizeof names / sizeof *names))];

        if (check_below(seed, 3) == 0)
            put_string(out, name, values[check_below(seed, 5)]);
        else
            put_word(out, seed, name, check_below(seed, 50));
    }
}

void put_crc(text *out, uint64_t *seed)
{
    uint8_t pair[TS_PROPERTY_CRC_BYTES];

    if (check_below(seed, 2) == 0)
        return;
    ts_property_crc_put(pair, check_random(seed) & INT32_MAX);
    put_bytes(out, pair, sizeof pair);
}

void put_id(text *out, uint64_t *seed)
{
    uint8_t pair[TS_ID_PAIR_BYTES];

    ts_copy_timer_id(pair, check_random(seed), random_i64(seed));
    put_bytes(out, pair, sizeof pair);
}

void put_due(text *out, uint64_t *seed)
{
    put_number(out, "TIMER_DELIVER_MS", random_ms(seed));
    put_number(out, "TIMER_OUT_MS", random_ms(seed));
}

void put_target(text *out, uint64_t *seed)
{
    static const int32_t queues[] = {10, 100, 1000, 10000, INT32_MAX};

    put_due(out, seed);
    put_word(out, seed, "REAL_TOPIC", check_below(seed, 3) == 0 ? 8 : 1 + check_below(seed, 255));
    put_number(out, "REAL_QID", check_below(seed, queues[check_below(seed, 5)]));
}

/* Write a source as append.c does, without TS_ID and the properties after it. */
void put_source(text *out, uint64_t *seed)
{
    put_users(out, seed);
    put_word(out, seed, "UNIQ_KEY", 32);
    put_target(out, seed);
}

void put_times(text *out, uint64_t *seed)
{
    put_number(out, "TIMER_ENQUEUE_MS", random_ms(seed));
    put_number(out, "TIMER_DEQUEUE_MS", random_ms(seed));
}

static int same(const ts_text *a, const ts_text *b)
{
    return a->at == b->at && a->size == b->size;
}

/* Return the last non-empty value of the name, found without the engine's code. */
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

/* Check the part of a source that delivery copies: all before a CRC pair, with TS_ID last. */
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

/* Read the bytes with both readers, in a buffer of their size. Return whether the fast reader was
 * used, as far as that is visible. */
int check_both(const uint8_t *bytes, int32_t size)
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
    ts_marks_get_timer(at, size, &tail, &quick); /* now it knows the text's own tail */
    check_whole(at, size, &whole);
    check_same(&whole, &quick);
    if (quick.plain_size > 0)
        check_plain(at, size, &quick);
    is_quick = quick.plain_size > 0 || (whole.unique_key.at != NULL && quick.unique_key.at == NULL);
    free(at);
    return is_quick;
}

int check_text(const text *from)
{
    return check_both(from->at, from->size);
}
