/* Group as property text: the value of TS_GROUP, a property of timerstore's own. It marks the
 * records of a group, of which a log holds all or none.
 *
 *  0      4             12 bytes          as text: 16 characters, 6 bits each
 *  | left | start       |      ------->   AAABGAAAAAAAAAPo
 *
 * | offset | bytes | type | unit  | meaning                                                     |
 * |--------|-------|------|-------|-------------------------------------------------------------|
 * | 0      | 4     | u32  | bytes | of the group after this record; 0 in its last record        |
 * | 4      | 8     | u64  | bytes | log offset of the group's first record                      |
 *
 * Byte order and text: as in timer_id.h.
 *
 * A group of two, 300 and 280 bytes long, at log offset 1000:
 *
 *   1000  left 280, start 1000       opens the group [1000, 1580)
 *   1300  left 0,   start 1000       ends it
 *
 * Valid if and only if: all 16 characters are of that alphabet. The value counts only if it is
 * consistent: the first record is at `start`, the group ends within its segment, and each further
 * record has the same start and the same end. In all other cases a copy carried the value along,
 * and it means nothing. A log that ends inside a group is cut at the group's begin.
 *
 * Versions: timerstore 0.2.
 */
#ifndef TS_FORMAT_GROUP_H
#define TS_FORMAT_GROUP_H

#include "format/timer_id.h"

#define TS_GROUP_TEXT_BYTES TS_TIMER_ID_TEXT_BYTES

static inline void ts_group_put(uint8_t *at16, int64_t start, int32_t left)
{
    ts_timer_id_put(at16, (uint32_t)left, (uint64_t)start);
}

/* Read a group. Return 0, or -1 if the 16 characters are not a group. */
static inline int ts_group_get(const uint8_t *at16, int64_t *start, int64_t *left)
{
    uint32_t behind = 0;
    uint64_t first = 0;

    if (ts_timer_id_get(at16, &behind, &first) != 0 || first > INT64_MAX)
        return -1;
    *start = (int64_t)first;
    *left = behind;
    return 0;
}

#endif
