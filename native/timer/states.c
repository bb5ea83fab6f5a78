/* The state table: the state of each timer id, and which chunks a checkpoint must write. */
#include "timer/states.h"

int32_t ts_state_get(const ts_states *states, int64_t id)
{
    const uint8_t *block;
    int64_t in_block;

    if (id < 0 || id >= states->end)
        return TS_NONE;
    block = states->blocks[id / TS_BLOCK_IDS];
    if (block == NULL)
        return TS_NONE;
    in_block = id % TS_BLOCK_IDS;
    return (__atomic_load_n(block + in_block / 4, __ATOMIC_RELAXED) >> (in_block % 4 * 2)) & 3;
}

int32_t ts_state_set(ts_states *states, int64_t id, int32_t state)
{
    int32_t before = ts_state_get(states, id);

    if (id < 0 || id >= states->end)
        return TS_NEED_STATES;
    states->pending += (state == TS_PENDING) - (before == TS_PENDING);
    ts_states_put(states, id, state);
    return before;
}

void ts_states_set_many(ts_states *states, const int64_t *ids, int64_t count, int32_t state)
{
    for (int64_t i = 0; i < count; i++)
        ts_state_set(states, ids[i], state);
}

void ts_states_wait(const ts_states *states, const int64_t *ids, int64_t count, uint8_t *waits)
{
    for (int64_t i = 0; i < count; i++)
        waits[i] = ts_state_get(states, ids[i]) == TS_PENDING;
}

int32_t ts_states_fold(ts_states *states, ts_route **routes, const ts_scanned *scanned,
                       int32_t count, uint32_t store_id, int64_t *need)
{
    for (int32_t i = 0; i < count; i++) {
        const ts_scanned *record = &scanned[i];
        int64_t top = record->timer_id;
        int32_t before;

        if (record->kind != TS_KIND_TIMER && record->kind != TS_KIND_DELETE &&
            record->kind != TS_KIND_DELIVERED)
            continue; /* a level's ids are places in its queue; other ids were copied by a client */
        if (record->timer_id < 0 || record->store_id != store_id)
            top = -1;
        if (record->kind != TS_KIND_DELIVERED && record->queue_offset > top)
            top = record->queue_offset;
        if (top >= states->end) {
            *need = top;
            return i;
        }
        if (record->timer_id < 0 || record->store_id != store_id)
            continue;
        before = ts_state_get(states, record->timer_id);
        if (record->kind == TS_KIND_TIMER) {
            if (record->timer_id == record->queue_offset && before == TS_NONE) {
                ts_state_set(states, record->timer_id, TS_PENDING);
                routes[record->route]->pending++;
            }
        } else if (before == TS_PENDING) {
            ts_state_set(states, record->timer_id,
                         record->kind == TS_KIND_DELETE ? TS_CANCELLED : TS_DELIVERED);
            routes[record->route]->pending--;
        }
    }
    return count;
}

int64_t ts_states_copy_dirty(ts_states *states, int64_t *chunks, uint8_t *payloads,
                             int64_t capacity)
{
    int64_t copied = 0;

    for (int64_t b = 0; b * TS_BLOCK_IDS < states->end; b++) {
        uint8_t *block = states->blocks[b];

        if (block == NULL)
            continue;
        for (int64_t c = 0; c < TS_BLOCK_CHUNKS; c++) {
            if (!block[TS_BLOCK_BYTES + c])
                continue;
            if (copied == capacity)
                return copied;
            chunks[copied] = b * TS_BLOCK_CHUNKS + c;
            memcpy(payloads + copied * TS_CHUNK_BYTES, block + c * TS_CHUNK_BYTES,
                   TS_CHUNK_BYTES);
            block[TS_BLOCK_BYTES + c] = 0;
            copied++;
        }
    }
    return copied;
}

int64_t ts_states_pending(const ts_states *states, int64_t from, int64_t *ids, int64_t capacity,
                          int64_t *next)
{
    int64_t found = 0, id = from;

    for (; id < states->end && found < capacity; id++) {
        if (id % 4 == 0) {
            const uint8_t *block = states->blocks[id / TS_BLOCK_IDS];
            uint8_t byte;
            if (block == NULL) {
                id += TS_BLOCK_IDS - id % TS_BLOCK_IDS - 1;
                continue;
            }
            byte = block[id % TS_BLOCK_IDS / 4];
            if (!(byte & 0x55 & ~(byte >> 1))) { /* none of the four has the bits 01 */
                id += 3;
                continue;
            }
        }
        if (ts_state_get(states, id) == TS_PENDING)
            ids[found++] = id;
    }
    *next = id < states->end ? id : states->end;
    return found;
}

void ts_states_copy(const ts_states *states, uint8_t **blocks, ts_states *out)
{
    out->blocks = blocks;
    out->end = states->end;
    out->pending = states->pending;
    for (int64_t b = 0; b * TS_BLOCK_IDS < states->end; b++) {
        if (states->blocks[b] == NULL)
            blocks[b] = NULL;
        else
            memcpy(blocks[b], states->blocks[b], TS_BLOCK_BYTES);
    }
}
