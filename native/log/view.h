/* Access to the bytes of a view: from an offset to mapped memory. */
#ifndef TS_VIEW_H
#define TS_VIEW_H

#include "format/record.h"
#include "timerstore.h"

/* Return the bytes at an offset. *available is how many of them lie in its segment and below the
 * view's end. Return NULL with view->need set if the segment is not mapped, and NULL with need < 0
 * if the offset is outside of the view. */
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

/* gcc 12 treats a function that only prefetches as one without effect and drops its calls, unless
 * it is inlined first. */
#define TS_PREFETCHES static inline __attribute__((always_inline)) void

/* Return where an offset is mapped, or NULL. Reads no bytes. */
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

/* Scattered records are touched in groups, one group ahead. */
enum { TS_TOUCHED = 32 };

/* Prefetch a record's first and last byte, and with them the address translation of their pages.
 * The translation takes longer than the cache lines, and later requests wait for it; but the
 * processor does several translations at once. So a whole group is prefetched in a row, before
 * other data of its records. One by one, a record took 90 to 140 ns for this alone; in groups 30 to
 * 40. */
TS_PREFETCHES ts_view_touch(const ts_view *view, int64_t offset, int32_t size)
{
    const uint8_t *at = ts_view_address(view, offset);

    if (at == NULL || size <= 0)
        return;
    __builtin_prefetch(at);
    __builtin_prefetch(at + size - 1);
}

/* Do the same if only the record's end will be read. */
TS_PREFETCHES ts_view_touch_end(const ts_view *view, int64_t offset, int32_t size)
{
    const uint8_t *at = ts_view_address(view, offset);

    if (at != NULL && size > 0)
        __builtin_prefetch(at + size - 1);
}

/* Prefetch a record's first `head` bytes and its end. Never faults. */
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

/* Prefetch the lines that will be read: all of a small record; of a larger one the head and the
 * end, which hold the lengths and the properties. */
TS_PREFETCHES ts_view_prefetch(const ts_view *view, int64_t offset, int32_t size)
{
    ts_prefetch_ends(view, offset, size, 128);
}

/* Do the same if the whole record will be read: prefetch its middle, too, as far as it stays in the
 * first-level cache. Without it the CRC of 1 KiB took twice as long. */
TS_PREFETCHES ts_view_prefetch_all(const ts_view *view, int64_t offset, int32_t size)
{
    ts_prefetch_ends(view, offset, size, 1536);
}

/* Prefetch the last lines only, which hold a timer's time. */
TS_PREFETCHES ts_view_prefetch_end(const ts_view *view, int64_t offset, int32_t size)
{
    const uint8_t *at = ts_view_address(view, offset);

    if (at == NULL || size < 128)
        return;
    __builtin_prefetch(at + size - 128);
    __builtin_prefetch(at + size - 64);
    __builtin_prefetch(at + size - 1);
}

/* Set the fault of a record that cannot be read. Return TS_CORRUPT. */
static inline int32_t ts_view_fault(ts_view *view, int64_t offset, int32_t fault)
{
    view->fault = fault;
    view->fault_offset = offset;
    return TS_CORRUPT;
}

/* Read the record at an offset. Checks its position and lengths, but not its CRCs. */
int32_t ts_view_record(ts_view *view, int64_t offset, ts_record *record);

/* Check the body's and the properties' CRC of a record from ts_view_record. Return 0 or an enum
 * ts_fault. */
int32_t ts_record_check(const ts_record *record);

#endif
