/* The calendar: filling it with the pending messages, reading it, and moving it to a larger table.
 */
#include "timer/calendar.h"

#include "base/hash.h"
#include "log/parse.h"
#include "log/view.h"

enum { PREFETCH = 10, AHEAD = 8 };

int32_t ts_calendar_fits(const ts_log *log, int64_t messages)
{
    return ts_calendar_has_space(log->calendar, messages);
}

void ts_calendar_count(ts_log *log, const ts_route *real, int64_t due_ms, int64_t by)
{
    if (log->calendar != NULL)
        ts_calendar_add(log->calendar, real, due_ms, by);
}

void ts_calendar_leave(ts_log *log, const ts_route *real, int64_t id, int64_t due_ms)
{
    if (log->calendar != NULL)
        ts_calendar_take(log->calendar, real, id, due_ms);
}

static int32_t real_route(ts_view *view, const ts_routes *routes, int64_t log_offset,
                          int32_t is_level, ts_tail *tail, int32_t *out)
{
    ts_record record;
    ts_marks marks;
    ts_route *real;
    int32_t status = ts_view_record(view, log_offset, &record);

    if (status != TS_OK)
        return status;
    if (is_level)
        ts_marks_get(record.properties, record.properties_size, &marks);
    else
        ts_marks_get_timer(record.properties, record.properties_size, tail, &marks);
    *out = -1;
    if (is_level ? !ts_level_usable(&marks) : !ts_marks_usable(&marks))
        return TS_OK;
    real = ts_route_find(routes, marks.real_topic.at, marks.real_topic.size, marks.real_queue);
    if (real == NULL) {
        view->need = log_offset;
        return TS_NEED_ROUTE;
    }
    *out = real->index;
    return TS_OK;
}

int32_t ts_real_routes(ts_view *view, const ts_routes *routes, const int64_t *log_offsets,
                       const int32_t *sizes, int32_t count, int32_t is_level, int32_t *out)
{
    ts_tail tail = {.real_size = 0};
    int32_t i, status = TS_OK;

    for (i = 0; i < count; i++) {
        if (i + PREFETCH < count)
            ts_view_prefetch(view, log_offsets[i + PREFETCH], sizes[i + PREFETCH]);
        status = real_route(view, routes, log_offsets[i], is_level, &tail, &out[i]);
        if (status != TS_OK)
            break;
    }
    return i > 0 ? i : status;
}

int32_t ts_calendar_fill(ts_calendar *calendar, ts_route **routes, const ts_due *due,
                         const int32_t *of, int32_t count)
{
    int32_t i;

    for (i = 0; i < count && ts_calendar_has_space(calendar, 1); i++) {
        if (of[i] < 0 || ts_state_get(calendar->left, due[i].id) != TS_PENDING)
            continue; /* it was counted before: a message that rolls can be in two slots for a
                       * short time */
        ts_states_put(calendar->left, due[i].id, TS_DELIVERED);
        calendar->left->pending--;
        ts_calendar_add(calendar, routes[of[i]], due[i].due_ms, 1);
    }
    return i;
}

int64_t ts_properties_due(const uint8_t *properties, int32_t size, int64_t precision_ms)
{
    ts_marks marks;

    ts_marks_get(properties, size, &marks);
    return ts_marks_due(&marks, precision_ms);
}

int64_t ts_calendar_move(ts_calendar *to, const ts_calendar *from)
{
    for (uint64_t at = 0; at <= from->mask; at++) {
        if (from->cells[at].count != 0)
            ts_calendar_cell_add(to, from->cells[at].key, from->cells[at].count);
    }
    return to->used;
}

/* The buckets that counts are added to: number / of_one - first, if that is in [0, count). */
typedef struct {
    int64_t of_one;
    int64_t first;
    int64_t count;
    int64_t *out;
} reading;

static void take_cell(const reading *to, const ts_calendar_cell *cell)
{
    int64_t number = (int64_t)(cell->key & (((uint64_t)1 << 41) - 1)) - 1;
    int64_t bucket = number / to->of_one - to->first;

    if (bucket >= 0 && bucket < to->count)
        to->out[bucket] += cell->count;
}

/* Read the group of 16 neighbours that `key` belongs to. A neighbour that did not find its own cell
 * free is in a later cell, before the first empty one. */
static void read_group(const ts_calendar *calendar, uint64_t key, const reading *to)
{
    uint64_t at = ts_calendar_place(key & ~(uint64_t)15, calendar->mask);

    for (int32_t seen = 1;; seen++) {
        const ts_calendar_cell *cell = &calendar->cells[at];

        if (cell->key >> 4 == key >> 4)
            take_cell(to, cell);
        if (cell->key == 0 && seen >= 16)
            return;
        at = (at + 1) & calendar->mask;
    }
}

static void prefetch_group(const ts_calendar *calendar, uint64_t key)
{
    const ts_calendar_cell *at = &calendar->cells[ts_calendar_place(key, calendar->mask)];

    for (int32_t line = 0; line < 5; line++)
        __builtin_prefetch(at + 4 * line);
}

/* Read cell by cell. This is faster if there are fewer cells than look-ups. */
static void read_all(const ts_calendar *calendar, uint64_t kind, const reading *to)
{
    for (uint64_t at = 0; at <= calendar->mask; at++) {
        if (calendar->cells[at].key != 0 && calendar->cells[at].key >> 41 == kind)
            take_cell(to, &calendar->cells[at]);
    }
}

void ts_calendar_read(const ts_calendar *calendar, int64_t topic, int64_t unit_s, int64_t first,
                      int64_t count, int64_t *out)
{
    int64_t is_hour = unit_s >= 3600, of_one = is_hour ? unit_s / 3600 : unit_s;
    reading to = {of_one, first, count, out};
    uint64_t key = ts_calendar_key(topic, is_hour, first * of_one);
    uint64_t end = ts_calendar_key(topic, is_hour, (first + count) * of_one);

    memset(out, 0, (size_t)count * sizeof *out);
    if (end - key > calendar->mask) {
        read_all(calendar, (uint64_t)topic << 1 | (uint64_t)is_hour, &to);
        return;
    }
    for (key &= ~(uint64_t)15; key < end; key += 16) {
        prefetch_group(calendar, key + 16 * AHEAD);
        read_group(calendar, key, &to);
    }
}
