/* Dispatch and the readers of its units: units that dispatch makes of a log, and units with any
 * bytes.
 *
 * Input: numbers, changes of units, two bytes of log.h, the log.
 */
#include "log.h"

#include "format/queue_unit.h"

enum { UNITS = 32, EDITS = 8 };

static int32_t dispatch(fuzz_log *log, uint8_t *units, int32_t with_keys)
{
    static const int64_t delays[] = {1000, 5000, INT64_MAX};
    int64_t at = 0, next = 0, offsets[UNITS];
    int32_t count = 0, indexes[UNITS];
    ts_key found[64];

    while (count < UNITS) {
        ts_keys keys = {found, 64, 0, 0, 1};
        int32_t got = ts_dispatch(&log->view, &log->known, delays, with_keys ? 3 : 0, at, &next,
                                  UNITS - count, units + count * TS_QUEUE_UNIT_BYTES, indexes,
                                  offsets, with_keys ? &keys : NULL, NULL, NULL);

        if (got == TS_NEED_ROUTE && fuzz_route_needed(log))
            continue;
        if (got < 0 || next == at)
            break;
        for (int32_t i = 0; i < got; i++) {
            CHECK(ts_queue_unit_is_valid(units + (count + i) * TS_QUEUE_UNIT_BYTES));
            CHECK(indexes[i] >= 0 && indexes[i] < log->route_count);
        }
        count += got;
        at = next;
    }
    return count;
}

static void pull(fuzz_log *log, const ts_route *route, const uint8_t *units, int32_t count,
                 int64_t queue_offset)
{
    ts_pulled out[UNITS];
    int64_t bytes = 600;
    uint8_t *bodies = malloc((size_t)bytes), *properties = malloc((size_t)bytes);
    int32_t got = ts_pull(&log->view, route, units, NULL, count, queue_offset, log->view.end, 1000,
                          out, bodies, bytes, properties, bytes);

    CHECK(got <= count);
    for (int32_t i = 0; i < got; i++) {
        CHECK(out[i].body_at + out[i].body_size <= bytes);
        CHECK(out[i].properties_at + out[i].properties_size <= bytes);
    }
    if (got > 0) {
        uint8_t keep[UNITS];

        for (int32_t i = 0; i < got; i++)
            keep[i] = i % 3 != 0;
        CHECK(ts_pulled_keep(out, got, keep, bodies, properties) == got - (got + 2) / 3);
    }
    free(bodies);
    free(properties);
}

/* A repaired unit does not change again. */
static void compare_with_log(fuzz_log *log, const ts_route *route, const uint8_t *units,
                             int32_t count, int64_t queue_offset)
{
    static const int64_t delays[2] = {1000, 7000};
    const size_t bytes = (size_t)count * TS_QUEUE_UNIT_BYTES;
    uint8_t *repaired = check_copy(units, bytes), *again;
    int64_t store_ms[UNITS];

    CHECK(ts_units_store_ms(&log->view, route, units, count, queue_offset, store_ms) <= count);
    CHECK(ts_old_units_check(&log->view, route, units, count, queue_offset) <= count);
    CHECK(ts_old_units_repair(&log->view, route, repaired, count, queue_offset, delays,
                              2) <= count);
    again = check_copy(repaired, bytes);
    CHECK(ts_old_units_repair(&log->view, route, again, count, queue_offset, delays, 2) <= count);
    CHECK(bytes == 0 || memcmp(repaired, again, bytes) == 0);
    free(repaired);
    free(again);
}

static void read_units(fuzz_log *log, const uint8_t *units, int32_t count, int64_t queue_offset)
{
    int32_t hashes[2] = {-7, 98619139}, positions[UNITS], tagged;
    int64_t text_offsets[3] = {0, 1, 6};
    const ts_tags tags = {hashes, (const uint8_t *)"xgreen", text_offsets, 2};
    ts_request requests[UNITS];

    (void)ts_timer_requests(&log->view, units, count, queue_offset, &log->states,
                            FUZZ_STORE_ID, 1000, requests);
    CHECK(ts_units_bytes(units, NULL, count) >= 0);
    CHECK(ts_units_below(units, count, log->view.end) <= count);
    tagged = ts_units_tagged(units, count, &tags, positions);
    CHECK(tagged >= 0 && tagged <= count);
    for (int32_t i = 0; i < log->route_count; i++) {
        pull(log, &log->routes[i], units, count, queue_offset);
        compare_with_log(log, &log->routes[i], units, count, queue_offset / 2); /* none is longer */
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in = {data, size};
    int32_t with_keys = fuzz_below(&in, 2), edits = fuzz_below(&in, EDITS), count;
    int64_t queue_offset = fuzz_number(&in);
    uint8_t places[EDITS][2], *units;
    uint8_t made[UNITS * TS_QUEUE_UNIT_BYTES];
    fuzz_log log;

    for (int32_t i = 0; i < edits; i++) {
        places[i][0] = fuzz_byte(&in);
        places[i][1] = fuzz_byte(&in);
    }
    fuzz_log_make(&log, &in);
    count = dispatch(&log, made, with_keys);
    units = check_copy(made, (size_t)count * TS_QUEUE_UNIT_BYTES);
    read_units(&log, units, count, queue_offset);
    for (int32_t i = 0; i < edits && count > 0; i++)
        units[places[i][0] % (count * TS_QUEUE_UNIT_BYTES)] = places[i][1];
    read_units(&log, units, count, 0);
    free(units);
    fuzz_log_free(&log);
    return 0;
}
