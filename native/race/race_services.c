/* The threads of the services: dispatch, enqueue, load, deliver, flush. */
#include "race_store.h"

static int64_t dispatched; /* used by dispatch only */

int dispatch_step(void)
{
    uint8_t units[CAPACITY * 20];
    int32_t indexes[CAPACITY], got;
    int64_t offsets[CAPACITY], next = 0;
    ts_key found[256];
    ts_keys keys = {found, 256, 0, 0, 1};
    ts_view view;

    write_out(0);
    view = log_view();
    got = ts_dispatch(&view, &s->known, NULL, 0, dispatched, &next, CAPACITY, units, indexes,
                      offsets, &keys, NULL, NULL);
    CHECK(got >= 0);
    lock(&s->given);
    for (int32_t i = 0; i < got; i++) {
        CHECK(offsets[i] == s->counts[indexes[i]] && offsets[i] < UNITS_MAX);
        memcpy(s->queues[indexes[i]] + 20 * s->counts[indexes[i]]++, units + 20 * i, 20);
    }
    unlock(&s->given);
    dispatched = next;
    return got > 0;
}

static void write_units(const uint8_t *units, const ts_link *link)
{
    memcpy(s->timer_segments[s->timer_end / TIMER_SEGMENT] + s->timer_end % TIMER_SEGMENT, units,
           (size_t)link->bytes);
    s->timer_end = link->pos;
    CHECK(s->timer_end / TIMER_SEGMENT < TIMER_SEGMENTS - 1);
}

static int64_t lowest_needed(void)
{
    int64_t lowest = s->read_slot;

    lock(&s->given);
    for (int32_t i = 0; i < SLOTS; i++) {
        int64_t slot = s->read_slot - SLOTS + 1 + i;
        if (slot > 0 && s->outstanding[slot % SLOTS] > 0 && slot < lowest)
            lowest = slot;
    }
    unlock(&s->given);
    return lowest;
}

static void expect(int64_t slot, int64_t count)
{
    lock(&s->given);
    s->outstanding[slot % SLOTS] += count;
    unlock(&s->given);
}

int enqueue_step(void)
{
    uint8_t copied[CAPACITY * 20], units[(CAPACITY + 1) * TS_TIMER_UNIT_BYTES];
    ts_request requests[CAPACITY];
    ts_due late[CAPACITY];
    int64_t from = get(&s->requested), count = get(&s->counts[TIMER]) - from;
    ts_view view = log_view();
    ts_link link;
    int32_t got;

    count = count < CAPACITY ? count : CAPACITY;
    lock(&s->given);
    memcpy(copied, s->queues[TIMER] + 20 * from, (size_t)count * 20);
    unlock(&s->given);
    if (count == 0)
        return 0;
    CHECK(ts_timer_requests(&view, copied, (int32_t)count, from, &s->states, STORE_ID, PRECISION,
                            requests) ==
          count);
    lock(&s->timer);
    link = (ts_link){.pos = s->timer_end, .segment_bytes = TIMER_SEGMENT,
                     .write_slot = get(&s->now_ms) / PRECISION, .read_slot = s->read_slot,
                     .reuse_below = lowest_needed(), .roll_slots = ROLL_SLOTS};
    got = ts_timer_link(&s->wheel, &link, &s->states, requests, (int32_t)count, units, sizeof units,
                        late);
    if (got >= 0)
        write_units(units, &link);
    unlock(&s->timer);
    if (got == TS_BLOCKED)
        return 0;
    CHECK(got >= 0);
    for (int32_t i = 0; i < link.late_count; i++)
        expect(late[i].slot, 1);
    lock(&s->open);
    CHECK(s->heap.count + link.late_count < IDS_MAX);
    ts_heap_push(&s->heap, late, link.late_count);
    unlock(&s->open);
    set(&s->requested, from + got);
    return 1;
}

int load_step(void)
{
    ts_chained *chained = zeros(IDS_MAX * (int64_t)sizeof *chained);
    ts_due *due = zeros(IDS_MAX * (int64_t)sizeof *due);
    int64_t slots[8], positions[8], now_slot = get(&s->now_ms) / PRECISION, read_slot;
    int32_t count = 0, got, n = 0, done = 0, kept = 0;
    ts_view view, timer_view = {.segments = (const uint8_t **)s->timer_segments,
                                .segment_count = TIMER_SEGMENTS, .segment_bytes = TIMER_SEGMENT};

    lock(&s->timer);
    while (s->read_slot <= now_slot && count < 8) {
        int64_t slot = ts_wheel_next(&s->wheel, s->read_slot, now_slot + 1);

        s->read_slot = slot < 0 ? now_slot + 1 : slot + 1;
        if (slot < 0)
            break;
        positions[count] = -2;
        slots[count++] = slot;
        expect(slot, 1); /* while it is read */
    }
    read_slot = s->read_slot;
    timer_view.end = s->timer_end;
    do {
        got = ts_wheel_load_many(&timer_view, &s->wheel, slots, positions, count, CAPACITY,
                                 chained + n);
        CHECK(got >= 0);
        n += got;
    } while (got > 0);
    unlock(&s->timer);
    view = log_view();
    while (done < n) {
        got = ts_due_load(&view, &s->states, STORE_ID, PRECISION, read_slot, chained + done,
                          n - done, due + kept);
        CHECK(got > 0);
        done += got;
        kept += (int32_t)view.need;
    }
    for (int32_t i = 0; i < kept; i++)
        expect(due[i].slot, 1);
    for (int32_t i = 0; i < count; i++)
        expect(slots[i], -1);
    lock(&s->open);
    CHECK(s->heap.count + kept < IDS_MAX);
    ts_heap_push(&s->heap, due, kept);
    s->open_read_slot = read_slot;
    unlock(&s->open);
    free(chained);
    free(due);
    return count > 0;
}

int deliver_step(void)
{
    ts_due due[CAPACITY];
    ts_draft drafts[CAPACITY];
    uint8_t scratch[1 << 16];
    int64_t slots[CAPACITY], counts[CAPACITY], late_ms[CAPACITY];
    ts_tally tally = {.rolled_due_ms = INT64_MAX, .slots = slots, .counts = counts};
    ts_delivery delivery = {.scratch = scratch, .scratch_bytes = sizeof scratch, .drafts = drafts,
                            .draft_count = CAPACITY / 4, .late_ms = late_ms};
    ts_open open = {.run_count = 0};
    int64_t now = get(&s->now_ms), until, read_slot, count;
    ts_view view;

    lock(&s->open);
    open.heap = s->heap;
    read_slot = s->open_read_slot;
    until = now < read_slot * PRECISION ? now : read_slot * PRECISION;
    count = ts_open_pop(&open, until, read_slot, PRECISION, due, CAPACITY);
    s->heap = open.heap;
    unlock(&s->open);
    for (int64_t i = 0; i < count; i++) {
        if (due[i].log_offset + due[i].size > get(&s->written))
            write_out(0);
    }
    view = log_view();
    for (int64_t from = 0, got; from < count; from += got > 0 ? got : 0) {
        got = ts_deliver_many(&view, &s->known, &s->log, &s->routes[TIMER], read_slot, due + from,
                              (int32_t)(count - from), now, &delivery, &tally);
        if (got <= 0) {
            CHECK(delivery.is_placing && got == TS_NEED_SPACE);
            make_space();
        }
    }
    CHECK(tally.unroutable == 0 && delivery.late_count == tally.delivered);
    for (int64_t i = 0; i < tally.runs; i++)
        expect(slots[i], -counts[i]);
    return count > 0;
}

static int flush_step(void)
{
    int64_t chunks[TS_BLOCK_CHUNKS], pages[4];
    uint8_t *payloads = zeros(TS_BLOCK_BYTES), *copied = zeros(4 * 4096);

    if (!s->leave_out)
        lock(&s->append);
    (void)ts_states_copy_dirty(&s->states, chunks, payloads, TS_BLOCK_CHUNKS);
    if (!s->leave_out)
        unlock(&s->append);
    lock(&s->timer);
    (void)ts_wheel_copy_dirty(&s->wheel, pages, copied, 4);
    unlock(&s->timer);
    free(payloads);
    free(copied);
    sched_yield();
    return 0;
}

static int (*const steps[SERVICES])(void) = {dispatch_step, enqueue_step, load_step, deliver_step,
                                     flush_step};

void *service(void *argument)
{
    int (*step)(void) = steps[(uintptr_t)argument];

    while (!is_over()) {
        if (!step())
            sched_yield();
    }
    return NULL;
}
