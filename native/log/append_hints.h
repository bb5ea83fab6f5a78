/* Notes: what dispatch looks for in a record, kept by who appends it (decision 0052).
 *
 * A ring between one who appends, under the append lock, and one who dispatches. A note is a
 * convenience: the log says the same, and whatever has no note is read there. So none is ever waited
 * for: a full ring takes no more.
 */
#ifndef TS_APPEND_HINTS_H
#define TS_APPEND_HINTS_H

#include "index/keys.h"

/* Java hash of topic#key up to the number of an id that the store makes. */
static inline uint32_t ts_hint_id_prefix(const ts_log *log, ts_route *route)
{
    if (route->key_prefix == 0)
        route->key_prefix = ts_java_hash_more(ts_key_prefix(route->topic_hash), log->unique_prefix,
                                              (int32_t)sizeof log->unique_prefix);
    return route->key_prefix;
}

/* Where the next note goes; NULL: nobody wants it, or there is no room. */
static inline ts_append_hint *ts_hint_next(const ts_log *log)
{
    ts_append_hints *hints = log->hints;

    if (hints == NULL ||
        hints->tail - __atomic_load_n(&hints->head, __ATOMIC_ACQUIRE) >= hints->capacity)
        return NULL;
    return &hints->at[hints->tail & (hints->capacity - 1)];
}

static inline void ts_hint_added(const ts_log *log)
{
    __atomic_store_n(&log->hints->tail, log->hints->tail + 1, __ATOMIC_RELEASE);
}

/* The note of the record at `offset`, NULL where it has none; those of earlier records are passed over.
 * Where tags are in the index, too, as 5.4 has it, what has some is read: their key is not noted. */
static inline const ts_append_hint *ts_hint_at(ts_append_hints *hints, int64_t offset, const ts_keys *keys)
{
    int64_t tail = __atomic_load_n(&hints->tail, __ATOMIC_ACQUIRE), head = hints->head;
    const ts_append_hint *hint = NULL;

    while (head < tail && hints->at[head & (hints->capacity - 1)].log_offset < offset)
        head++;
    if (head != hints->head)
        __atomic_store_n(&hints->head, head, __ATOMIC_RELEASE);
    if (head < tail)
        hint = &hints->at[head & (hints->capacity - 1)];
    if (hint == NULL || hint->log_offset != offset ||
        (hint->has_tags && keys != NULL && keys->has_tags))
        return NULL;
    return hint;
}

#endif
