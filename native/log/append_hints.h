/* Notes: what dispatch looks for in a record, kept by who appends it (decision 0052).
 *
 * A ring between one who appends, under the append lock, and one who dispatches. A note is a
 * convenience: the log says the same, and whatever has no note is read there. So none is ever waited
 * for: a full ring takes no more.
 */
#ifndef TS_NOTES_H
#define TS_NOTES_H

#include "index/keys.h"

/* Java hash of topic#key up to the number of an id that the store makes. */
static inline uint32_t ts_note_id_prefix(const ts_log *log, ts_route *route)
{
    if (route->key_prefix == 0)
        route->key_prefix = ts_java_hash_more(ts_key_prefix(route->topic_hash), log->unique_prefix,
                                              (int32_t)sizeof log->unique_prefix);
    return route->key_prefix;
}

/* Where the next note goes; NULL: nobody wants it, or there is no room. */
static inline ts_note *ts_note_next(const ts_log *log)
{
    ts_notes *notes = log->notes;

    if (notes == NULL ||
        notes->tail - __atomic_load_n(&notes->head, __ATOMIC_ACQUIRE) >= notes->capacity)
        return NULL;
    return &notes->at[notes->tail & (notes->capacity - 1)];
}

static inline void ts_note_added(const ts_log *log)
{
    __atomic_store_n(&log->notes->tail, log->notes->tail + 1, __ATOMIC_RELEASE);
}

/* The note of the record at `offset`, NULL where it has none; those of earlier records are passed over.
 * Where tags are in the index, too, as 5.4 has it, what has some is read: their key is not noted. */
static inline const ts_note *ts_note_at(ts_notes *notes, int64_t offset, const ts_keys *keys)
{
    int64_t tail = __atomic_load_n(&notes->tail, __ATOMIC_ACQUIRE), head = notes->head;
    const ts_note *note = NULL;

    while (head < tail && notes->at[head & (notes->capacity - 1)].log_offset < offset)
        head++;
    if (head != notes->head)
        __atomic_store_n(&notes->head, head, __ATOMIC_RELEASE);
    if (head < tail)
        note = &notes->at[head & (notes->capacity - 1)];
    if (note == NULL || note->log_offset != offset ||
        (note->has_tags && keys != NULL && keys->has_tags))
        return NULL;
    return note;
}

#endif
