/* Forms: rows that are appended on one are the bytes that they are without. */
#include "check.h"

#include "../format/properties.h"
#include "../src/rows.h"
#include "../src/states.h"

enum { ROWS = 40, STAGING = 1 << 16, IDS = 4096, CELLS = 1024, CALLS = 4 * 4 * 3 * 2 * 2 * 20 };

#define DAY_MS 86400000

static int32_t fitted; /* how often all rows were said to fit */

/* A log's end, with all that an append changes. */
typedef struct {
    ts_log log;
    ts_route route, timer;
    ts_states states;
    ts_calendar calendar;
    ts_calendar_cell cells[CELLS];
    uint8_t *blocks[1];
    uint8_t block[TS_BLOCK_BYTES + TS_BLOCK_CHUNKS];
    uint8_t staging[STAGING];
    int64_t mark;
    int64_t log_offsets[ROWS], numbers[ROWS];
} end;

typedef struct {
    int64_t now_ms, precision_ms;
    int32_t property_crc, topic_size, text_size, counts;
} shape;

static void make_route(ts_route *route, const char *topic, int32_t size, int32_t queue_id)
{
    route->queue_id = queue_id;
    route->topic_size = size;
    memcpy(route->topic, topic, (size_t)size);
    route->real_size = snprintf((char *)route->real, sizeof route->real,
                                "REAL_TOPIC\001%.*s\002REAL_QID\001%d\002", size, topic, queue_id);
    route->topic_number = 1;
}

static end *make_end(const shape *is)
{
    static const char topic[] = "tttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttt"
                                "ttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttt";
    end *e = calloc(1, sizeof *e);

    CHECK(e != NULL);
    make_route(&e->route, topic, is->topic_size, 3);
    make_route(&e->timer, "rmq_sys_wheel_timer", 19, 0);
    e->timer.next_offset = 77;
    e->blocks[0] = e->block;
    e->states = (ts_states){.blocks = e->blocks, .end = IDS};
    e->calendar = (ts_calendar){.cells = e->cells, .mask = CELLS - 1, .limit = CELLS / 2};
    e->log = (ts_log){.staging = e->staging, .filled_mark = &e->mark, .staging_bytes = STAGING,
                      .base = 5000, .room_end = 5000 + STAGING, .segment_bytes = 1 << 20,
                      .precision_ms = is->precision_ms, .timer_route = &e->timer,
                      .states = &e->states, .calendar = is->counts ? &e->calendar : NULL,
                      .store_id = 0xC0FFEE01u, .property_crc = is->property_crc,
                      .host = {127, 0, 0, 1, 0, 0, 42, 159}};
    memcpy(e->log.unique_prefix, "0123456789ABCDEF0123", 20);
    return e;
}

static void check_same(const end *a, const end *b)
{
    CHECK(a->log.filled == b->log.filled && a->mark == b->mark && a->mark == a->log.filled);
    CHECK(memcmp(a->staging, b->staging, sizeof a->staging) == 0);
    CHECK(memcmp(a->block, b->block, sizeof a->block) == 0);
    CHECK(memcmp(a->cells, b->cells, sizeof a->cells) == 0);
    CHECK(memcmp(a->log_offsets, b->log_offsets, sizeof a->log_offsets) == 0);
    CHECK(memcmp(a->numbers, b->numbers, sizeof a->numbers) == 0);
    CHECK(a->states.waiting == b->states.waiting && a->calendar.used == b->calendar.used);
    CHECK(a->route.next_offset == b->route.next_offset && a->route.pending == b->route.pending);
    CHECK(a->timer.next_offset == b->timer.next_offset);
    CHECK(a->log.put_count == b->log.put_count && a->log.need == b->log.need);
    CHECK(a->log.last_store_ms == b->log.last_store_ms && a->log.out[0] == b->log.out[0]);
}

/* Due now and then, near times of 12, 13 and 14 digits, and as far as there are any. */
static int64_t due_of(uint64_t *seed, const shape *is)
{
    static const int64_t edges[] = {0, 1000000000000, 10000000000000, INT64_MAX - 10};
    uint64_t random = check_random(seed);
    int64_t near = (int64_t)(check_random(seed) % 3000) - 1000;

    if (random % 4 == 0)
        return is->now_ms + near;
    if (random % 4 == 1)
        return edges[random / 4 % 3] + near;
    return random % 4 == 2 ? edges[3] : is->now_ms + 1 + (int64_t)(random / 4 % DAY_MS);
}

/* The same rows on forms, and with columns of empty texts, for which there are none. The bodies of
 * the first ones lie in one buffer or each by itself. */
static void test_rows(const shape *is, uint64_t seed)
{
    static uint8_t bodies[ROWS * 300], text[2000];
    ts_given parts[ROWS];
    end *on_form = make_end(is), *without = make_end(is);
    int64_t offsets[ROWS + 1] = {0}, due[ROWS], nothing[ROWS + 1] = {0};
    ts_rows plain = {.bodies = bodies, .body_offsets = offsets, .due_ms = due,
                     .properties = text, .properties_size = is->text_size, .count = ROWS,
                     .first_unique = (int64_t)(check_random(&seed) >> 16)};
    ts_rows general = plain;
    int32_t step = 1 + (int32_t)(check_random(&seed) % ROWS), got = 0, fits;

    general.extra = bodies;
    general.extra_offsets = nothing;
    memset(text, 'p', sizeof text);
    for (int32_t i = 0; i < ROWS; i++) {
        offsets[i + 1] = offsets[i] + (int64_t)(check_random(&seed) % 300);
        due[i] = due_of(&seed, is);
        parts[i] = (ts_given){bodies + offsets[i], (int32_t)(offsets[i + 1] - offsets[i])};
    }
    if (check_random(&seed) % 2 == 0) {
        plain.parts = parts;
        plain.bodies = NULL;
        plain.body_offsets = NULL;
    }
    for (int64_t i = 0; i < offsets[ROWS]; i++)
        bodies[i] = (uint8_t)check_random(&seed);
    if (check_random(&seed) % 2 == 0) { /* room, or states, for some of them alone */
        on_form->log.room_end = without->log.room_end = 5000 + (int64_t)(check_random(&seed) % 12000);
        on_form->states.end = without->states.end = 77 + (int64_t)(check_random(&seed) % ROWS);
    }
    fits = ts_put_many_fits(&on_form->log, &on_form->route, &plain, (int32_t)offsets[ROWS],
                            is->now_ms);
    CHECK(!ts_put_many_fits(&on_form->log, &on_form->route, &general, (int32_t)offsets[ROWS],
                            is->now_ms));
    for (int32_t at = 0; at < ROWS; at += got) {
        int32_t to = at + step < ROWS ? at + step : ROWS;

        got = ts_put_many(&on_form->log, &on_form->route, &plain, at, to, is->now_ms,
                          on_form->log_offsets, on_form->numbers);
        CHECK(got == ts_put_many(&without->log, &without->route, &general, at, to, is->now_ms,
                                 without->log_offsets, without->numbers));
        check_same(on_form, without);
        CHECK(!fits || got == to - at);
        if (got < 0)
            break;
    }
    fitted += fits;
    free(on_form);
    free(without);
}

int main(void)
{
    static const int64_t nows[] = {5, 999999999000, 1700000000123, 9999999999000};
    static const int32_t text_sizes[] = {0, 11, 800, 1100}, topic_sizes[] = {1, 5, 127};
    uint64_t seed = 11;

    for (int32_t i = 0; i < CALLS; i++) {
        shape is = {.now_ms = nows[i % 4], .precision_ms = i / 4 % 2 ? 1000 : 1,
                    .property_crc = i / 8 % 2, .topic_size = topic_sizes[i / 16 % 3],
                    .text_size = text_sizes[i / 48 % 4], .counts = i / 192 % 2};

        test_rows(&is, check_random(&seed));
    }
    CHECK(fitted > CALLS / 8 && fitted < CALLS / 8 * 7); /* both happen, often */
    puts("test_form: ok");
    return 0;
}
