/* A cache of record templates for the queues of recent single puts.
 *
 * Each queue has two places by its index, one for due and one for pending messages. Queues with
 * equal places replace each other. A template costs as much as several puts with it save, so it is
 * made only after a queue misses twice in a row.
 */
#ifndef TS_TEMPLATE_CACHE_H
#define TS_TEMPLATE_CACHE_H

#include "log/record_template.h"

enum { TS_TEMPLATE_CACHE_SIZE = 32 }; /* a power of two */

typedef struct {
    const ts_route *route;  /* the queue of the template; NULL: empty */
    const ts_route *missed; /* the queue of the last look-up, if it missed */
    ts_record_template template;
} ts_cached_template;

/* Return the template for such puts to a queue, or NULL without one. */
static inline ts_record_template *ts_template_cache_get(ts_log *log, ts_route *route,
                                                        const ts_put *put,
                                                        int32_t is_timer, int64_t now_ms)
{
    uint32_t at = 2 * (uint32_t)route->index + (uint32_t)is_timer;
    ts_cached_template *cached;

    if (log->templates == NULL)
        return NULL;
    cached = (ts_cached_template *)log->templates + (at & (TS_TEMPLATE_CACHE_SIZE - 1));
    if (cached->route != route) {
        if (cached->missed != route) {
            cached->missed = route;
            return NULL;
        }
        ts_template_make(&cached->template, log, route, put, is_timer, now_ms);
        cached->route = route;
    }
    cached->missed = NULL;
    ts_template_set_now(&cached->template, now_ms);
    return &cached->template;
}

#endif
