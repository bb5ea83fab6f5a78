/* Tag filters: select units by the hash of their tags, then messages by the tags themselves. */
#include "format/properties.h"
#include "format/queue_unit.h"
#include "log/parse.h"

/* Return where `hash` begins in the ascending hashes, or where it would. */
static int32_t hash_place(const ts_tags *tags, int32_t hash)
{
    int32_t low = 0, high = tags->count;

    while (low < high) {
        int32_t middle = low + (high - low) / 2;

        if (tags->hashes[middle] < hash)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int32_t has_hash(const ts_tags *tags, int32_t hash)
{
    int32_t at = hash_place(tags, hash);

    return at < tags->count && tags->hashes[at] == hash;
}

static int32_t has_tag(const ts_tags *tags, const ts_text *tag)
{
    int32_t hash = ts_java_hash(tag->at, tag->size);

    /* Tags with equal hashes are adjacent. */
    for (int32_t at = hash_place(tags, hash); at < tags->count && tags->hashes[at] == hash; at++) {
        int64_t begin = tags->text_offsets[at], size = tags->text_offsets[at + 1] - begin;

        if (size == tag->size && memcmp(tags->texts + begin, tag->at, (size_t)size) == 0)
            return 1;
    }
    return 0;
}

int32_t ts_units_tagged(const uint8_t *units, int32_t count, const ts_tags *tags,
                        int32_t *positions)
{
    int32_t found = 0;

    for (int32_t i = 0; i < count; i++) {
        int64_t code = ts_get_i64(units + (int64_t)i * TS_QUEUE_UNIT_BYTES + TS_QUEUE_AT_TAGS_CODE);

        /* A code below every hash is an address in the queue's extension file, which does not tell
         * the tag. */
        if (code < INT32_MIN || has_hash(tags, (int32_t)(uint32_t)(uint64_t)code))
            positions[found++] = i;
    }
    return found;
}

int32_t ts_texts_tagged(const uint8_t *texts, const int64_t *offsets, int32_t count,
                        const ts_tags *tags, uint8_t *keep)
{
    int32_t found = 0;

    for (int32_t i = 0; i < count; i++) {
        int32_t at = 0, size = (int32_t)(offsets[i + 1] - offsets[i]);
        ts_text name, value, tag = {NULL, 0};

        while (ts_pair_next(texts + offsets[i], size, &at, &name, &value)) {
            if (value.size > 0 && TS_IS(&name, TS_PROP_TAGS))
                tag = value; /* of two the last counts */
        }
        keep[i] = tag.at != NULL && has_tag(tags, &tag);
        found += keep[i];
    }
    return found;
}

int32_t ts_pulled_keep(ts_pulled *pulled, int32_t count, const uint8_t *keep, uint8_t *bodies,
                       uint8_t *properties)
{
    int64_t body_at = 0, properties_at = 0;
    int32_t kept = 0;

    for (int32_t i = 0; i < count; i++) {
        ts_pulled *one = &pulled[i];

        if (!keep[i])
            continue;
        /* Rows only move towards the start, over removed ones. */
        memmove(bodies + body_at, bodies + one->body_at, (size_t)one->body_size);
        memmove(properties + properties_at, properties + one->properties_at,
                (size_t)one->properties_size);
        one->body_at = body_at;
        one->properties_at = properties_at;
        body_at += one->body_size;
        properties_at += one->properties_size;
        if (kept != i)
            pulled[kept] = *one;
        kept++;
    }
    return kept;
}
