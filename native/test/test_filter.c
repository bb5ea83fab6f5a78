/* Tag filters: units by hash, property texts exactly, and removal of rows. */
#include "check.h"

#include "format/queue_unit.h"
#include "timerstore.h"

static void *bytes_of(int64_t size)
{
    void *at = malloc((size_t)size);

    CHECK(at != NULL);
    return at;
}

/* "Aa" and "BB" have the same hash, 2112; "c" has 99. */
static const int32_t hashes[] = {99, 2112, 2112};
static const int64_t ends[] = {0, 1, 3, 5};

static void units_by_hash(const ts_tags *tags, const ts_tags *none)
{
    static const int64_t codes[] = {99, 0, 2112, 2113, INT64_C(0x100000063), -2147483649,
                                    INT64_MIN, -2147483648, INT64_C(1700000000000), 99};
    static const int32_t wanted[] = {0, 2, 4, 5, 6, 9};
    enum { COUNT = sizeof codes / sizeof *codes };
    uint8_t *units = bytes_of(COUNT * 20);
    int32_t *positions = bytes_of(COUNT * (int64_t)sizeof *positions);

    for (int32_t i = 0; i < COUNT; i++)
        ts_queue_unit_put(units + 20 * i, 4096 * i, 200, codes[i]);
    CHECK(ts_units_tagged(units, COUNT, tags, positions) == 6);
    CHECK(memcmp(positions, wanted, sizeof wanted) == 0);
    CHECK(ts_units_tagged(units, COUNT, none, positions) == 2); /* the two addresses in an
                                                                 * extension file */
    CHECK(ts_units_tagged(units, 0, tags, positions) == 0);
    free(units);
    free(positions);
}

static void texts_exactly(const ts_tags *tags)
{
    static const char *const texts[] = {
        "TAGS\001c\002", "TAGS\001Aa\002", "TAGS\001BB", "TAGS\001C#\002", /* C# has 2112, too */
        "", "TAGS", "TAGS\001", "TAGS\001\002", "TAGS\001x\002TAGS\001c\002TAGS\001\002",
        "TAGS\001c\002TAGS\001x\002", "tags\001c\002", "TAG\001c\002\002\001\002TAGS\001Aa",
    };
    static const uint8_t wanted[] = {1, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 1};
    enum { COUNT = sizeof texts / sizeof *texts };
    int64_t offsets[COUNT + 1] = {0};
    uint8_t keep[COUNT], *joined;

    for (int32_t i = 0; i < COUNT; i++)
        offsets[i + 1] = offsets[i] + (int64_t)strlen(texts[i]);
    joined = bytes_of(offsets[COUNT]);
    for (int32_t i = 0; i < COUNT; i++)
        memcpy(joined + offsets[i], texts[i], strlen(texts[i]));
    CHECK(ts_texts_tagged(joined, offsets, COUNT, tags, keep) == 5);
    CHECK(memcmp(keep, wanted, COUNT) == 0);
    free(joined);
}

/* Try every mask over five rows of odd sizes, some of them empty. */
static void rows_move_together(void)
{
    static const int32_t body[] = {3, 0, 70, 1, 5}, text[] = {0, 4, 2, 9, 33};

    for (int32_t mask = 0; mask < 32; mask++) {
        ts_pulled rows[5];
        uint8_t keep[5], *bodies = bytes_of(79), *texts = bytes_of(48);
        int64_t body_at = 0, text_at = 0;
        int32_t kept;

        for (int32_t i = 0; i < 5; i++) {
            memset(&rows[i], 0, sizeof rows[i]);
            rows[i].queue_offset = i;
            rows[i].body_at = body_at;
            rows[i].properties_at = text_at;
            rows[i].body_size = body[i];
            rows[i].properties_size = text[i];
            memset(bodies + body_at, 'a' + i, (size_t)body[i]);
            memset(texts + text_at, 'A' + i, (size_t)text[i]);
            body_at += body[i];
            text_at += text[i];
            keep[i] = mask >> i & 1;
        }
        kept = ts_pulled_keep(rows, 5, keep, bodies, texts);
        body_at = text_at = 0;
        for (int32_t i = 0, k = 0; i < 5; i++) {
            if (!keep[i])
                continue;
            CHECK(k < kept && rows[k].queue_offset == i);
            CHECK(rows[k].body_at == body_at && rows[k].body_size == body[i]);
            CHECK(rows[k].properties_at == text_at && rows[k].properties_size == text[i]);
            for (int32_t n = 0; n < body[i]; n++)
                CHECK(bodies[body_at + n] == 'a' + i);
            for (int32_t n = 0; n < text[i]; n++)
                CHECK(texts[text_at + n] == 'A' + i);
            body_at += body[i];
            text_at += text[i];
            k++;
        }
        free(bodies);
        free(texts);
    }
}

int main(void)
{
    static const uint8_t joined[] = {'c', 'A', 'a', 'B', 'B'};
    const ts_tags tags = {hashes, joined, ends, 3}, none = {hashes, joined, ends, 0};

    units_by_hash(&tags, &none);
    texts_exactly(&tags);
    rows_move_together();
    puts("test_filter: ok");
    return 0;
}
