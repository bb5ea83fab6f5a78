/* The index keys of a message, from its properties. */
#ifndef TS_KEYS_H
#define TS_KEYS_H

#include "format/index_file.h"
#include "format/record.h"
#include "format/text.h"
#include "log/message_names.h"

/* Return the hash of prefix + text from the hash of the prefix: one product for each UTF-16 unit of
 * the text. */
static inline uint32_t ts_java_hash_more(uint32_t hash, const uint8_t *utf8, int32_t size)
{
    uint32_t power = 1;
    uint32_t own = (uint32_t)ts_java_hash(utf8, size);

    for (int32_t i = 0; i < size;) {
        uint32_t point;

        if (size - i >= 8 && (ts_get_u64(utf8 + i) & 0x8080808080808080u) == 0) {
            power *= 2487512833u; /* 31 to the 8th, mod 2 to the 32nd */
            i += 8;
            continue;
        }
        if (size - i >= 4 && (ts_get_u32(utf8 + i) & 0x80808080u) == 0) {
            power *= 923521u; /* to the 4th */
            i += 4;
            continue;
        }
        point = ts_utf8_next(utf8, size, &i);
        power *= point >= 0x10000 ? 961u : 31u;
    }
    return hash * power + own;
}

/* Return a key's hash as the index has it. `prefix` is the Java hash of `topic#` and the key's
 * bytes before these. */
static inline int32_t ts_key_hash(uint32_t prefix, const uint8_t *key, int32_t size)
{
    return ts_index_hash_of((int32_t)ts_java_hash_more(prefix, key, size));
}

/* Return the start of the hashes of a topic's keys. `topic_hash` is the topic's Java hash. */
static inline uint32_t ts_key_prefix(int32_t topic_hash)
{
    return (uint32_t)topic_hash * 31u + '#';
}

static inline void ts_key_add(ts_keys *keys, const ts_record *record, uint32_t prefix,
                              const uint8_t *key, int32_t size)
{
    if (keys->count < keys->capacity) {
        ts_key *one = &keys->at[keys->count];

        one->log_offset = record->log_offset;
        one->store_ms = record->store_ms;
        one->hash = ts_key_hash(prefix, key, size);
    }
    keys->count++;
}

/* Add the key of an append hint, as ts_keys_take does for a record. */
static inline int32_t ts_keys_add_hint(ts_keys *keys, const ts_append_hint *hint)
{
    if (hint->log_offset < keys->begin)
        return TS_OK;
    if (keys->count == keys->capacity)
        return TS_NEED_SPACE;
    keys->at[keys->count++] = (ts_key){
        .log_offset = hint->log_offset, .store_ms = hint->store_ms, .hash = hint->key_hash};
    return TS_OK;
}

/* Add a record's keys: its unique key, each of KEYS (separated by single spaces), and, if wanted,
 * its tags as a broker of 5.4 enters them: topic#T#tags. Return TS_NEED_SPACE, and add none, if
 * they do not fit. A rolled-back record has no keys. `route` is the record's own if it is known; it
 * has the topic's hash. */
static inline int32_t ts_keys_take(ts_keys *keys, const ts_record *record, const ts_names *names,
                                   const ts_route *route)
{
    const int64_t before = keys->count;
    const int32_t topic_hash = route != NULL ? route->topic_hash
                                             : ts_java_hash(record->topic, record->topic_size);
    const uint32_t prefix = ts_key_prefix(topic_hash);
    const uint8_t *at = names->keys.at, *end = at == NULL ? at : at + names->keys.size;

    if (record->log_offset < keys->begin ||
        (record->sys_flag & TS_SYS_TRANSACTION) == TS_SYS_TRANSACTION_ROLLBACK)
        return TS_OK;
    if (names->unique_key.at != NULL)
        ts_key_add(keys, record, prefix, names->unique_key.at, names->unique_key.size);
    while (at < end) {
        const uint8_t *stop = ts_find(at, end, ' ');

        if (stop > at)
            ts_key_add(keys, record, prefix, at, (int32_t)(stop - at));
        at = stop + 1;
    }
    if (keys->has_tags && names->tags.at != NULL)
        ts_key_add(keys, record, ts_java_hash_more(prefix, (const uint8_t *)"T#", 2),
                   names->tags.at, names->tags.size);
    if (keys->count <= keys->capacity)
        return TS_OK;
    keys->count = before;
    return TS_NEED_SPACE;
}

#endif
