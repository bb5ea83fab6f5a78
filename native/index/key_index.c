/* The key index: entries of an index file, and look-ups from keys to messages. */
#include "base/sorted.h"
#include "index/keys.h"
#include "log/walk.h"
#include "timer/states.h"

enum { AHEAD = 16 }; /* keys whose slots are prefetched; 8 to 32 had the same speed */

int32_t ts_index_hash(const uint8_t *topic, int32_t topic_size, const uint8_t *key,
                      int32_t key_size)
{
    return ts_key_hash(ts_key_prefix(ts_java_hash(topic, topic_size)), key, key_size);
}

int64_t ts_index_keys(ts_view *view, int64_t from, int64_t *next, int64_t capacity, ts_keys *keys)
{
    int64_t offset = from, count = 0;
    int32_t status = TS_OK;

    *next = from;
    while (count < capacity && offset < view->end) {
        ts_record record;
        ts_names names;

        status = ts_walk(view, &offset, &record);
        if (status == TS_CORRUPT && view->fault == TS_FAULT_END && offset >= view->end) {
            *next = offset; /* the log ends with a blank */
            break;
        }
        if (status != TS_OK)
            break;
        ts_names_get(record.properties, record.properties_size, &names);
        status = ts_keys_take(keys, &record, &names, NULL);
        if (status != TS_OK)
            break;
        count++;
        offset += record.size;
        *next = offset;
    }
    return count > 0 || status == TS_OK || *next > from ? count : status;
}

static inline uint8_t *slot_at(const ts_index *index, int32_t slot)
{
    return index->slots + (int64_t)slot * TS_INDEX_SLOT_BYTES;
}

static inline void aim(const ts_index *index, ts_key *key)
{
    key->slot = (int32_t)((uint32_t)key->hash % (uint32_t)index->slot_count);
    __builtin_prefetch(slot_at(index, key->slot), 1);
}

/* Return the newest entry of a slot's chain, and make the next entry the newest. */
static inline int32_t slot_take(ts_index *index, int32_t slot)
{
    uint8_t *at = slot_at(index, slot);
    int32_t before = ts_get_i32(at);

    if (before <= 0 || before >= index->next_entry) {
        before = 0;
        index->slots_used++;
    }
    ts_put_i32(at, (int32_t)index->next_entry);
    index->dirty_pages[(int64_t)slot * TS_INDEX_SLOT_BYTES / 4096] = 1;
    return before;
}

/* Return the whole seconds since the file began, as far as they fit. */
static inline int32_t seconds_since(const ts_index *index, int64_t store_ms)
{
    int64_t passed = 0;

    if (index->begin_ms <= 0 || __builtin_sub_overflow(store_ms, index->begin_ms, &passed) ||
        passed < 0)
        return 0;
    passed /= 1000;
    return passed > INT32_MAX ? INT32_MAX : (int32_t)passed;
}

int64_t ts_index_append(ts_index *index, ts_key *keys, int64_t count, uint8_t *entries)
{
    const int64_t left = index->entry_count - index->next_entry;

    if (count > left)
        count = left;
    for (int64_t i = 0; i < count && i < AHEAD; i++)
        aim(index, &keys[i]);
    for (int64_t i = 0; i < count; i++) {
        const ts_key *key = &keys[i];
        ts_index_entry entry;

        if (i + AHEAD < count)
            aim(index, &keys[i + AHEAD]);
        entry.hash = key->hash;
        entry.log_offset = key->log_offset;
        entry.seconds = seconds_since(index, key->store_ms);
        entry.before = slot_take(index, key->slot);
        ts_index_entry_put(entries + i * TS_INDEX_ENTRY_BYTES, &entry);
        if (index->next_entry == 1) {
            index->begin_ms = key->store_ms;
            index->begin_offset = key->log_offset;
        }
        index->end_ms = key->store_ms;
        index->end_offset = key->log_offset;
        index->next_entry++;
    }
    return count;
}

int32_t ts_index_relink(ts_index *index, const uint8_t *entries, int64_t count)
{
    ts_index_entry entry;

    if (count > index->entry_count - index->next_entry)
        return TS_CORRUPT;
    for (int64_t i = 0; i < count; i++) {
        if (i + AHEAD < count) {
            ts_index_entry_get(entries + (i + AHEAD) * TS_INDEX_ENTRY_BYTES, &entry);
            if (entry.hash >= 0)
                __builtin_prefetch(slot_at(index, entry.hash % (int32_t)index->slot_count), 1);
        }
        ts_index_entry_get(entries + i * TS_INDEX_ENTRY_BYTES, &entry);
        if (entry.hash < 0 || entry.before !=
                                  slot_take(index, entry.hash % (int32_t)index->slot_count))
            return TS_CORRUPT;
        index->next_entry++;
    }
    return TS_OK;
}

int32_t ts_index_slot(const uint8_t *slots, int64_t slot_count, int32_t hash)
{
    return ts_get_i32(slots + (int64_t)(hash % (int32_t)slot_count) * TS_INDEX_SLOT_BYTES);
}

/* Return whether a time is before end_ms. The largest end means no limit. */
static int32_t is_before(int64_t ms, int64_t end_ms)
{
    return ms < end_ms || end_ms == INT64_MAX;
}

/* Return whether a message of this entry may have been stored in [begin_ms, end_ms). The seconds of
 * the first entry have no meaning, nor do those of a file without a first time. 0 also stands for
 * all earlier times. */
static int32_t is_in_time(const ts_index_entry *entry, int64_t number, int64_t file_begin_ms,
                          int64_t begin_ms, int64_t end_ms)
{
    int64_t low = 0, high = 0;

    if (file_begin_ms <= 0)
        return 1;
    if (number == 1)
        low = high = file_begin_ms;
    else if (__builtin_add_overflow(file_begin_ms, (int64_t)entry->seconds * 1000, &low) ||
             __builtin_add_overflow(low, 999, &high))
        return 1;
    else if (entry->seconds == 0)
        low = INT64_MIN;
    else if (entry->seconds == INT32_MAX)
        high = INT64_MAX;
    return high >= begin_ms && is_before(low, end_ms);
}

int32_t ts_index_find(const uint8_t *entries, int64_t slot_count, int64_t limit, int32_t hash,
                      int64_t file_begin_ms, int64_t begin_ms, int64_t end_ms, int64_t *number,
                      int64_t *log_offsets, int32_t capacity)
{
    const int32_t slots = (int32_t)slot_count, slot = hash % slots;
    int32_t count = 0;

    while (*number > 0 && count < capacity) {
        ts_index_entry entry;

        if (*number >= limit)
            return TS_CORRUPT;
        ts_index_entry_get(entries + *number * TS_INDEX_ENTRY_BYTES, &entry);
        if (entry.hash < 0 || entry.hash % slots != slot || entry.before < 0 ||
            entry.before >= *number || entry.seconds < 0 || entry.log_offset < 0)
            return TS_CORRUPT;
        if (entry.hash == hash &&
            is_in_time(&entry, *number, file_begin_ms, begin_ms, end_ms))
            log_offsets[count++] = entry.log_offset;
        *number = entry.before;
    }
    return count;
}

static int32_t is_text(const ts_text *text, const uint8_t *at, int32_t size)
{
    return text->at != NULL && text->size == size && memcmp(text->at, at, (size_t)size) == 0;
}

static int32_t has_key(const ts_names *names, const uint8_t *key, int32_t size)
{
    const uint8_t *at = names->keys.at, *end = at == NULL ? at : at + names->keys.size;

    if (key == NULL || is_text(&names->unique_key, key, size))
        return 1;
    while (at < end) {
        const uint8_t *stop = ts_find(at, end, ' ');

        if (stop - at == size && memcmp(at, key, (size_t)size) == 0)
            return 1;
        at = stop + 1;
    }
    return 0;
}

static int32_t fits(const ts_query *query, const ts_record *record, ts_found *found)
{
    ts_names names;
    ts_marks marks;

    if (record->topic_size != query->topic_size ||
        memcmp(record->topic, query->topic, (size_t)record->topic_size) != 0 ||
        record->store_ms < query->begin_ms || !is_before(record->store_ms, query->end_ms))
        return 0;
    ts_names_get(record->properties, record->properties_size, &names);
    if (!has_key(&names, query->key, query->key_size))
        return 0;
    ts_marks_get(record->properties, record->properties_size, &marks);
    found->timer_id = query->real == NULL && marks.timer_id >= 0 &&
                              marks.store_id == query->store_id
                          ? marks.timer_id
                          : -1;
    if (query->real != NULL && (!is_text(&marks.real_topic, query->real, query->real_size) ||
                                marks.delete_key.at != NULL))
        return 0;
    if (query->states != NULL) {
        if (!ts_marks_usable(&marks))
            return 0;
        found->timer_id = ts_marks_id(&marks, query->states, query->store_id, record->queue_offset);
        if (ts_state_get(query->states, found->timer_id) != TS_PENDING &&
            !ts_is_among(query->also, query->also_count, found->timer_id))
            return 0;
    }
    found->log_offset = record->log_offset;
    found->queue_offset = record->queue_offset;
    found->queue_id = record->queue_id;
    found->size = record->size;
    return 1;
}

int32_t ts_index_check(ts_view *view, const ts_query *query, const int64_t *log_offsets,
                       int32_t count, ts_found *found, int32_t *matched)
{
    *matched = 0;
    for (int32_t i = 0; i < count; i++) {
        ts_record record;
        int32_t status;

        if (i + 8 < count)
            ts_view_prefetch(view, log_offsets[i + 8], 512);
        status = ts_view_record(view, log_offsets[i], &record);
        if (status != TS_OK)
            return i > 0 ? i : status;
        *matched += fits(query, &record, &found[*matched]);
    }
    return count;
}

void ts_index_header_put(const ts_index *index, uint8_t *out)
{
    ts_put_i64(out, index->begin_ms);
    ts_put_i64(out + 8, index->end_ms);
    ts_put_i64(out + 16, index->begin_offset);
    ts_put_i64(out + 24, index->end_offset);
    ts_put_i32(out + 32, (int32_t)index->slots_used);
    ts_put_i32(out + 36, (int32_t)index->next_entry);
}

int32_t ts_index_header_get(ts_index *index, const uint8_t *at)
{
    index->begin_ms = ts_get_i64(at);
    index->end_ms = ts_get_i64(at + 8);
    index->begin_offset = ts_get_i64(at + 16);
    index->end_offset = ts_get_i64(at + 24);
    index->slots_used = ts_get_i32(at + 32);
    index->next_entry = ts_get_i32(at + 36);
    if (index->next_entry <= 0)
        index->next_entry = 1;
    return index->next_entry <= index->entry_count && index->slots_used >= 0 &&
                   index->slots_used < index->next_entry
               ? TS_OK
               : TS_CORRUPT;
}
