/* Iteration over the records of the commit log. */
#ifndef TS_WALK_H
#define TS_WALK_H

#include "log/view.h"

/* Read the record at *offset. *offset first moves past a blank. The caller moves it past the
 * record. */
static inline int32_t ts_walk(ts_view *view, int64_t *offset, ts_record *record)
{
    for (;;) {
        int64_t available = 0;
        int32_t remaining = 0;
        const uint8_t *at = ts_view_at(view, *offset, &available);

        if (at == NULL)
            return view->need >= 0 ? TS_NEED_SEGMENT
                                   : ts_view_fault(view, *offset, TS_FAULT_END);
        if (!ts_blank_is(at, available, &remaining))
            return ts_view_record(view, *offset, record);
        if (remaining != view->segment_bytes - *offset % view->segment_bytes)
            return ts_view_fault(view, *offset, TS_FAULT_LENGTHS);
        *offset += remaining;
    }
}

/* Return whether a record enters a queue. Prepared and rolled-back records of transactions do not.
 */
static inline int32_t ts_is_queued(const ts_record *record)
{
    int32_t transaction = record->sys_flag & TS_SYS_TRANSACTION;

    return transaction == 0 || transaction == TS_SYS_TRANSACTION_COMMIT;
}

#endif
