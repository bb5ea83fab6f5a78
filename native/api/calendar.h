/* The calendar: how many messages wait, by topic and due time (timer/calendar.h). Under the append
 * lock. */

typedef struct {
    uint64_t key;         /* 0: empty */
    int64_t count;
} ts_calendar_cell;

struct ts_calendar {
    ts_calendar_cell *cells; /* [mask + 1], a power of two */
    uint64_t mask;
    int64_t used;         /* cells that have a key */
    int64_t limit;        /* of used */
    ts_states *left;      /* while it is filled: the timers that are still to be counted; else
                           * NULL */
};

/* timer/calendar.c. All functions run under the append lock, except the last two. */

/* Return whether the calendar has space for this many more messages. */
int32_t ts_calendar_fits(const ts_log *log, int64_t messages);
/* Count `by` more (or fewer) pending messages of a level. The caller has checked that they fit. */
void ts_calendar_count(ts_log *log, const ts_route *real, int64_t due_ms, int64_t by);
/* Count a timer that waits no more. */
void ts_calendar_leave(ts_log *log, const ts_route *real, int64_t id, int64_t due_ms);
/* Count due entries for the first time. Return how many there was space for. */
int32_t ts_calendar_fill(ts_calendar *calendar, ts_route **routes, const ts_due *due,
                         const int32_t *of, int32_t count);
/* Copy the counts to a larger table. */
int64_t ts_calendar_move(ts_calendar *to, const ts_calendar *from);
/* Add up counts to `count` buckets of unit_s seconds, which is 1, 60, 3600 or 86400. */
void ts_calendar_read(const ts_calendar *calendar, int64_t topic, int64_t unit_s, int64_t first,
                      int64_t count, int64_t *out);
/* Read the real routes of records of the timer topic, or of the level topic. A record that can
 * never be delivered has -1. */
int32_t ts_real_routes(ts_view *view, const ts_routes *routes, const int64_t *log_offsets,
                       const int32_t *sizes, int32_t count, int32_t is_level, int32_t *out);
/* Return the due time that properties say, or 0. */
int64_t ts_properties_due(const uint8_t *properties, int32_t size, int64_t precision_ms);
