/* A view's bytes: from an offset to mapped memory. */
#ifndef TS_VIEW_H
#define TS_VIEW_H

#include "timerstore.h"
#include "format/record.h"

/* Bytes at offset and how many of them lie in its segment and below the view's end; NULL with
 * view->need set where the segment is not mapped, NULL with need < 0 where there is nothing. */
static inline const uint8_t *ts_view_at(ts_view *view, int64_t offset, int64_t *available)
{
    int64_t number, in_segment, left;

    view->need = -1;
    if (offset < view->begin || offset >= view->end)
        return NULL;
    number = offset / view->segment_bytes;
    in_segment = offset - number * view->segment_bytes;
    if (number < view->first_segment)
        return NULL;
    if (number - view->first_segment >= view->segment_count ||
        view->segments[number - view->first_segment] == NULL) {
        view->need = number;
        return NULL;
    }
    left = view->segment_bytes - in_segment;
    if (left > view->end - offset)
        left = view->end - offset;
    *available = left;
    return view->segments[number - view->first_segment] + in_segment;
}

/* gcc 12 takes a function that does nothing but prefetch for one without effect and drops its calls,
 * unless it is inlined before it is looked at. */
#define TS_PREFETCHES static inline __attribute__((always_inline)) void

/* Where an offset is mapped, or NULL; nothing is looked at. */
static inline const uint8_t *ts_view_address(const ts_view *view, int64_t offset)
{
    int64_t number, in_segment;

    if (offset < view->begin)
        return NULL;
    number = offset / view->segment_bytes;
    in_segment = offset - number * view->segment_bytes;
    number -= view->first_segment;
    if (number < 0 || number >= view->segment_count || view->segments[number] == NULL)
        return NULL;
    return view->segments[number] + in_segment;
}

/* Records that lie anywhere are touched by the group, a group ahead. */
enum { TS_TOUCHED = 32 };

/* Ask for a record's first and last byte, and with them for where their pages are. Looking that up
 * takes longer than having the lines, and what comes behind such a request waits for it; but several
 * are looked up side by side. So many are asked for in a row, before anything else of them is: read
 * one by one, a record cost 90 to 140 ns for this alone, in groups 30 to 40. */
TS_PREFETCHES ts_view_touch(const ts_view *view, int64_t offset, int32_t size)
{
    const uint8_t *at = ts_view_address(view, offset);

    if (at == NULL || size <= 0)
        return;
    __builtin_prefetch(at);
    __builtin_prefetch(at + size - 1);
}

/* The same where no more than the end is looked at. */
TS_PREFETCHES ts_view_touch_end(const ts_view *view, int64_t offset, int32_t size)
{
    const uint8_t *at = ts_view_address(view, offset);

    if (at != NULL && size > 0)
        __builtin_prefetch(at + size - 1);
}

/* Ask early for a record's first `head` bytes, and for its end. Never faults. */
TS_PREFETCHES ts_prefetch_ends(const ts_view *view, int64_t offset, int32_t size, int32_t head)
{
    const uint8_t *at = ts_view_address(view, offset);

    if (at == NULL || size <= 0)
        return;
    for (int32_t line = 0; line < size && line < head; line += 64)
        __builtin_prefetch(at + line);
    for (int32_t line = size - 512 > head ? size - 512 : head; line < size; line += 64)
        __builtin_prefetch(at + line);
    __builtin_prefetch(at + size - 1);
}

/* The lines that will be looked at: all of a small record, of a larger one the head and the end,
 * where lengths and properties stand. */
TS_PREFETCHES ts_view_prefetch(const ts_view *view, int64_t offset, int32_t size)
{
    ts_prefetch_ends(view, offset, size, 128);
}

/* The same where all of it is read: its middle, too, as far as that stays in the first cache.
 * Of 1 KiB the CRC took twice as long without them. */
TS_PREFETCHES ts_view_prefetch_all(const ts_view *view, int64_t offset, int32_t size)
{
    ts_prefetch_ends(view, offset, size, 1536);
}

/* The same for the last lines alone, where a timer's time stands. */
TS_PREFETCHES ts_view_prefetch_end(const ts_view *view, int64_t offset, int32_t size)
{
    const uint8_t *at = ts_view_address(view, offset);

    if (at == NULL || size < 128)
        return;
    __builtin_prefetch(at + size - 128);
    __builtin_prefetch(at + size - 64);
    __builtin_prefetch(at + size - 1);
}

/* Why a record could not be had, as a status; view->fault says more. */
static inline int32_t ts_view_fault(ts_view *view, int64_t offset, int32_t fault)
{
    view->fault = fault;
    view->fault_offset = offset;
    return TS_CORRUPT;
}

/* The record at offset; its position and lengths are checked, its CRCs are not. */
int32_t ts_view_record(ts_view *view, int64_t offset, ts_record *record);

/* Body and property CRC of a record that ts_view_record gave: 0 or an enum ts_fault. */
int32_t ts_record_check(const ts_record *record);

#endif
