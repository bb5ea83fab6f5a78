/* Kept forms: of the queues that single puts went to lately, so that one more fills a form in.
 *
 * A few places: a queue has two by its index, one for what is due and one for what waits, and another
 * queue that has the same two takes them from it. To make a form takes the time of several puts on
 * it, so it is made where a queue misses twice in a row.
 */
#ifndef TS_TEMPLATE_CACHE_H
#define TS_TEMPLATE_CACHE_H

#include "log/record_template.h"

enum { TS_TEMPLATE_CACHE_SIZE = 32 }; /* a power of two */

typedef struct {
    const ts_route *route;  /* whose form it is; NULL: nobody's */
    const ts_route *missed; /* who looked last and had none */
    ts_record_template template;
} ts_cached_template;

/* The form of such puts to a queue; NULL where there is none now. */
static inline ts_record_template *ts_template_cache_get(ts_log *log, ts_route *route, const ts_put *put,
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
