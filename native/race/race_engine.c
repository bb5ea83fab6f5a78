/* All C functions, called concurrently as the engine's threads do, under ThreadSanitizer. Each call
 * holds the locks that native/api names for it, and no other.
 *
 *   putters          append lock: put_many, put_one, cancel, reschedule (encoded without a lock)
 *   dispatch         write lock and append lock: swap of the staging; no lock: dispatch
 *   enqueue          no lock: requests; timer lock: link
 *   dequeue-get      timer lock: next slot, load; no lock: due entries; open slot's lock: push
 *   dequeue-put      open slot's lock: pop; no lock: plan; append lock: place
 *   flush            append lock: copy of the dirty states; timer lock: of the dirty pages
 *   readers          no lock: pull, states, keys, ids, queries
 *
 * Values that Python passes between threads under the GIL (the written end of the log, units, the
 * time) are passed under a lock here. At the end every message was delivered or cancelled exactly
 * once. With the argument `unlocked` one lock is omitted, and the sanitizer must report it.
 */
#include "race_store.h"

static void read_queue(uint64_t *seed)
{
    ts_pulled out[16];
    uint8_t units[16 * 20], bodies[4096], properties[8192];
    int32_t index = check_below(seed, REAL), got;
    int64_t count, at = 0;
    ts_view view = log_view();

    lock(&s->given);
    count = s->counts[index];
    if (count > 16)
        at = check_below(seed, (int32_t)count - 15);
    count = count - at < 16 ? count - at : 16;
    memcpy(units, s->queues[index] + 20 * at, (size_t)count * 20);
    unlock(&s->given);
    got = ts_pull(&view, &s->routes[index], units, NULL, (int32_t)count, at, view.end, PRECISION,
                  out, bodies, sizeof bodies, properties, sizeof properties);
    CHECK(got >= 0);
    for (int32_t i = 0; i < got; i++)
        CHECK(out[i].queue_offset == at + i);
}

static void *reader(void *argument)
{
    uint64_t seed = (uint64_t)(uintptr_t)argument;
    int64_t ids_at = 0, next = 0;

    while (!is_over()) {
        ts_view view = log_view();
        ts_query query = {.topic = (const uint8_t *)TS_TIMER_TOPIC, .topic_size = 19,
                          .begin_ms = INT64_MIN, .end_ms = INT64_MAX, .states = &s->states,
                          .store_id = STORE_ID};
        int64_t offset = get(&s->source_at[check_below(&seed, 500)]) - 1;
        int32_t matched, state = ts_state_get(&s->states, check_below(&seed, 5000));
        ts_found found;
        ts_id ids[8];

        CHECK(state >= TS_NONE && state <= TS_CANCELLED);
        read_queue(&seed);
        if (offset >= 0 && offset < view.end)
            CHECK(ts_index_check(&view, &query, &offset, 1, &found, &matched) == 1);
        CHECK(ts_ids_scan(&view, STORE_ID, ids_at, &next, 8, ids) >= 0);
        ids_at = next;
        sched_yield();
    }
    return NULL;
}

static void drain(void)
{
    for (int32_t round = 0; round < 5000; round++) {
        int worked = dispatch_step() + enqueue_step() + load_step() + deliver_step();

        if (s->states.pending == 0 && !worked)
            return;
        if (!worked)
            s->now_ms += PRECISION;
    }
}

static void check_end(void)
{
    int32_t *handed = zeros(IDS_MAX * (int64_t)sizeof *handed);
    ts_view view = log_view();
    int64_t waited = s->routes[TIMER].next_offset;

    CHECK(s->states.pending == 0 && s->heap.count == 0);
    for (int64_t at = 0; at < view.end;) {
        ts_record record;
        ts_marks marks;

        if (ts_view_record(&view, at, &record) != TS_OK) { /* the blank */
            at = (at / SEGMENT + 1) * SEGMENT;
            continue;
        }
        ts_marks_get(record.properties, record.properties_size, &marks);
        if (record.topic_size == 6 && marks.timer_id >= 0)
            handed[marks.timer_id]++;
        at += record.size;
    }
    for (int64_t id = 0; id < waited; id++) {
        int32_t state = ts_state_get(&s->states, id);

        CHECK(handed[id] == (state == TS_DELIVERED));
        CHECK((s->source_at[id] > 0) == (state != TS_NONE));
    }
    printf("race_engine: ok, %lld timer records, %lld queue units\n", (long long)waited,
           (long long)(s->counts[0] + s->counts[1]));
    free(handed);
}

int main(int count, char **arguments)
{
    pthread_t putters[PUTTERS], services[SERVICES], readers[READERS];

    make_store();
    s->leave_out = count > 1 && strcmp(arguments[1], "unlocked") == 0;
    for (uintptr_t i = 0; i < SERVICES; i++)
        CHECK(pthread_create(&services[i], NULL, service, (void *)i) == 0);
    for (uintptr_t i = 0; i < READERS; i++)
        CHECK(pthread_create(&readers[i], NULL, reader, (void *)(i + 77)) == 0);
    for (uintptr_t i = 0; i < PUTTERS; i++)
        CHECK(pthread_create(&putters[i], NULL, putter, (void *)(i + 1)) == 0);
    for (int32_t i = 0; i < PUTTERS; i++)
        CHECK(pthread_join(putters[i], NULL) == 0);
    lock(&s->given);
    s->stopping = 1;
    unlock(&s->given);
    for (int32_t i = 0; i < SERVICES; i++)
        CHECK(pthread_join(services[i], NULL) == 0);
    for (int32_t i = 0; i < READERS; i++)
        CHECK(pthread_join(readers[i], NULL) == 0);
    drain();
    check_end();
    return 0;
}
