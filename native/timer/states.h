/* Two bits for each timer id. */
#ifndef TS_STATES_H
#define TS_STATES_H

#include "timerstore.h"

#define TS_CHUNK_IDS 1920    /* one 512-byte sector on disk: 32 bytes of head, 480 of states */
#define TS_CHUNK_BYTES 480
#define TS_BLOCK_CHUNKS 128
#define TS_BLOCK_IDS (TS_CHUNK_IDS * TS_BLOCK_CHUNKS)
#define TS_BLOCK_BYTES (TS_CHUNK_BYTES * TS_BLOCK_CHUNKS)

/* Set a state, under the append lock. id is below states->end. Other threads may read it at any
 * time. */
static inline void ts_states_put(ts_states *states, int64_t id, int32_t state)
{
    uint8_t *block = states->blocks[id / TS_BLOCK_IDS];
    int64_t in_block = id % TS_BLOCK_IDS;
    uint8_t *byte = block + in_block / 4;
    int32_t shift = (int32_t)(in_block % 4) * 2;
    uint8_t value = __atomic_load_n(byte, __ATOMIC_RELAXED);

    value = (uint8_t)((value & ~(3 << shift)) | (state << shift));
    __atomic_store_n(byte, value, __ATOMIC_RELAXED);
    block[TS_BLOCK_BYTES + in_block / TS_CHUNK_IDS] = 1;
}

/* Prefetch the byte that ts_state_get will read. */
static inline __attribute__((always_inline)) void ts_state_prefetch(const ts_states *states,
                                                                    int64_t id)
{
    if (id >= 0 && id < states->end && states->blocks[id / TS_BLOCK_IDS] != NULL)
        __builtin_prefetch(states->blocks[id / TS_BLOCK_IDS] + id % TS_BLOCK_IDS / 4);
}

#endif
