/* Hash functions: Java's hash for the file formats, and a 64-bit hash for tables in memory. */
#include "base/hash.h"

#include "format/properties.h"

int32_t ts_topic_hash(const uint8_t *utf8, int32_t size)
{
    return ts_java_hash(utf8, size);
}

static inline uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u; /* an odd constant with good avalanche, checked by the tests only */
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    return x ^ (x >> 32);
}

uint64_t ts_hash_more(uint64_t seed, const uint8_t *data, int64_t size)
{
    uint64_t h = seed, word;

    while (size >= 8) {
        memcpy(&word, data, 8);
        h = mix(h ^ word) + 0x9e3779b97f4a7c15u;
        data += 8;
        size -= 8;
    }
    word = (uint64_t)size << 56;
    if (size > 0)
        memcpy(&word, data, (size_t)size);
    return mix(h ^ word ^ ((uint64_t)size << 59));
}

/* Continue the hash of a text. Bytes are hashed one by one, so that a text in parts has the same
 * hash as the whole text. */
uint64_t ts_identity_more(uint64_t state, const uint8_t *data, int64_t size)
{
    for (int64_t i = 0; i < size; i++)
        state = (state ^ data[i]) * 0x100000001b3u; /* FNV-1a, 64 bits */
    return state;
}

uint64_t ts_identity_end(uint64_t state)
{
    return mix(state);
}

uint64_t ts_identity(const uint8_t *data, int64_t size)
{
    return ts_identity_end(ts_identity_more(TS_IDENTITY_START, data, size));
}

uint64_t ts_route_key(const uint8_t *topic, int32_t topic_size, int32_t queue_id)
{
    return ts_hash_more((uint64_t)(uint32_t)queue_id + 1, topic, topic_size);
}
