/* Access to the bytes of a window. */
#ifndef TS_WINDOW_H
#define TS_WINDOW_H

#include "format/record.h"
#include "timerstore.h"

static inline int32_t ts_window_fault(ts_window *window, int64_t offset, int32_t fault)
{
    window->fault = fault;
    window->fault_offset = offset;
    return TS_CORRUPT;
}

/* Return the bytes at an offset, or NULL if the window has none there. *available is their number,
 * up to the window's end. */
static inline const uint8_t *ts_window_bytes(const ts_window *window, int64_t offset,
                                             int64_t *available)
{
    int64_t at = offset - window->offset, left = window->size - at;

    if (at < 0 || left <= 0 || offset >= window->end)
        return NULL;
    if (left > window->end - offset)
        left = window->end - offset;
    *available = left;
    return window->bytes + at;
}

static inline int64_t ts_window_segment_left(const ts_window *window, int64_t offset)
{
    return window->segment_bytes - offset % window->segment_bytes;
}

/* Read the record at *offset. A blank moves *offset to the next segment, where the window ends. */
int32_t ts_window_record(ts_window *window, int64_t *offset, ts_record *record);

/* Return the enum ts_route_kind of a record's topic. */
int32_t ts_topic_kind(const ts_record *record);

#endif
