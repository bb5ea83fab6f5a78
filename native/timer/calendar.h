/* The calendar: how many messages wait, by due time, for each topic and for all topics, by second
 * and by hour.
 *
 * It is a hash table with open addressing, on memory from Python. The key of a cell:
 *
 *   bits 63-42  topic number, 0: all topics
 *   bit  41     0: a second, 1: an hour
 *   bits 40-0   seconds or hours since 1970, plus 1: so no key is 0, which marks an empty cell
 *
 * 16 neighbours in time are adjacent: reading a day's seconds takes 5,400 look-ups, not 86,400. A
 * cell with count 0 stays until the table is rebuilt.
 *
 * Locking: everything here runs under the append lock.
 */
#ifndef TS_CALENDAR_H
#define TS_CALENDAR_H

#include "timer/states.h"

enum { TS_CALENDAR_CELLS = 4 }; /* that one message changes */

#define TS_CALENDAR_NUMBER_MAX (((int64_t)1 << 41) - 2)

static inline uint64_t ts_calendar_key(int64_t topic, int64_t is_hour, int64_t number)
{
    number = number < 0 ? 0 : number > TS_CALENDAR_NUMBER_MAX ? TS_CALENDAR_NUMBER_MAX : number;
    return (uint64_t)topic << 42 | (uint64_t)is_hour << 41 | (uint64_t)(number + 1);
}

static inline uint64_t ts_calendar_place(uint64_t key, uint64_t mask)
{
    uint64_t mixed = (key >> 4) * 0x9E3779B97F4A7C15u;

    return ((mixed ^ mixed >> 29) << 4 | (key & 15)) & mask;
}

static inline void ts_calendar_cell_add(ts_calendar *calendar, uint64_t key, int64_t by)
{
    uint64_t at = ts_calendar_place(key, calendar->mask);

    while (calendar->cells[at].key != key) {
        if (calendar->cells[at].key == 0) {
            calendar->cells[at].key = key;
            calendar->used++;
            break;
        }
        at = (at + 1) & calendar->mask;
    }
    calendar->cells[at].count += by;
}

/* Count `by` more (or fewer) messages that wait for the topic and are due then. There is space for
 * the cells. */
static inline void ts_calendar_add(ts_calendar *calendar, const ts_route *real, int64_t due_ms,
                                   int64_t by)
{
    for (int64_t is_hour = 0; is_hour < 2; is_hour++) {
        int64_t number = due_ms / (is_hour ? 3600000 : 1000);

        ts_calendar_cell_add(calendar, ts_calendar_key(0, is_hour, number), by);
        ts_calendar_cell_add(calendar, ts_calendar_key(real->topic_number, is_hour, number), by);
    }
}

/* Count a timer that waits no more. If it was not counted yet, mark it so that it never will be. */
static inline void ts_calendar_take(ts_calendar *calendar, const ts_route *real, int64_t id,
                                    int64_t due_ms)
{
    if (calendar->left != NULL && ts_state_get(calendar->left, id) == TS_PENDING) {
        ts_states_put(calendar->left, id, TS_DELIVERED);
        calendar->left->pending--;
        return;
    }
    ts_calendar_add(calendar, real, due_ms, -1);
}

/* Return whether there is space for the cells of this many more messages. Always true without a
 * calendar. */
static inline int32_t ts_calendar_has_space(const ts_calendar *calendar, int64_t messages)
{
    return calendar == NULL || calendar->used + messages * TS_CALENDAR_CELLS <= calendar->limit;
}

#endif
