#ifndef TS_HASH_H
#define TS_HASH_H

#include "log/parse.h"

#define TS_IDENTITY_START 0xcbf29ce484222325u

uint64_t ts_hash_more(uint64_t seed, const uint8_t *data, int64_t size);
uint64_t ts_identity_more(uint64_t state, const uint8_t *data, int64_t size);
uint64_t ts_identity_end(uint64_t state);

/* Return the route of a topic and queue, or NULL if Python has not made it yet. */
static inline ts_route *ts_route_find(const ts_routes *routes, const uint8_t *topic,
                                      int32_t topic_size, int32_t queue_id)
{
    uint64_t at = ts_route_key(topic, topic_size, queue_id) & routes->mask;

    for (uint64_t probes = 0; probes <= routes->mask; probes++) {
        ts_route *route = __atomic_load_n(&routes->slots[at], __ATOMIC_ACQUIRE);
        if (route == NULL)
            return NULL;
        if (route->queue_id == queue_id && route->topic_size == topic_size &&
            memcmp(route->topic, topic, (size_t)topic_size) == 0)
            return route;
        at = (at + 1) & routes->mask;
    }
    return NULL;
}

/* Return whether a record belongs to the route and has this queue offset. */
static inline int32_t ts_route_has(const ts_route *route, const ts_record *record,
                                   int64_t queue_offset)
{
    return record->queue_id == route->queue_id && record->queue_offset == queue_offset &&
           record->topic_size == route->topic_size &&
           ts_is_same(record->topic, route->topic, route->topic_size);
}

#endif
