/* Index files: any slots and entries, searched, relinked and appended to.
 *
 * Input: numbers, a header, slots, entries.
 */
#include "fuzz.h"

#include "format/index_file.h"

enum { SLOTS = 8, ENTRIES = 24, FOUND = 5 };

static void find_all(const uint8_t *slots, const uint8_t *entries, const ts_index *index,
                     int32_t hash)
{
    int64_t offsets[FOUND], begin_ms = index->begin_ms;
    int64_t number = ts_index_slot(slots, SLOTS, hash);
    int32_t got, calls = 0;

    do {
        got = ts_index_find(entries, SLOTS, index->next_entry, hash, begin_ms,
                            begin_ms > 0 ? begin_ms - 1 : INT64_MIN,
                            begin_ms < INT64_MAX - 5000 ? begin_ms + 5000 : INT64_MAX, &number,
                            offsets, FOUND);
        CHECK(got <= FOUND && calls++ <= ENTRIES); /* chains lead to lower numbers, so they end */
        for (int32_t i = 0; i < got; i++)
            CHECK(offsets[i] >= 0);
    } while (got >= 0 && number > 0);
}

static void append(ts_index *index, fuzz_input *in)
{
    ts_key keys[4];
    int64_t took, room = index->entry_count - index->next_entry;
    uint8_t *entries = malloc(4 * TS_INDEX_ENTRY_BYTES);
    ts_index_entry entry;

    for (int32_t i = 0; i < 4; i++)
        keys[i] = (ts_key){.hash = (int32_t)(fuzz_u64(in) >> 33), .log_offset = fuzz_byte(in),
                           .store_ms = fuzz_number(in)};
    took = ts_index_append(index, keys, 4, entries);
    CHECK(took == (room < 4 ? room : 4));
    for (int64_t i = 0; i < took; i++) {
        ts_index_entry_get(entries + i * TS_INDEX_ENTRY_BYTES, &entry);
        CHECK(entry.hash == keys[i].hash && entry.seconds >= 0);
        CHECK(entry.before >= 0 && entry.before < index->next_entry);
    }
    free(entries);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in = {data, size};
    uint8_t header[TS_INDEX_HEADER_BYTES] = {0}, dirty[1] = {0}, *given;
    uint8_t *slots = fuzz_zeros(SLOTS, TS_INDEX_SLOT_BYTES);
    uint8_t *entries;
    int32_t hash = (int32_t)(fuzz_u64(&in) >> 33);
    ts_index index = {.slots = slots, .dirty_pages = dirty, .slot_count = SLOTS,
                      .entry_count = ENTRIES}, again;
    size_t took;

    given = fuzz_take(&in, TS_INDEX_HEADER_BYTES, &took);
    memcpy(header, given, took);
    free(given);
    given = fuzz_take(&in, SLOTS * TS_INDEX_SLOT_BYTES, &took);
    memcpy(slots, given, took);
    free(given);
    if (ts_index_header_get(&index, header) != TS_OK) {
        free(slots);
        return 0;
    }
    /* The file has all entries below the next one; its readers have checked that. */
    entries = fuzz_zeros(index.next_entry, TS_INDEX_ENTRY_BYTES);
    given = fuzz_take(&in, (size_t)index.next_entry * TS_INDEX_ENTRY_BYTES, &took);
    memcpy(entries, given, took);
    free(given);
    find_all(slots, entries, &index, hash);
    again = index;
    again.next_entry = 1;
    again.slots_used = 0;
    (void)ts_index_relink(&again, entries + TS_INDEX_ENTRY_BYTES, index.next_entry - 1);
    append(&index, &in);
    free(entries);
    free(slots);
    return 0;
}
