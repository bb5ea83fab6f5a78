/* Dispatch, and the units of consume queues. */

/* queue/dispatch.c. Read the log between `from` and view->end, and write one queue unit for each
 * record. keys: NULL if there is no index. hints: NULL, or those of the log; a record with a hint
 * is not read. requests: NULL, or space for one request for each record of the timer topic. */
int32_t ts_dispatch(ts_view *view, const ts_routes *routes, const int64_t *level_delay_ms,
                    int32_t level_count, int64_t from, int64_t *next, int32_t capacity,
                    uint8_t *units, int32_t *route_indexes, int64_t *queue_offsets,
                    ts_keys *keys, ts_append_hints *hints, ts_requests *requests);

/* recovery/old_units.c. Units of [queue_offset, + count), compared with the log. */

/* Return how many units, from the first on, have the tags code of their records. Return TS_CORRUPT
 * if the first has not; the fault is TS_FAULT_NONE if its record is whole. */
int32_t ts_old_units_check(ts_view *view, const ts_route *route, const uint8_t *units,
                           int32_t count, int64_t queue_offset);
/* Correct the due times of a level's units in place. An earlier time stays, because an earlier
 * table of delays may have had it. Return how many units were read. */
int32_t ts_old_units_repair(ts_view *view, const ts_route *route, uint8_t *units, int32_t count,
                            int64_t queue_offset, const int64_t *level_delay_ms,
                            int32_t level_count);
/* Read when each unit's record was stored. Return how many were read, from the first on, or a
 * status if the first cannot be read. */
int32_t ts_units_store_ms(ts_view *view, const ts_route *route, const uint8_t *units, int32_t count,
                          int64_t queue_offset, int64_t *store_ms);
