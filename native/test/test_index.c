/* The index: a test vector, chains over random keys, and no access outside of its buffers. */
#include "check.h"

#include "index/keys.h"

enum { SLOTS = 11, ENTRIES = 200, KEYS = 300, RECORD_BYTES = 4096 };

typedef struct {
    ts_index index;
    uint8_t *slots, *pages, *entries;
} table;

static table make_table(int64_t slots, int64_t entries)
{
    table t = {.slots = calloc((size_t)slots, 4), .pages = calloc((size_t)slots * 4 / 4096 + 1, 1),
               .entries = calloc((size_t)entries, 20)};

    t.index.slots = t.slots;
    t.index.dirty_pages = t.pages;
    t.index.slot_count = slots;
    t.index.entry_count = entries;
    t.index.next_entry = 1;
    return t;
}

static void free_table(table *t)
{
    free(t->slots);
    free(t->pages);
    free(t->entries);
}

static void test_vector(void)
{
    static const uint8_t wanted[20] = {0x62, 0xc3, 0x59, 0x2c};
    table t = make_table(5000000, 3);
    ts_key key = {0, 1700000000123, ts_index_hash((const uint8_t *)"TopicTest", 9,
                                                  (const uint8_t *)"KEY1", 4), 0};

    CHECK(key.hash == 1656969516);
    CHECK(ts_index_append(&t.index, &key, 1, t.entries + 20) == 1);
    CHECK(memcmp(t.entries + 20, wanted, 20) == 0);
    CHECK(ts_get_i32(t.slots + 7878104 - TS_INDEX_HEADER_BYTES) == 1);
    free_table(&t);
}

static void test_chains(void)
{
    uint64_t seed = 77;
    table t = make_table(SLOTS, ENTRIES), again = make_table(SLOTS, ENTRIES);
    ts_key *keys = malloc(KEYS * sizeof *keys);
    int64_t done = 0, total = 0;

    for (int32_t i = 0; i < KEYS; i++)
        keys[i] = (ts_key){i, 5, (int32_t)(check_random(&seed) % 40), 0};
    while (done < KEYS) {
        int64_t part = 1 + (int64_t)(check_random(&seed) % 50);
        int64_t taken;

        part = part > KEYS - done ? KEYS - done : part;
        taken = ts_index_append(&t.index, keys + done, part, t.entries + 20 * t.index.next_entry);
        done += taken;
        if (taken < part)
            break;
    }
    CHECK(done == ENTRIES - 1 && t.index.next_entry == ENTRIES);
    CHECK(ts_index_append(&t.index, keys, 1, t.entries) == 0);
    for (int32_t hash = 0; hash < 40; hash++) {
        int64_t number = ts_index_slot(t.slots, SLOTS, hash), found[3], last = KEYS;

        while (number > 0) {
            int32_t count = ts_index_find(t.entries, SLOTS, ENTRIES, hash, 5, INT64_MIN, INT64_MAX,
                                          &number, found, 3);

            CHECK(count >= 0);
            for (int32_t i = 0; i < count; i++) {
                CHECK(found[i] < last && keys[found[i]].hash == hash);
                last = found[i];
                total++;
            }
        }
    }
    CHECK(total == ENTRIES - 1);
    CHECK(ts_index_relink(&again.index, t.entries + 20, ENTRIES - 1) == TS_OK);
    CHECK(memcmp(again.slots, t.slots, SLOTS * 4) == 0);
    CHECK(ts_index_relink(&again.index, t.entries + 20, 1) == TS_CORRUPT); /* full */
    for (int32_t i = 0; i < 3000; i++) { /* a changed byte: an end or TS_CORRUPT, within bounds */
        uint8_t *at = t.entries + 20 + check_random(&seed) % (20 * (ENTRIES - 1));
        uint8_t before = *at;
        int64_t number = 1 + (int64_t)(check_random(&seed) % (ENTRIES - 1)), found[300];
        table linked = make_table(SLOTS, ENTRIES);

        *at = (uint8_t)check_random(&seed);
        CHECK(ts_index_find(t.entries, SLOTS, ENTRIES, (int32_t)(check_random(&seed) % 40), 5,
                            0, 9, &number, found, 300) >= TS_CORRUPT);
        (void)ts_index_relink(&linked.index, t.entries + 20, ENTRIES - 1);
        *at = before;
        free_table(&linked);
    }
    free(keys);
    free_table(&t);
    free_table(&again);
}

/* Make a record at the very end of a buffer of exactly its size. */
static uint8_t *make_record(const char *text, int32_t *size)
{
    static const uint8_t host[8] = {127, 0, 0, 1, 0, 0, 42, 159};
    uint8_t *out = malloc(RECORD_BYTES), *exact;

    *size = ts_encode(out, RECORD_BYTES, (const uint8_t *)"t", 1, 0, 0, 0, 0, 0, 1, host, 7, host,
                      NULL, 0, (const uint8_t *)text, (int32_t)strlen(text), 0);
    CHECK(*size > 0);
    exact = check_copy(out, (size_t)*size);
    free(out);
    return exact;
}

static int64_t keys_of(const uint8_t *record, int32_t size, ts_key *into, int64_t capacity)
{
    ts_view view = {.segments = &record, .segment_count = 1, .segment_bytes = size, .end = size};
    ts_keys keys = {into, capacity, 0, 0, 0};
    int64_t next = 0, got = ts_index_keys(&view, 0, &next, 1, &keys);

    return got < 0 ? got : keys.count;
}

static void test_keys(void)
{
    static const struct {
        const char *text;
        int64_t count;
    } cases[] = {
        {"", 0}, {"UNIQ_KEY\001u\002", 1}, {"UNIQ_KEY\001u", 1}, {"KEYS\001a b\002", 2},
        {"KEYS\001  a  b  \002", 2}, {"KEYS\001\002", 0}, {"KEYS\001", 0}, {"KEYS", 0},
        {"KEYS\001a\002UNIQ_KEY\001u\002TAGS\001x\002", 2}, {"XKEYS\001a\002", 0},
        {"KEYSX\001a\002", 0}, {"KEYS\001a\002KEYS\001b c\002", 2},
        {"KEYS\001a\002KEYS\001\002", 1}, {"\001\002\002\001KEYS\001a\002", 0},
        {"UNIQ_KEY\002KEYS\001k\002", 1},
    };
    ts_key found[8];

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t size = 0;
        uint8_t *record = make_record(cases[i].text, &size);

        CHECK(keys_of(record, size, found, 8) == cases[i].count);
        if (cases[i].count > 1) /* no key of a record if not all fit */
            CHECK(keys_of(record, size, found, cases[i].count - 1) == TS_NEED_SPACE);
        free(record);
    }
}

static void test_any_record_ends_well(void)
{
    uint64_t seed = 5;
    int32_t size = 0;
    uint8_t *record = make_record("TAGS\001green\002UNIQ_KEY\0010123456789\002KEYS\001a b c\002"
                                  "TIMER_OUT_MS\0015\002REAL_TOPIC\001t\002REAL_QID\0010\002",
                                  &size);
    const uint8_t topic[1] = {'t'}, key[1] = {'b'};
    ts_states states = {0};
    int64_t at = 0;

    for (int32_t i = 0; i < 20000; i++) {
        ts_key found[8];
        ts_found row;
        int32_t matched = 0, place = (int32_t)(check_random(&seed) % (uint32_t)size);
        uint8_t before = record[place];
        const uint8_t *segment = record;
        ts_view view = {.segments = &segment, .segment_count = 1, .segment_bytes = size,
                        .end = size};
        ts_query query = {.topic = topic, .topic_size = 1, .key = key, .key_size = 1,
                          .begin_ms = INT64_MIN, .end_ms = INT64_MAX};

        if (i % 3 == 1) {
            query.real = topic;
            query.real_size = 1;
        }
        if (i % 3 == 2)
            query.states = &states;
        if (i > 2)
            record[place] = (uint8_t)check_random(&seed);
        (void)keys_of(record, size, found, 8);
        (void)ts_index_check(&view, &query, &at, 1, &row, &matched);
        CHECK(matched == 0 || (matched == 1 && i % 3 != 2));
        if (i < 2)
            CHECK(matched == 1);
        record[place] = before;
    }
    free(record);
}

int main(void)
{
    test_vector();
    test_chains();
    test_keys();
    test_any_record_ends_well();
    puts("test_index: ok");
    return 0;
}
