/* Linking: requests with any times, to a wheel with any contents. Linked units are read back.
 *
 * Input: numbers, the wheel's slots, then the requests.
 */
#include "fuzz.h"

#include "format/wheel_slot.h"
#include "timer/states.h"
#include "timer/unit_checksum.h"

enum { SLOTS_MAX = 16, REQUESTS = 12, SEGMENT = 208, IDS = 64 };

static void check_units(const uint8_t *units, int64_t pos, const ts_link *link, int32_t got)
{
    ts_timer_unit unit;
    int32_t blank = 0;

    CHECK(link->bytes >= got * TS_TIMER_UNIT_BYTES && link->late_count <= got);
    for (int32_t i = 0; i < got; i++)
        CHECK(ts_checked_unit_get(units + i * TS_TIMER_UNIT_BYTES, pos + i * TS_TIMER_UNIT_BYTES,
                                  &unit) == 0);
    if (link->cut)
        CHECK(ts_timer_blank_is(units + got * TS_TIMER_UNIT_BYTES, 16, &blank));
}

static ts_request request_of(fuzz_input *in)
{
    return (ts_request){.id = fuzz_below(in, IDS), .due_ms = fuzz_number(in), .size = 100,
                        .log_offset = fuzz_byte(in) * 100, .flags = fuzz_below(in, 4)};
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in = {data, size};
    uint8_t dirty[1] = {0}, *units = malloc(REQUESTS * TS_TIMER_UNIT_BYTES), *slots;
    static uint8_t block[TS_BLOCK_BYTES + TS_BLOCK_CHUNKS];
    uint8_t *blocks[1] = {block};
    ts_states states = {blocks, IDS, 0};
    ts_wheel wheel = {.slot_count = 1 + fuzz_below(&in, SLOTS_MAX), .precision_ms = 1000,
                      .dirty_pages = dirty};
    ts_request requests[REQUESTS];
    ts_due *late = malloc(REQUESTS * sizeof *late);
    /* The clock and the read slot are the engine's own: any values within what a wheel is asked
     * for. */
    int64_t now = 1 + (int64_t)(fuzz_u64(&in) >> 24), read_slot = now + fuzz_byte(&in) - 128;
    int64_t pos = 0;
    int32_t count = 1 + fuzz_below(&in, REQUESTS), done = 0;
    size_t took;

    wheel.slots = fuzz_zeros(wheel.slot_count, TS_SLOT_BYTES);
    for (int32_t id = 0; id < IDS; id++)
        ts_state_set(&states, id, id % 5 ? TS_PENDING : TS_DELIVERED);
    slots = fuzz_take(&in, (size_t)wheel.slot_count * TS_SLOT_BYTES, &took);
    memcpy(wheel.slots, slots, took);
    for (int32_t i = 0; i < count; i++)
        requests[i] = request_of(&in);
    while (done < count) {
        ts_link link = {.pos = pos, .segment_bytes = SEGMENT, .write_slot = now,
                        .read_slot = read_slot < 1 ? 1 : read_slot,
                        .reuse_below = read_slot - fuzz_below(&in, 4),
                        .roll_slots = 2 + fuzz_below(&in, 9)};
        int32_t got = ts_timer_link(&wheel, &link, &states, requests + done, count - done, units,
                                    REQUESTS * TS_TIMER_UNIT_BYTES, late);

        if (got < 0)
            break;
        check_units(units, pos, &link, got);
        CHECK(got > 0 || link.cut);
        pos = link.pos;
        done += got;
    }
    free(slots);
    free(wheel.slots);
    free(units);
    free(late);
    return 0;
}
