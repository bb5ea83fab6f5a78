/* Kept forms: of the queues that single puts went to lately, so that one more fills a form in.
 *
 * A few places: a queue has two by its index, one for what is due and one for what waits, and another
 * queue that has the same two takes them from it. To make a form takes the time of several puts on
 * it, so it is made where a queue misses twice in a row.
 */
#ifndef TS_KEPT_H
#define TS_KEPT_H

#include "log/record_template.h"

enum { TS_KEPT_PLACES = 32 }; /* a power of two */

typedef struct {
    const ts_route *route;  /* whose form it is; NULL: nobody's */
    const ts_route *missed; /* who looked last and had none */
    ts_form form;
} ts_kept;

/* The form of such puts to a queue; NULL where there is none now. */
static inline ts_form *ts_kept_form(ts_log *log, ts_route *route, const ts_put *put,
                                    int32_t is_timer, int64_t now_ms)
{
    uint32_t at = 2 * (uint32_t)route->index + (uint32_t)is_timer;
    ts_kept *kept;

    if (log->kept == NULL)
        return NULL;
    kept = (ts_kept *)log->kept + (at & (TS_KEPT_PLACES - 1));
    if (kept->route != route) {
        if (kept->missed != route) {
            kept->missed = route;
            return NULL;
        }
        ts_form_make(&kept->form, log, route, put, is_timer, now_ms);
        kept->route = route;
    }
    kept->missed = NULL;
    ts_form_set_now(&kept->form, now_ms);
    return &kept->form;
}

#endif
