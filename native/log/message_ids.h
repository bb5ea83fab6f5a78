/* The message ids that callers chose, kept for the window of deduplication. They are in several
 * hash tables, each at most half full. New ids go to the newest table. */
#ifndef TS_MESSAGE_IDS_H
#define TS_MESSAGE_IDS_H

#include "base/hash.h"

/* Return the hash of an id of a topic. topic_hash is ts_identity of the topic. */
static inline uint64_t ts_id_hash(uint64_t topic_hash, const uint8_t *id, int32_t size)
{
    return ts_hash_more(topic_hash, id, size);
}

/* Return the log offset of the newest entry with this hash that is below an offset and within the
 * window, or -1. If the clock was set back, every entry counts as within the window. */
static inline int64_t ts_id_find(const ts_ids *ids, uint64_t hash, int64_t below, int64_t now_ms,
                                 int64_t *store_ms)
{
    int64_t found = -1;

    for (int32_t t = ids->table_count - 1; t >= 0; t--) {
        const ts_id_table *table = &ids->tables[t];
        uint64_t mask = (uint64_t)table->capacity * 2 - 1, at = hash & mask;

        for (; table->slots[at] != 0; at = (at + 1) & mask) {
            const ts_id *id = &table->entries[table->slots[at] - 1];

            if (id->hash == hash && id->log_offset < below && id->log_offset > found &&
                now_ms - id->store_ms < ids->window_ms) {
                found = id->log_offset;
                *store_ms = id->store_ms;
            }
        }
    }
    return found;
}

static inline int32_t ts_ids_full(const ts_ids *ids)
{
    const ts_id_table *last = ids->table_count > 0 ? &ids->tables[ids->table_count - 1] : NULL;

    return last == NULL || last->count == last->limit;
}

/* Add an id. The caller has checked that there is space. */
static inline void ts_id_add(ts_ids *ids, uint64_t hash, int64_t log_offset, int64_t store_ms)
{
    ts_id_table *table = &ids->tables[ids->table_count - 1];
    uint64_t mask = (uint64_t)table->capacity * 2 - 1, at = hash & mask;

    while (table->slots[at] != 0)
        at = (at + 1) & mask;
    table->entries[table->count] = (ts_id){hash, log_offset, store_ms};
    table->slots[at] = (uint32_t)++table->count;
    if (store_ms > table->newest_ms)
        table->newest_ms = store_ms;
}

#endif
