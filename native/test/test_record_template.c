/* Record templates: a record made with one, new or from the cache, has the same bytes as without.
 */
#include "check.h"

#include "format/properties.h"
#include "log/column_batch.h"
#include "log/template_cache.h"
#include "timer/states.h"

enum { ROWS = 40, STAGING = 1 << 16, IDS = 4096, CELLS = 1024, CALLS = 4 * 4 * 3 * 2 * 2 * 20 };

#define DAY_MS 86400000

enum { TOPIC_MAX = 200, QUEUES = 20, PUTS = 400, CACHED_CALLS = 4 * 2 * 2 * 2 * 10 };

static int32_t fitted; /* how often all rows were found to fit */
static int32_t on_kept, off_kept; /* single puts with a cached template, and all others */

/* The end of a log, with all that an append changes. */
typedef struct {
    ts_log log;
    ts_route route, timer;
    ts_states states;
    ts_calendar calendar;
    ts_calendar_cell cells[CELLS];
    uint8_t *blocks[1];
    uint8_t block[TS_BLOCK_BYTES + TS_BLOCK_CHUNKS];
    uint8_t staging[STAGING];
    uint64_t mark;
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
                      .base = 5000, .append_limit = 5000 + STAGING, .segment_bytes = 1 << 20,
                      .precision_ms = is->precision_ms, .timer_route = &e->timer,
                      .states = &e->states, .calendar = is->counts ? &e->calendar : NULL,
                      .store_id = 0xC0FFEE01u, .property_crc = is->property_crc,
                      .host = {127, 0, 0, 1, 0, 0, 42, 159}};
    memcpy(e->log.unique_prefix, "0123456789ABCDEF0123", 20);
    return e;
}

static void check_same(const end *a, const end *b)
{
    CHECK(a->log.filled == b->log.filled && a->mark == b->mark);
    CHECK(a->mark == (uint64_t)a->log.filled);
    CHECK(memcmp(a->staging, b->staging, sizeof a->staging) == 0);
    CHECK(memcmp(a->block, b->block, sizeof a->block) == 0);
    CHECK(memcmp(a->cells, b->cells, sizeof a->cells) == 0);
    CHECK(memcmp(a->log_offsets, b->log_offsets, sizeof a->log_offsets) == 0);
    CHECK(memcmp(a->numbers, b->numbers, sizeof a->numbers) == 0);
    CHECK(a->states.pending == b->states.pending && a->calendar.used == b->calendar.used);
    CHECK(a->route.next_offset == b->route.next_offset && a->route.pending == b->route.pending);
    CHECK(a->timer.next_offset == b->timer.next_offset);
    CHECK(a->log.put_count == b->log.put_count && a->log.need == b->log.need);
    CHECK(a->log.last_store_ms == b->log.last_store_ms && a->log.out[0] == b->log.out[0]);
}

/* Return a due time: sometimes now, mostly near times of 12, 13 and 14 digits, and times as late as
 * possible. */
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

/* Put the same rows with templates, and with columns of empty texts, for which there are none. The
 * first bodies are in one buffer, or each is in its own. */
static void test_rows(const shape *is, uint64_t seed)
{
    static uint8_t bodies[ROWS * 300], text[2000];
    ts_slice parts[ROWS];
    end *on_template = make_end(is), *without = make_end(is);
    int64_t offsets[ROWS + 1] = {0}, due[ROWS], nothing[ROWS + 1] = {0};
    ts_column_batch plain = {.bodies = bodies, .body_offsets = offsets, .due_ms = due,
                     .properties = text, .properties_size = is->text_size, .count = ROWS,
                     .first_unique = (int64_t)(check_random(&seed) >> 16)};
    ts_column_batch general = plain;
    int32_t step = 1 + (int32_t)(check_random(&seed) % ROWS), got = 0, fits;

    general.extra = bodies;
    general.extra_offsets = nothing;
    memset(text, 'p', sizeof text);
    for (int32_t i = 0; i < ROWS; i++) {
        offsets[i + 1] = offsets[i] + (int64_t)(check_random(&seed) % 300);
        due[i] = due_of(&seed, is);
        parts[i] = (ts_slice){bodies + offsets[i], (int32_t)(offsets[i + 1] - offsets[i])};
    }
    if (check_random(&seed) % 2 == 0) {
        plain.parts = parts;
        plain.bodies = NULL;
        plain.body_offsets = NULL;
    }
    for (int64_t i = 0; i < offsets[ROWS]; i++)
        bodies[i] = (uint8_t)check_random(&seed);
    if (check_random(&seed) % 2 == 0) { /* space or states for some of them only */
        on_template->log.append_limit = without->log.append_limit =
            5000 + (int64_t)(check_random(&seed) % 12000);
        on_template->states.end = without->states.end = 77 + (int64_t)(check_random(&seed) % ROWS);
    }
    fits = ts_put_many_fits(&on_template->log, &on_template->route, &plain, (int32_t)offsets[ROWS],
                            is->now_ms);
    CHECK(!ts_put_many_fits(&on_template->log, &on_template->route, &general,
                            (int32_t)offsets[ROWS], is->now_ms));
    for (int32_t at = 0; at < ROWS; at += got) {
        int32_t to = at + step < ROWS ? at + step : ROWS;

        got = ts_put_many(&on_template->log, &on_template->route, &plain, at, to, is->now_ms,
                          on_template->log_offsets, on_template->numbers);
        CHECK(got == ts_put_many(&without->log, &without->route, &general, at, to, is->now_ms,
                                 without->log_offsets, without->numbers));
        check_same(on_template, without);
        CHECK(!fits || got == to - at);
        if (got < 0)
            break;
    }
    fitted += fits;
    free(on_template);
    free(without);
}

/* Return the cache entry of the template for such puts, if there is one. */
static const ts_cached_template *place_of(const ts_log *log, const ts_route *route,
                                          int32_t is_timer)
{
    const ts_cached_template *all = (const ts_cached_template *)log->templates;

    for (int32_t i = 0; i < TS_TEMPLATE_CACHE_SIZE; i++)
        if (all[i].route == route && all[i].template.is_timer == is_timer &&
            all[i].template.text_size > 0)
            return &all[i];
    return NULL;
}

/* Check that the append hints of two logs are of the same records, and of each log's own routes. */
static void check_same_hints(const ts_append_hints *a, const ts_append_hints *b)
{
    CHECK(a->tail == b->tail);
    for (int64_t i = 0; i < a->tail; i++) {
        const ts_append_hint *x = &a->at[i], *y = &b->at[i];

        CHECK(x->log_offset == y->log_offset && x->queue_offset == y->queue_offset);
        CHECK(x->store_ms == y->store_ms && x->due_ms == y->due_ms && x->size == y->size);
        CHECK(x->key_hash == y->key_hash && x->tags == y->tags && x->has_tags == y->has_tags);
        CHECK(x->route->queue_id == y->route->queue_id && !x->real == !y->real);
        CHECK(x->real == NULL || x->real->queue_id == y->real->queue_id);
    }
}

/* Put the same messages one by one, with and without the cache: to one queue for some time, then to
 * another, with more queues than the cache has places, at changing times. */
static void test_cache(const shape *is, uint64_t seed)
{
    static ts_route queues[2][QUEUES];
    static ts_append_hint noted[2][512];
    ts_append_hints hints[2] = {{.at = noted[0], .capacity = 512}, {.at = noted[1],
                                                                    .capacity = 512}};
    const shape one = {.now_ms = is->now_ms, .precision_ms = is->precision_ms,
                       .property_crc = is->property_crc, .topic_size = 1, .counts = is->counts};
    end *ends[2] = {make_end(&one), make_end(&one)};
    int64_t now_ms = is->now_ms;
    uint8_t body[300], text[] = "a\001b\002";
    int32_t q = 0;

    ends[0]->log.templates = calloc(1, (size_t)ts_template_cache_bytes());
    CHECK(ends[0]->log.templates != NULL);
    for (int32_t side = 0; side < 2; side++) {
        ends[side]->log.hints = &hints[side];
        for (int32_t i = 0; i < QUEUES; i++) {
            char topic[TOPIC_MAX];

            memset(topic, 'a' + i, sizeof topic);
            make_route(&queues[side][i], topic, is->topic_size, i);
            queues[side][i].index = i;
            queues[side][i].next_offset = queues[side][i].pending = 0;
            queues[side][i].key_prefix = 0;
        }
    }
    for (int32_t i = 0; i < PUTS; i++) {
        int64_t due_ms = due_of(&seed, is), got[2];
        int32_t size = (int32_t)(check_random(&seed) % sizeof body);
        int32_t text_size = check_random(&seed) % 8 == 0 ? (int32_t)sizeof text - 1 : 0, is_timer;
        const ts_cached_template *kept;

        if (check_random(&seed) % 4 == 0)
            q = (int32_t)(check_random(&seed) % QUEUES);
        now_ms += (int64_t)(check_random(&seed) % 3);
        is_timer = due_ms > now_ms;
        for (int32_t at = 0; at < size; at++)
            body[at] = (uint8_t)check_random(&seed);
        for (int32_t side = 0; side < 2 && i == PUTS - 10; side++) { /* space or states are short */
            if (seed % 2 == 0)
                ends[side]->log.append_limit = ends[side]->log.base + ends[side]->log.filled + 900;
            else
                ends[side]->states.end = ends[side]->timer.next_offset + 2;
        }
        for (int32_t side = 0; side < 2; side++) {
            got[side] = ts_put_one(&ends[side]->log, &queues[side][q], body, size, due_ms, text,
                                   text_size, now_ms);
            if (ends[side]->log.staging_bytes - ends[side]->log.filled < 4096) {
                ends[side]->log.base += ends[side]->log.filled; /* written out */
                ends[side]->log.append_limit += ends[side]->log.filled;
                ends[side]->log.filled = 0;
                ends[side]->mark = 0;
            }
        }
        CHECK(got[0] == got[1]);
        check_same(ends[0], ends[1]);
        CHECK(queues[0][q].next_offset == queues[1][q].next_offset &&
              queues[0][q].pending == queues[1][q].pending);
        CHECK(ends[0]->log.out[1] == ends[1]->log.out[1] &&
              ends[0]->log.unique_counter == ends[1]->log.unique_counter);
        check_same_hints(&hints[0], &hints[1]);
        kept = place_of(&ends[0]->log, &queues[0][q], is_timer);
        if (kept != NULL && text_size == 0 && kept->template.now_ms == now_ms && got[0] >= 0)
            on_kept++;
        else
            off_kept++;
    }
    for (int32_t side = 0; side < 2; side++) {
        free(ends[side]->log.templates);
        free(ends[side]);
    }
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
    CHECK(fitted > CALLS / 8 && fitted < CALLS / 8 * 7); /* both happen often */
    for (int32_t i = 0; i < CACHED_CALLS; i++) {
        shape is = {.now_ms = nows[i % 4], .precision_ms = i / 4 % 2 ? 1000 : 1,
                    .property_crc = i / 8 % 2, .topic_size = i / 32 % 3 == 2 ? TOPIC_MAX : 7,
                    .counts = i / 16 % 2};

        test_cache(&is, check_random(&seed));
    }
    CHECK(on_kept > CACHED_CALLS * PUTS / 8 && off_kept > CACHED_CALLS * PUTS / 8);
    puts("test_record_template: ok");
    return 0;
}
