/* The timer services of a store: dispatch, enqueue, dequeue, deliver. */
#include "store.h"

#include "base/hash.h"
#include "format/queue_unit.h"
#include "format/timer_unit.h"
#include "log/parse.h"
#include "log/view.h"

void dispatch(store *s)
{
    uint8_t *units = bytes_of(7 * 20);
    int32_t indexes[7];
    int64_t offsets[7];

    s->view.end = log_end(s);
    while (s->dispatched < s->view.end) {
        int64_t next, from = s->dispatched;
        int32_t got = ts_dispatch(&s->view, &s->known, NULL, 0, from, &next, 7, units, indexes,
                                  offsets, NULL, NULL, NULL);

        if (got == TS_NEED_ROUTE) {
            ts_record record;

            CHECK(ts_view_record(&s->view, s->view.need, &record) == TS_OK && next == from);
            for (int32_t i = 0; i < ROUTES; i++) {
                if (record.topic_size == s->routes[i].topic_size &&
                    record.queue_id == s->routes[i].queue_id)
                    know_route(s, i);
            }
            continue;
        }
        CHECK(got >= 0 && next > from);
        for (int32_t i = 0; i < got; i++) {
            int32_t index = indexes[i], size;
            int64_t at, tags;

            CHECK(offsets[i] == s->counts[index] && s->counts[index] < UNITS_MAX);
            ts_queue_unit_get(units + i * 20, &at, &size, &tags);
            CHECK(at >= from && at + size <= next);
            memcpy(s->queues[index] + 20 * s->counts[index]++, units + i * 20, 20);
        }
        s->dispatched = next;
    }
    free(units);
}

static void write_timer_log(store *s, const uint8_t *units, int64_t bytes, int64_t end, int32_t cut)
{
    int64_t number = s->timer_end / s->is.timer_segment_bytes;
    int64_t at = s->timer_end % s->is.timer_segment_bytes;
    int32_t blank = 0;

    CHECK(number < TIMER_SEGMENTS && at + bytes <= s->is.timer_segment_bytes);
    if (s->timer_segments[number] == NULL)
        s->timer_segments[number] = bytes_of(s->is.timer_segment_bytes);
    memcpy(s->timer_segments[number] + at, units, (size_t)bytes);
    if (cut) {
        CHECK(end % s->is.timer_segment_bytes == 0 && bytes >= 16);
        CHECK(ts_timer_blank_is(units + bytes - 16, 16, &blank));
        CHECK(at + bytes - 16 + blank == s->is.timer_segment_bytes);
    } else {
        CHECK(end == s->timer_end + bytes);
    }
    s->timer_end = s->timer_view.end = end;
    s->cuts += cut;
}

static int64_t lowest_open(const store *s)
{
    int64_t lowest = s->read_slot;

    for (int64_t i = 0; i < s->open.heap.count; i++) {
        int64_t slot = s->open.heap.entries[s->open.heap.keys[i].at].slot;
        lowest = slot < lowest ? slot : lowest;
    }
    return lowest;
}

/* Link the requests of dispatched messages to the wheel, as far as slots are free. */
void enqueue(store *s, int32_t batch)
{
    int64_t want = s->counts[TIMER] - s->requested;
    int32_t count = (int32_t)(want < batch ? want : batch), done = 0;
    ts_request *requests = bytes_of(batch * (int64_t)sizeof *requests);
    int64_t units_bytes = (batch + 1) * TS_TIMER_UNIT_BYTES;
    uint8_t *units = bytes_of(units_bytes);
    ts_due *late = bytes_of(batch * (int64_t)sizeof *late);

    CHECK(ts_timer_requests(&s->view, s->queues[TIMER] + 20 * s->requested, count, s->requested,
                            &s->states, STORE_ID, s->is.precision_ms, requests) == count);
    for (int32_t i = 0; i < count; i++) {
        if (requests[i].flags & TS_FLAG_DELETE)
            continue;
        CHECK(requests[i].flags == 0 && requests[i].due_ms == s->due_ms[requests[i].id]);
        CHECK(requests[i].queue_offset == s->requested + i);
        CHECK((requests[i].id == requests[i].queue_offset) == (requests[i].roll_times == 0));
        CHECK(requests[i].topic_hash == s->routes[s->real[requests[i].id]].topic_hash);
    }
    while (done < count) {
        ts_link link = {.pos = s->timer_end, .segment_bytes = s->is.timer_segment_bytes,
                        .write_slot = s->now_ms / s->is.precision_ms, .read_slot = s->read_slot,
                        .reuse_below = lowest_open(s), .roll_slots = ROLL_SLOTS};
        int32_t got = ts_timer_link(&s->wheel, &link, &s->states, requests + done, count - done,
                                    units, units_bytes, late);

        if (got == TS_BLOCKED)
            break;
        CHECK(got >= 0 && link.bytes > 0 && link.late_count <= got);
        CHECK(link.bytes == got * TS_TIMER_UNIT_BYTES + (link.cut ? TS_TIMER_BLANK_BYTES : 0));
        write_timer_log(s, units, link.bytes, link.pos, link.cut);
        ts_heap_push(&s->open.heap, late, link.late_count);
        s->late += link.late_count;
        done += got;
    }
    s->requested += done;
    free(requests);
    free(units);
    free(late);
}

static int by_offset(const void *a, const void *b)
{
    int64_t x = ((const ts_chained *)a)->log_offset, y = ((const ts_chained *)b)->log_offset;

    return (x > y) - (x < y);
}

/* Load the units of slots, several slots at a time and in small calls; then again one slot at a
 * time. */
static int32_t load_slots(store *s, const int64_t *slots, int32_t slot_count, int32_t capacity,
                          ts_chained *out)
{
    ts_chained *single = bytes_of(IDS_MAX * (int64_t)sizeof *single);
    int64_t positions[8], pos;
    int32_t n = 0, m = 0, got;

    for (int32_t i = 0; i < slot_count; i++)
        positions[i] = -2;
    do {
        got = ts_wheel_load_many(&s->timer_view, &s->wheel, slots, positions, slot_count, capacity,
                                 out + n);
        CHECK(got >= 0 && got <= capacity);
        n += got;
    } while (got > 0);
    for (int32_t i = 0; i < slot_count; i++) {
        CHECK(positions[i] == -1);
        pos = -1;
        do {
            got = ts_wheel_load(&s->timer_view, &s->wheel, slots[i], &pos, capacity, single + m);
            CHECK(got >= 0 && got <= capacity);
            m += got;
        } while (pos >= 0);
    }
    CHECK(n == m && n <= IDS_MAX);
    qsort(single, (size_t)m, sizeof *single, by_offset);
    ts_chained *sorted = bytes_of((n + 1) * (int64_t)sizeof *sorted);
    memcpy(sorted, out, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, by_offset);
    for (int32_t i = 0; i < n; i++) {
        CHECK(sorted[i].log_offset == single[i].log_offset && sorted[i].slot == single[i].slot);
        CHECK(sorted[i].size == single[i].size && sorted[i].magic == single[i].magic);
        CHECK(sorted[i].write_ms == single[i].write_ms);
    }
    free(sorted);
    free(single);
    return n;
}

/* Move the due slots to the open slot. */
void dequeue(store *s, int32_t capacity)
{
    int64_t now_slot = s->now_ms / s->is.precision_ms, slots[8];
    ts_chained *chained = bytes_of((IDS_MAX + 1) * (int64_t)sizeof *chained);
    ts_due *due = bytes_of((IDS_MAX + 1) * (int64_t)sizeof *due);
    int32_t slot_count = 0, count;

    while (s->read_slot <= now_slot && slot_count < 8) {
        int64_t slot = ts_wheel_next(&s->wheel, s->read_slot, now_slot + 1);

        s->read_slot = slot < 0 ? now_slot + 1 : slot + 1;
        if (slot >= 0)
            slots[slot_count++] = slot;
    }
    count = load_slots(s, slots, slot_count, capacity, chained);
    CHECK(ts_due_load(&s->view, &s->states, STORE_ID, s->is.precision_ms, s->read_slot, chained,
                      count, due) == count);
    CHECK(s->view.need >= 0 && s->view.need <= count);
    for (int32_t i = 0; i < (int32_t)s->view.need; i++) {
        CHECK(due[i].due_ms == s->due_ms[due[i].id] && due[i].wake_ms <= due[i].due_ms);
        CHECK(ts_state_get(&s->states, due[i].id) == TS_PENDING);
    }
    load_open(s, due, (int32_t)s->view.need);
    free(chained);
    free(due);
}

/* Check the counts of a delivery in which every entry was placed. */
static void check_tally(store *s, const ts_tally *tally, const ts_delivery *delivery, int64_t count)
{
    int64_t done = 0;

    for (int64_t i = 0; i < tally->runs; i++) {
        CHECK(tally->counts[i] > 0 && (i == 0 || tally->slots[i] != tally->slots[i - 1]));
        done += tally->counts[i];
    }
    CHECK(done == count - tally->unroutable);
    CHECK(tally->delivered + tally->rolled + tally->skipped + tally->unroutable == count);
    CHECK(delivery->late_count == tally->delivered && delivery->placed == delivery->planned);
    for (int64_t i = 0; i < delivery->late_count; i++)
        CHECK(delivery->late_ms[i] >= 0);
    s->rolled += tally->rolled;
}

static void know_routes(store *s)
{
    for (int32_t i = 0; i < REAL; i++) {
        if (ts_route_find(&s->known, s->routes[i].topic, s->routes[i].topic_size,
                          s->routes[i].queue_id) == NULL)
            know_route(s, i);
    }
}

/* Deliver the due messages. */
void deliver(store *s, int32_t capacity)
{
    ts_due *due = bytes_of(capacity * (int64_t)sizeof *due);
    ts_draft *drafts = bytes_of(capacity * (int64_t)sizeof *drafts);
    int64_t *late_ms = bytes_of(capacity * (int64_t)sizeof *late_ms);
    int64_t slots[IDS_MAX + 1], counts[IDS_MAX + 1], count, scratch_bytes = 900;
    uint8_t *scratch = bytes_of(scratch_bytes);

    while ((count = ts_open_pop(&s->open, s->now_ms, s->read_slot, s->is.precision_ms, due,
                                capacity)) > 0) {
        CHECK(count <= capacity);
        for (int64_t i = 1; i < count; i++)
            CHECK(due[i - 1].wake_ms < due[i].wake_ms ||
                  (due[i - 1].wake_ms == due[i].wake_ms && due[i - 1].id < due[i].id));
        s->view.end = log_end(s);
        ts_tally tally = {.rolled_due_ms = INT64_MAX, .slots = slots, .counts = counts};
        ts_delivery delivery = {.scratch = scratch, .scratch_bytes = scratch_bytes,
                                .drafts = drafts, .draft_count = (capacity + 2) / 3,
                                .late_ms = late_ms};

        for (int32_t from = 0, got; from < count; from += got > 0 ? got : 0) {
            got = ts_deliver_many(&s->view, &s->known, &s->log, &s->routes[TIMER], s->read_slot,
                                  due + from, (int32_t)count - from, s->now_ms, &delivery, &tally);
            if (got > 0)
                continue;
            if (delivery.is_placing) {
                CHECK(delivery.need == s->log.need);
                serve_log(s, got);
            } else if (got == TS_NEED_ROUTE) {
                know_routes(s);
            } else {
                CHECK(got == TS_NEED_SPACE && s->view.need > scratch_bytes);
                scratch_bytes = s->view.need;
                free(scratch);
                delivery.scratch = scratch = bytes_of(scratch_bytes);
                delivery.scratch_bytes = scratch_bytes;
            }
        }
        check_tally(s, &tally, &delivery, count);
    }
    free(late_ms);
    free(due);
    free(drafts);
    free(scratch);
}

void step(store *s, uint64_t *seed)
{
    dispatch(s);
    if (check_below(seed, 4) == 0) /* read slots before everything that was put is linked */
        dequeue(s, 9);
    enqueue(s, 1 + check_below(seed, BATCH));
    if (check_below(seed, 3))
        enqueue(s, 200);
    dequeue(s, 1 + check_below(seed, 40));
    deliver(s, 1 + check_below(seed, 20));
}
