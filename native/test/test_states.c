/* The state table: changes, dirty chunks, and the fold. */
#include "store.h"

#include "log/parse.h"

static void test_states(void)
{
    uint8_t *blocks[2] = {bytes_of(BLOCK_BYTES), bytes_of(BLOCK_BYTES)};
    ts_states states = {blocks, 2 * TS_BLOCK_IDS, 0};
    int64_t ids[6] = {0, 3, TS_CHUNK_IDS - 1, TS_CHUNK_IDS, TS_BLOCK_IDS, 2 * TS_BLOCK_IDS - 1};
    int64_t got[6], next, chunks[5];
    uint8_t *payloads = bytes_of(5 * TS_CHUNK_BYTES);

    ts_states_set_many(&states, ids, 6, TS_PENDING);
    CHECK(states.pending == 6);
    CHECK(ts_states_pending(&states, 0, got, 6, &next) == 6 && memcmp(got, ids, sizeof ids) == 0);
    CHECK(ts_states_pending(&states, 0, got, 2, &next) == 2 && next == 4);
    CHECK(ts_states_pending(&states, next, got, 6, &next) == 4 && next == states.end);
    CHECK(ts_states_copy_dirty(&states, chunks, payloads, 1) == 1 && chunks[0] == 0);
    CHECK(ts_states_copy_dirty(&states, chunks, payloads, 5) == 3);
    CHECK(chunks[0] == 1 && chunks[1] == 128 && chunks[2] == 255 && payloads[0] == 1);
    CHECK(ts_states_copy_dirty(&states, chunks, payloads, 5) == 0);
    CHECK(ts_state_set(&states, 3, TS_DELIVERED) == TS_PENDING && states.pending == 5);
    CHECK(ts_state_get(&states, 3) == TS_DELIVERED && ts_state_get(&states, 2) == TS_NONE);
    CHECK(ts_state_set(&states, states.end, TS_PENDING) == TS_NEED_STATES);
    CHECK(ts_state_set(&states, -1, TS_PENDING) == TS_NEED_STATES && states.pending == 5);
    CHECK(ts_state_get(&states, -1) == TS_NONE && ts_state_get(&states, INT64_MAX) == TS_NONE);
    free(blocks[0]);
    free(blocks[1]);
    free(payloads);
}

int main(void)
{
    test_states();
    puts("test_states: ok");
    return 0;
}
