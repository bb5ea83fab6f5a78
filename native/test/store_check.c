/* Checks of a store: deliveries, the results of a scan, and the remaining messages. */
#include "store.h"

#include "format/queue_unit.h"
#include "format/text.h"
#include "format/wheel_slot.h"
#include "log/parse.h"
#include "log/view.h"
#include "timer/unit_checksum.h"

/* Check the two times at the end of a delivered copy, and that no property before them is damaged.
 */
static void check_times(const store *s, const ts_pulled *got, const uint8_t *properties)
{
    ts_text name, value;
    int32_t at = 0, seen = 0;
    int64_t n;

    while (ts_pair_next(properties, got->properties_size, &at, &name, &value)) {
        CHECK(properties[at - 1] == 2 && value.size > 0 && name.size > 0);
        if (!TS_IS(&name, "TIMER_ENQUEUE_MS") && !TS_IS(&name, "TIMER_DEQUEUE_MS"))
            continue;
        CHECK(ts_decimal_get_i64(value.at, value.size, &n) == 0 && n <= got->store_ms);
        CHECK(n >= s->is.start_ms - s->is.precision_ms);
        CHECK(TS_IS(&name, "TIMER_ENQUEUE_MS") || n == got->store_ms);
        seen++;
    }
    CHECK(seen == 2 && TS_IS(&name, "__CRC32#") == s->is.property_crc);
}

static void check_pulled(const store *s, int32_t index, const ts_pulled *got, const uint8_t *body,
                         const uint8_t *properties, int32_t *handed)
{
    int64_t due_ms = ts_get_i64(body);
    ts_marks marks;

    CHECK(got->body_size >= 12 && ts_get_i32(body + 8) == index);
    CHECK(got->store_ms >= due_ms && got->delivered_ms == got->store_ms); /* never early */
    CHECK(got->store_host_size == 8 && memcmp(got->store_host, s->log.host, 8) == 0);
    ts_marks_get(properties, got->properties_size, &marks);
    CHECK(marks.unique_key.at == NULL ? s->heads[index] > 0 : marks.unique_key.size == 32);
    if (marks.out_ms < 0) { /* it was due when it was put */
        CHECK(marks.timer_id < 0 && got->due_ms == got->store_ms);
        return;
    }
    CHECK(got->due_ms == due_ms && marks.timer_id >= 0 && marks.store_id == STORE_ID);
    CHECK(s->due_ms[marks.timer_id] == due_ms && s->real[marks.timer_id] == index);
    check_times(s, got, properties);
    handed[marks.timer_id]++;
}

static void pull_all(store *s, int32_t *handed)
{
    for (int32_t index = 0; index < REAL; index++) {
        ts_pulled pulled[5];
        int64_t bodies_bytes = 200, properties_bytes = 900, record_bytes = 0;
        uint8_t *bodies = bytes_of(bodies_bytes), *properties = bytes_of(properties_bytes);

        CHECK(ts_units_below(s->queues[index], s->counts[index], log_end(s)) == s->counts[index]);
        CHECK(ts_units_below(s->queues[index], s->counts[index], 0) == 0);
        for (int32_t at = 0, got; at < s->counts[index]; at += got) {
            int32_t count = s->counts[index] - at < 5 ? s->counts[index] - at : 5;

            got = ts_pull(&s->view, &s->routes[index], s->queues[index] + 20 * at, NULL, count, at,
                          log_end(s), s->is.precision_ms, pulled, bodies, bodies_bytes, properties,
                          properties_bytes);
            CHECK(got > 0);
            for (int32_t i = 0; i < got; i++)
                check_pulled(s, index, &pulled[i], bodies + pulled[i].body_at,
                             properties + pulled[i].properties_at, handed);
            for (int32_t i = 0; i < got; i++)
                record_bytes += pulled[i].size;
        }
        CHECK(ts_units_bytes(s->queues[index], NULL, s->counts[index]) == record_bytes);
        CHECK(ts_pull(&s->view, &s->routes[index], s->queues[index], NULL, 1, 0, 10, 1, pulled,
                      bodies, bodies_bytes, properties, properties_bytes) == 0); /* not durable */
        CHECK(ts_pull(&s->view, &s->routes[index], s->queues[index], NULL, 1, 0, log_end(s), 1,
                      pulled, bodies, 11, properties, properties_bytes) == TS_NEED_SPACE);
        CHECK(ts_pull(&s->view, &s->routes[index], s->queues[index], NULL, 1, 1, log_end(s), 1,
                      pulled, bodies, bodies_bytes, properties, properties_bytes) == TS_CORRUPT);
        CHECK(s->view.fault == TS_FAULT_TOPIC);
        free(bodies);
        free(properties);
    }
}

/* Check that a recovery's fold of the whole log gives the same states and counts. */
void check_scan(store *s)
{
    ts_route empty[ROUTES] = {0}, *folded[ROUTES];
    uint8_t *block = bytes_of(BLOCK_BYTES);
    ts_states states = {&block, 0, 0};
    ts_scanned out[9];
    int64_t at = 0, next, need = -1;
    int32_t got, kinds[7] = {0}, first = 1;

    for (int32_t i = 0; i < ROUTES; i++)
        folded[i] = &empty[i];
    s->view.end = log_end(s);
    do {
        got = ts_scan(&s->view, &s->known, s->is.precision_ms, at, &next, 9, out);
        CHECK(got >= 0);
        for (int32_t from = 0; from < got;) {
            from += ts_states_fold(&states, folded, out + from, got - from, STORE_ID, &need);
            if (from < got) {
                CHECK(first && need >= 0 && states.end == 0);
                states.end = TS_BLOCK_IDS;
                first = 0;
            }
        }
        for (int32_t i = 0; i < got; i++) {
            CHECK(out[i].log_offset >= at && out[i].log_offset < next);
            kinds[out[i].kind]++;
        }
        CHECK(s->view.group_end <= next || s->view.group_start < next);
        at = next;
    } while (got > 0);
    CHECK(s->view.fault == TS_FAULT_END && at == s->view.end);
    CHECK(s->view.group_end <= at); /* no group is open at the log's end */
    CHECK(kinds[TS_KIND_UNUSABLE] == 0 &&
          kinds[TS_KIND_DELETE] == s->log.cancel_count + s->log.reschedule_count);
    CHECK(kinds[TS_KIND_DELETE] + kinds[TS_KIND_TIMER] == s->routes[TIMER].next_offset);
    CHECK(states.pending == s->states.pending);
    CHECK(memcmp(block, s->blocks[0], TS_BLOCK_BYTES) == 0);
    for (int32_t i = 0; i < REAL; i++)
        CHECK(empty[i].pending == s->routes[i].pending);
    free(block);
}

void check_end(store *s)
{
    int32_t *handed = bytes_of(IDS_MAX * (int64_t)sizeof *handed);
    int64_t ids[4], next = 0;

    dispatch(s);
    pull_all(s, handed);
    for (int64_t id = 0; id < IDS_MAX; id++) {
        int32_t state = ts_state_get(&s->states, id);

        CHECK(handed[id] == (s->due_ms[id] != 0 && !s->cancelled[id])); /* exactly once */
        CHECK(state == (s->due_ms[id] == 0    ? TS_NONE
                        : s->cancelled[id] ? TS_CANCELLED
                                           : TS_DELIVERED));
    }
    CHECK(s->states.pending == 0 && s->open.heap.count == 0);
    CHECK(ts_states_pending(&s->states, 0, ids, 4, &next) == 0 && next == s->states.end);
    for (int32_t i = 0; i < ROUTES; i++)
        CHECK(s->routes[i].pending == 0 && s->routes[i].next_offset == s->counts[i]);
    check_scan(s);
    free(handed);
}
