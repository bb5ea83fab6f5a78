/* The wheel, timer units and far units: slots in use, overflow, damaged chains, and look-ups in
 * chains. */
#include "store.h"

#include "format/queue_unit.h"
#include "format/wheel_slot.h"
#include "log/parse.h"
#include "log/view.h"
#include "timer/unit_checksum.h"
#include "timer/wheel.h"

/* A slot that was read is free, unless its contents are kept. */
static void check_kept_slots(store *s, ts_link link, ts_request request)
{
    int64_t now = link.write_slot, wanted = now + 20, taken = wanted - 128;
    const int64_t kept[3] = {taken - 9, taken, taken + 1};
    uint8_t *units = bytes_of(TS_TIMER_UNIT_BYTES), *all = bytes_of(64 * TS_SLOT_BYTES);
    ts_slot before;
    ts_due late;

    ts_slot_get(s->wheel.slots + wanted % 64 * TS_SLOT_BYTES, &before);
    CHECK(before.time == taken);
    memcpy(all, s->wheel.slots, 64 * TS_SLOT_BYTES);
    request.due_ms = wanted * 1000 + 1;
    link.kept = kept;
    for (int32_t begin = 0; begin < 3; begin++) {
        for (int32_t count = 0; begin + count <= 3; count++) {
            int32_t has_it = begin <= 1 && begin + count > 1;

            link.kept = kept + begin;
            link.kept_count = count;
            link.read_below = taken + 1;
            CHECK(ts_timer_link(&s->wheel, &link, &s->states, &request, 1, units, 52, &late) == 1);
            CHECK(link.first_slot == wanted - has_it); /* else the slot before, which is free */
            memcpy(s->wheel.slots, all, 64 * TS_SLOT_BYTES);
            link.read_below = taken; /* then it was not read */
            CHECK(ts_timer_link(&s->wheel, &link, &s->states, &request, 1, units, 52, &late) == 1);
            CHECK(link.first_slot == wanted - 1);
            memcpy(s->wheel.slots, all, 64 * TS_SLOT_BYTES);
        }
    }
    free(units);
    free(all);
}

/* A message without a slot goes to the open slot and a chain of the far wheel; a delete goes
 * nowhere. */
static void check_overflow(store *s, ts_link link, ts_request request)
{
    uint8_t *units = bytes_of(TS_TIMER_UNIT_BYTES);
    ts_far_unit far;
    ts_due late;

    request.due_ms = (link.write_slot + 3) * 1000 + 1;
    link.overflows = 1;
    link.overflow_slot = -3;
    link.far = &far;
    CHECK(ts_timer_link(&s->wheel, &link, &s->states, &request, 1, units, 52, &late) == 1);
    CHECK(link.late_count == 1 && late.slot == -1 && late.flags == 0);
    CHECK(late.wake_ms == request.due_ms && late.due_ms == request.due_ms);
    CHECK(link.far_count == 1 && far.slot == -3 && far.due_ms == request.due_ms);
    CHECK(link.bytes == 52 && ts_get_i64(units + TS_TIMER_AT_PREV_POS) == -1);
    request.flags = TS_FLAG_AGAIN; /* it has its unit already */
    CHECK(ts_timer_link(&s->wheel, &link, &s->states, &request, 1, units, 52, &late) == 1);
    CHECK(link.late_count == 1 && link.far_count == 1 && link.bytes == 0);
    request.flags = TS_FLAG_DELETE;
    CHECK(ts_timer_link(&s->wheel, &link, &s->states, &request, 1, units, 52, &late) == 1);
    CHECK(link.late_count == 0 && link.far_count == 0 && link.bytes == 52);
    free(units);
}

static void test_taken_slots(void)
{
    const shape is = {1000, 1 << 16, 4096, 64, 1700000000000, 1};
    store *s = make_store(&is);
    int64_t first, last, now = s->now_ms / 1000, wanted = now + 5;
    int32_t count;
    ts_slot old = {wanted - 2 * is.slot_count, 0, 52, 1, 0};
    ts_request request = {.id = 0, .due_ms = wanted * 1000 + 1, .log_offset = 1, .size = 100};
    ts_link link = {.segment_bytes = 4096, .write_slot = now, .read_slot = now + 1,
                    .reuse_below = now - 1000, .roll_slots = 50};
    uint8_t *units = bytes_of(2 * TS_TIMER_UNIT_BYTES);
    ts_due late[2];

    s->log.need = 0;
    give_states(s);
    CHECK(ts_state_set(&s->states, 0, TS_PENDING) == TS_NONE);
    ts_slot_put(s->wheel.slots + wanted % 64 * TS_SLOT_BYTES, &old);
    CHECK(ts_timer_link(&s->wheel, &link, &s->states, &request, 1, units, 104, late) == 1);
    CHECK(link.first_slot == wanted - 1 && link.late_count == 0); /* in the slot before, and it
                                                                   * rolls */
    CHECK(ts_get_i32(units + TS_TIMER_AT_MAGIC) == (TS_TIMER_MAGIC_DEFAULT | TS_TIMER_MAGIC_ROLL));
    CHECK(ts_wheel_slot(&s->wheel, wanted - 1, &first, &last, &count) && first == 0 && count == 1);
    CHECK(!ts_wheel_slot(&s->wheel, wanted, &first, &last, &count));
    CHECK(ts_wheel_next(&s->wheel, now, now + 64) == wanted - 1);

    for (int64_t slot = now - 70; slot < now + 40; slot++) { /* every slot is in use */
        ts_slot_get(s->wheel.slots + slot % 64 * TS_SLOT_BYTES, &old);
        if (old.time == 0) {
            old = (ts_slot){slot - is.slot_count, 0, 52, 1, 0};
            ts_slot_put(s->wheel.slots + slot % 64 * TS_SLOT_BYTES, &old);
        }
    }
    request.due_ms = (now + 3) * 1000 + 1;
    link.bytes = 0;
    CHECK(ts_timer_link(&s->wheel, &link, &s->states, &request, 1, units, 104, late) == TS_BLOCKED);
    request.due_ms = (now - 3) * 1000;
    CHECK(ts_timer_link(&s->wheel, &link, &s->states, &request, 1, units, 104, late) == TS_BLOCKED);
    CHECK(link.bytes == 0 && link.late_count == 0 && link.first_slot == INT64_MAX);
    check_kept_slots(s, link, request);
    check_overflow(s, link, request);
    link.reuse_below = now;
    CHECK(ts_timer_link(&s->wheel, &link, &s->states, &request, 1, units, 104, late) == 1);
    CHECK(link.late_count == 1 && late[0].slot < now && late[0].wake_ms == request.due_ms);
    CHECK(ts_timer_link(&s->wheel, &link, &s->states, &request, 1, units, 51, late) == 0);
    request.id = 77; /* it does not wait, so its unit is not linked */
    CHECK(ts_timer_link(&s->wheel, &link, &s->states, &request, 1, units, 52, late) == 1);
    CHECK(ts_get_i64(units + TS_TIMER_AT_PREV_POS) == -1 && link.first_slot == INT64_MAX);
    memset(s->wheel.slots + (wanted - 1) % s->wheel.slot_count * 32, 0, 32);
    CHECK(!ts_wheel_slot(&s->wheel, wanted - 1, &first, &last, &count));
    free(units);
    free_store(s);
}

/* A unit with changed bits, or at another position, is invalid; one without a checksum is valid. */
static void test_unit_checksums(void)
{
    const ts_timer_unit in = {.prev_pos = 52, .magic = 1, .write_ms = 1700000000000,
                              .delay_ms = 5000, .log_offset = 4096, .size = 300};
    uint8_t *units = bytes_of(2 * TS_TIMER_UNIT_BYTES), is_sound[2];
    ts_timer_unit out;

    for (int64_t pos = 104; pos < (int64_t)1 << 33; pos = pos * 3 + 52) {
        ts_checked_unit_put(units, pos, &in);
        CHECK(ts_checked_unit_get(units, pos, &out) == 0 && out.log_offset == in.log_offset);
        CHECK(ts_checked_unit_get(units, pos + 52, &out) < 0);
        for (int32_t bit = 0; bit < 8 * TS_TIMER_UNIT_BYTES; bit++) {
            units[bit / 8] ^= (uint8_t)(1 << bit % 8);
            CHECK(ts_checked_unit_get(units, pos, &out) < 0);
            units[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        memcpy(units + TS_TIMER_UNIT_BYTES, units, TS_TIMER_UNIT_BYTES); /* as a misplaced block */
        ts_units_check(units, 2, pos, is_sound);
        CHECK(is_sound[0] && !is_sound[1]);
        ts_put_i64(units + TS_TIMER_AT_CHECKSUM, 0);
        CHECK(ts_checked_unit_get(units, pos, &out) == 0);
    }
    free(units);
}

/* Chains that point to themselves, forward, outside of the log, or to invalid units. */
static void test_chains(void)
{
    const struct {
        int64_t prev;
        int32_t size, status;
    } cases[] = {{-1, 52, 1}, {52, 52, TS_CORRUPT}, {104, 52, TS_CORRUPT}, {0, 52, 2},
                 {INT64_MAX, 52, TS_CORRUPT}, {1, 52, 1}, {-7, 52, TS_CORRUPT}, {-1, 51,
                                                                                 TS_CORRUPT}};
    uint8_t *units = bytes_of(2 * TS_TIMER_UNIT_BYTES), *slots = bytes_of(8 * TS_SLOT_BYTES), dirty;
    const uint8_t *segments[1] = {units};
    ts_view view = {.segments = segments, .segment_count = 1, .segment_bytes = 4096, .end = 104};
    ts_wheel wheel = {.slots = slots, .dirty_pages = &dirty, .slot_count = 8, .precision_ms = 1000};
    ts_chained out[4];
    ts_patch patches[8];
    int64_t slot = 3, next, position;
    uint8_t is_kept = 0;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ts_timer_unit unit = {.prev_pos = -1, .magic = 1, .write_ms = 3000};
        int32_t is_sound = cases[i].status > 0 && cases[i].prev != 1;

        ts_slot_put(slots + 3 * TS_SLOT_BYTES, &(ts_slot){3, 0, 52, 2, 0});
        ts_timer_unit_put(units, &unit);
        unit.prev_pos = cases[i].prev;
        ts_timer_unit_put(units + 52, &unit);
        ts_put_i32(units + 52, cases[i].size);
        next = -1;
        CHECK(ts_wheel_load(&view, &wheel, slot, &next, 4, out) ==
              (cases[i].status > 0 ? cases[i].status : TS_CORRUPT));
        position = -2;
        CHECK(ts_wheel_load_many(&view, &wheel, &slot, &position, 1, 4, out) == cases[i].status);
        CHECK((ts_wheel_recount(&view, &wheel, 3, &(ts_chain_walk){0}) == TS_OK) == is_sound);
        ts_slot_put(slots + 3 * TS_SLOT_BYTES, &(ts_slot){3, 0, 52, 2, 0});
        CHECK((ts_wheel_compact_chain(&view, &wheel, 3, 2, &slot, &is_kept, 0, patches, 8,
                                      &(ts_chain_walk){0}) >= 0) == is_sound);
        ts_slot_put(slots + 3 * TS_SLOT_BYTES, &(ts_slot){3, 0, 52, 2, 0});
        CHECK((ts_wheel_cut(&view, &wheel, 0) >= 0) == is_sound);
    }
    ts_slot_put(slots + 3 * TS_SLOT_BYTES, &(ts_slot){3, 0, 104, 2, 0}); /* past the end */
    next = -1;
    CHECK(ts_wheel_load(&view, &wheel, 3, &next, 4, out) == TS_CORRUPT);
    CHECK(view.fault == TS_FAULT_CHAIN && view.fault_offset == 104);
    free(units);
    free(slots);
}

/* Far units: five of two slots, in files of two units with 20 unused bytes each; then each bit of
 * one flipped. */
static void test_far_units(void)
{
    enum { COUNT = 5, FILE_BYTES = 124 };
    ts_far_unit units[COUNT], out[COUNT];
    const int32_t places[COUNT] = {0, 1, 0, 0, 1};
    int64_t heads[2] = {-1, -1}, number;
    uint8_t *packed = bytes_of(COUNT * 52), *files = bytes_of(3 * FILE_BYTES);
    const uint8_t *segments[3] = {files, files + FILE_BYTES, files + 2 * FILE_BYTES};
    ts_view view = {.segments = segments, .segment_count = 3, .segment_bytes = FILE_BYTES,
                    .end = 2 * FILE_BYTES + 52};

    for (int32_t i = 0; i < COUNT; i++)
        units[i] = (ts_far_unit){.id = 10 + i, .log_offset = 100 * i, .due_ms = INT64_MAX - i,
                                 .slot = 7 + places[i], .size = 1 + i, .topic_hash = -i};
    ts_far_link(units, places, COUNT, 0, heads, packed);
    CHECK(heads[0] == 3 && heads[1] == 4);
    for (int32_t i = 0; i < COUNT; i++)
        memcpy(files + i / 2 * FILE_BYTES + i % 2 * 52, packed + 52 * i, 52);
    number = heads[0];
    CHECK(ts_far_walk(&view, 7, &number, 2, out) == 2 && number == 0);
    CHECK(out[0].id == 13 && out[1].id == 12 && out[1].due_ms == INT64_MAX - 2);
    CHECK(ts_far_walk(&view, 7, &number, 2, out) == 1 && number == -1 && out[0].id == 10);
    CHECK(ts_far_walk(&view, 7, &number, 2, out) == 0);
    number = heads[0];
    CHECK(ts_far_walk(&view, 8, &number, 2, out) == TS_CORRUPT); /* of another slot */
    CHECK(ts_far_scan(&view, 0, COUNT, out) == COUNT && memcmp(out, units, sizeof out) == 0);
    number = 5; /* past the end */
    CHECK(ts_far_walk(&view, 7, &number, 2, out) == TS_CORRUPT);
    for (int32_t bit = 0; bit < 52 * 8; bit++) {
        files[2 * FILE_BYTES + bit / 8] ^= (uint8_t)(1 << bit % 8);
        number = 4;
        CHECK(ts_far_walk(&view, 8, &number, 2, out) == TS_CORRUPT &&
              view.fault == TS_FAULT_CHAIN && view.fault_offset == 2 * FILE_BYTES);
        files[2 * FILE_BYTES + bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    memset(files, 0, 52);
    CHECK(ts_far_scan(&view, 0, COUNT, out) == TS_CORRUPT);
    view.segment_count = 2;
    number = 4;
    CHECK(ts_far_walk(&view, 8, &number, 2, out) == TS_NEED_SEGMENT && view.need == 2);
    free(packed);
    free(files);
}

/* Find a message in a chain by topic, key and slot time, all three. */
static void test_chained_find(void)
{
    const shape is = {1000, 1 << 14, 4096, 64, 1700000000000, 1};
    store *s = make_store(&is);
    const uint8_t *orders = (const uint8_t *)"orders", *mail = (const uint8_t *)"mail12";
    uint8_t key[32];
    ts_chained chained[12];
    int32_t at = 0;
    int64_t id = -1, out_ms = is.start_ms + 4000;

    for (int32_t i = 0; i < 12; i++)
        put_one(s, i % 2, s->now_ms + 5000 + (i == 7));
    for (int32_t i = 0; i < 12; i++)
        chained[i] = (ts_chained){.log_offset = s->source_at[i]};
    s->view.end = log_end(s);
    memcpy(key, "7F00000100000000ABCD000000000003", 32);
    CHECK(ts_chained_find(&s->view, chained, 12, orders, 6, key, 32, out_ms, &s->states, STORE_ID,
                          &at, &id) ==
          1 && at == 3 && id == 3);
    at++;
    CHECK(ts_chained_find(&s->view, chained, 12, orders, 6, key, 32, out_ms, &s->states, STORE_ID,
                          &at, &id) ==
          0 && at == 12);
    at = 0;
    CHECK(ts_chained_find(&s->view, chained, 12, mail, 6, key, 32, out_ms, &s->states, STORE_ID,
                          &at, &id) == 0);
    at = 0;
    CHECK(ts_chained_find(&s->view, chained, 12, orders, 6, key, 31, out_ms, &s->states, STORE_ID,
                          &at, &id) ==
          0);
    at = 0;
    key[31] = '7';
    CHECK(ts_chained_find(&s->view, chained, 12, orders, 6, key, 32, out_ms, &s->states, STORE_ID,
                          &at, &id) ==
          0); /* its slot is the next one */
    at = 0;
    CHECK(ts_chained_find(&s->view, chained, 12, orders, 6, key, 32, out_ms + 1000, &s->states, 7,
                          &at, &id) ==
          1 && at == 7 && id == 7);
    s->view.end = s->source_at[5];
    at = 0;
    CHECK(ts_chained_find(&s->view, chained, 12, orders, 6, key, 32, 5, &s->states, 7, &at, &id) ==
          TS_CORRUPT && at == 5);
    free_store(s);
}

/* The bits of used slots give the same answers as the slots, whatever is linked, emptied and read. */
static void check_used_bits(int64_t slot_count, uint64_t seed)
{
    uint8_t slots[200 * TS_SLOT_BYTES] = {0}, dirty[2] = {0};
    uint64_t used[4], random = seed;
    ts_wheel by_bits = {.slots = slots, .dirty_pages = dirty, .slot_count = slot_count,
                        .precision_ms = 1000, .used = used, .used_from = 1000};
    ts_wheel by_slots = by_bits;

    by_slots.used = NULL;
    memset(used, 0xff, sizeof used);
    for (int32_t step = 0; step < 4000; step++) {
        int64_t read_slot = by_bits.used_from, slot = read_slot + check_below(&random, 3 * 200);
        const ts_slot value = {.time = slot, .last_pos = check_below(&random, 9) - 1};

        switch (check_below(&random, 8)) {
        case 0:
            by_bits.used_from += check_below(&random, 40);
            break;
        case 1:
            if (check_below(&random, 4) == 0) { /* the clock was set back */
                by_bits.used_from -= check_below(&random, 100);
                memset(used, 0xff, sizeof used);
            }
            break;
        case 2:
            ts_wheel_empty(&by_bits, slot, slot + 20, NULL, 0);
            break;
        case 3:
            ts_slot_write(&by_bits, slot % 5 == 0 ? slot : read_slot + slot % slot_count, &value);
            break;
        case 4:
            if (slot % 3 == 0) /* a late unit */
                ts_slot_write(&by_bits, read_slot - 1, &(ts_slot){.time = read_slot - 1});
            break;
        default:
            break;
        }
        for (int32_t look = 0; look < 3; look++) {
            int64_t from = by_bits.used_from + check_below(&random, 3) * 7 - (look == 2) * 5;
            int64_t to = look == 0 ? (int64_t)1 << 62 : from + check_below(&random, 2 * 200);

            CHECK(ts_wheel_next(&by_bits, from, to) == ts_wheel_next(&by_slots, from, to));
        }
    }
}

static void test_used_bits(void)
{
    static const int64_t counts[] = {1, 2, 63, 64, 65, 127, 128, 130, 192, 200};

    for (uint64_t seed = 0; seed < 40; seed++)
        check_used_bits(counts[seed % 10], seed);
}

/* A search reads the slots of its range only, however many others are in use. A slot that is read and
 * turns out to be unused loses its bit. */
static void test_search_reads_its_range_only(void)
{
    enum { SLOTS = 200 };
    static const int64_t lengths[] = {0, 1, 2, 63, 64, 65, 199, 200, 201, 1000};
    uint8_t slots[SLOTS * TS_SLOT_BYTES] = {0}, dirty[2] = {0};

    for (int64_t from = 1000; from < 1000 + SLOTS; from++) {
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            uint64_t used[4];
            ts_wheel wheel = {.slots = slots, .dirty_pages = dirty, .slot_count = SLOTS,
                              .precision_ms = 1000, .used = used, .used_from = 1000};

            memset(used, 0xff, sizeof used);
            CHECK(ts_wheel_next(&wheel, from, from + lengths[i]) == -1);
            for (int64_t ahead = 0; ahead < SLOTS; ahead++) {
                int64_t index = (from + ahead) % SLOTS;

                CHECK((used[index / 64] >> index % 64 & 1) == (ahead >= lengths[i]));
            }
        }
    }
}

int main(void)
{
    test_used_bits();
    test_search_reads_its_range_only();
    test_chained_find();
    test_taken_slots();
    test_unit_checksums();
    test_chains();
    test_far_units();
    puts("test_wheel: ok");
    return 0;
}
