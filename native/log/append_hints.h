/* Append hints: what dispatch needs to know of a record, written by the thread that appends it
 * (docs/decisions/0002-group-commit.md).
 *
 * The hints are a ring with one writer, under the append lock, and one reader, dispatch. A hint is
 * optional: dispatch reads the log for a record without a hint. So no thread waits for a hint; if
 * the ring is full, the writer drops it.
 */
#ifndef TS_APPEND_HINTS_H
#define TS_APPEND_HINTS_H

#include "index/keys.h"

/* Return the Java hash of `topic#` and the fixed part of the ids that the store makes. */
static inline uint32_t ts_hint_id_prefix(const ts_log *log, ts_route *route)
{
    if (route->key_prefix == 0)
        route->key_prefix = ts_java_hash_more(ts_key_prefix(route->topic_hash), log->unique_prefix,
                                              (int32_t)sizeof log->unique_prefix);
    return route->key_prefix;
}

/* Return where the next hint goes, or NULL if hints are off or the ring is full. */
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

/* Return the hint of the record at `offset`, or NULL if it has none. Hints of earlier records are
 * skipped. If tags are index keys, too (as in 5.4 of the broker), a record with tags is read from
 * the log, because a hint does not hold their key. */
static inline const ts_append_hint *ts_hint_at(ts_append_hints *hints, int64_t offset,
                                               const ts_keys *keys)
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
