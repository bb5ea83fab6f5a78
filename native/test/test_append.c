/* Appending: calls that need something first, and groups of which the log holds all or none. */
#include "store.h"

#include "format/properties.h"
#include "log/parse.h"
#include "log/view.h"

static void test_needs(void)
{
    const shape is = {1000, 1 << 14, 4096, 64, 1700000000000, 1};
    store *s = make_store(&is);
    ts_view *view = &s->view;
    const uint8_t *mapped;
    uint8_t units[60], body[4] = "body", *big = bytes_of(TS_PROPERTIES_BYTES_MAX);
    ts_request request;
    ts_scanned scanned;
    ts_chained chained = {.log_offset = 0, .slot = 1, .size = 100};
    ts_due due;
    int64_t next, offsets[3];
    int32_t indexes[3], got;

    CHECK(ts_put_one(&s->log, s->routes, body, 4, s->now_ms + 1, NULL, 0, s->now_ms) ==
          TS_NEED_STATES && s->log.need == 0 && s->log.filled == 0);
    give_states(s);
    s->log.append_limit = 100;
    CHECK(ts_put_one(&s->log, s->routes, body, 4, 0, NULL, 0, s->now_ms) == TS_NEED_SPACE);
    CHECK(s->log.need > 100 && s->log.filled == 0 && s->routes[0].next_offset == 0);
    s->log.append_limit = is.segment_bytes - 16;
    CHECK(ts_put_one(&s->log, s->routes, body, 4, 0, big, TS_PROPERTIES_BYTES_MAX, s->now_ms) ==
          TS_INVALID);
    CHECK(ts_put_one(&s->log, s->routes, body, 4, s->now_ms + 5, NULL, 0, s->now_ms) == 0);
    CHECK(ts_put_one(&s->log, s->routes, body, 4, 0, NULL, 0, s->now_ms) > 0);
    CHECK(ts_cancel(&s->log, s->routes, 5, NULL, 0, s->now_ms) == TS_NONE);
    view->end = log_end(s);
    CHECK(ts_dispatch(view, &s->known, NULL, 0, 0, &next, 3, units, indexes, offsets, NULL, NULL,
                      NULL) ==
          TS_NEED_ROUTE && view->need == 0 && next == 0);
    CHECK(ts_scan(view, &s->known, 1000, 0, &next, 1, &scanned) == TS_NEED_ROUTE);
    know_route(s, TIMER);
    CHECK(ts_scan(view, &s->known, 1000, 0, &next, 1, &scanned) == TS_NEED_ROUTE); /* real */
    got = ts_dispatch(view, &s->known, NULL, 0, 0, &next, 3, units, indexes, offsets, NULL, NULL,
                      NULL);
    CHECK(got == 1 && next > 0 && next < view->end && indexes[0] == TIMER);
    know_route(s, 0);
    CHECK(ts_dispatch(view, &s->known, NULL, 0, 0, &next, 3, units, indexes, offsets, NULL, NULL,
                      NULL) == 2);
    CHECK(next == view->end && offsets[1] == 0 && indexes[1] == 0);

    mapped = s->segments[0];
    s->segments[0] = NULL;
    CHECK(ts_dispatch(view, &s->known, NULL, 0, 0, &next, 3, units, indexes, offsets, NULL, NULL,
                      NULL) ==
          TS_NEED_SEGMENT && view->need == 0);
    CHECK(ts_scan(view, &s->known, 1000, 0, &next, 1, &scanned) == TS_NEED_SEGMENT);
    CHECK(ts_timer_requests(view, units, 1, 0, &s->states, STORE_ID, 1000,
                            &request) == TS_NEED_SEGMENT);
    CHECK(ts_due_load(view, &s->states, STORE_ID, 1000, 1, &chained, 1, &due) == TS_NEED_SEGMENT);
    s->segments[0] = (uint8_t *)(uintptr_t)mapped;
    CHECK(ts_timer_requests(view, units, 1, 0, &s->states, STORE_ID, 1000, &request) == 1);
    CHECK(ts_timer_requests(view, units, 1, 1, &s->states, STORE_ID, 1000, &request) == TS_CORRUPT);
    CHECK(ts_timer_requests(view, units, 1, 0, &s->states, 5, 1000, &request) == 1 &&
          request.id == 0);
    chained.size = request.size;
    CHECK(ts_due_load(view, &s->states, STORE_ID, 1000, s->now_ms / 1000 + 1, &chained, 1, &due) ==
          1 && view->need == 1 && due.id == 0 && due.due_ms == s->now_ms + 5);
    free(big);
    free_store(s);
}

/* Check that a log cut anywhere in a group ends where the group begins, and that inconsistent
 * records make no group. */
static void test_groups(int32_t property_crc, int32_t pad)
{
    const shape is = {1000, 1 << 14, 4096, 64, 1700000000000, property_crc};
    store *s = make_store(&is);
    ts_scanned out[4];
    uint8_t *whole = bytes_of(is.segment_bytes), body[600] = {0};
    int64_t start, middle, end, next;

    for (int32_t i = 0; i < ROUTES; i++)
        know_route(s, i);
    CHECK(ts_put_one(&s->log, s->routes, body, pad, 0, NULL, 0, s->now_ms) == 0);
    put_one(s, 0, s->now_ms + 5000);
    start = log_end(s);
    reschedule(s, 0, s->now_ms + 9000);
    CHECK(s->log.reschedule_count == 1 && s->states.pending == 1 && s->routes[0].pending == 1);
    end = log_end(s);
    s->view.end = end;
    CHECK(ts_scan(&s->view, &s->known, 1000, 0, &next, 4, out) == 4 && next == end);
    CHECK(s->view.group_start == start && s->view.group_end == end);
    CHECK(out[2].kind == TS_KIND_DELETE && out[2].timer_id == 0 && out[3].timer_id == 2);
    middle = out[3].log_offset;
    memcpy(whole, s->segments[0], (size_t)is.segment_bytes);
    for (int64_t cut = start + 1; cut <= end; cut++) { /* zeros from here on */
        if (cut % 512 != 0 && cut != end)
            continue; /* a multiple of a sector: a record that lost its end lost its own CRC, too */
        memset(s->segments[0] + cut, 0, (size_t)(end - cut));
        s->view.end = is.segment_bytes;
        s->view.group_end = 0;
        CHECK(ts_scan(&s->view, &s->known, 1000, 0, &next, 4, out) >= 1);
        CHECK(cut == end ? s->view.group_end == next : next == start || s->view.group_end > next);
        CHECK(next == start || s->view.group_start == start);
        memcpy(s->segments[0] + start, whole + start, (size_t)(end - start));
    }
    s->view.end = end;
    s->view.group_end = 0; /* in batches of one, the group stays open between them */
    CHECK(ts_scan(&s->view, &s->known, 1000, start, &next, 1, out) == 1 && next == middle);
    CHECK(s->view.group_start == start && s->view.group_end == end);
    CHECK(ts_scan(&s->view, &s->known, 1000, middle, &next, 1, out) == 1);
    CHECK(s->view.group_end == next);
    s->view.group_end = 0; /* the second record alone opens no group */
    CHECK(ts_scan(&s->view, &s->known, 1000, middle, &next, 1, out) == 1);
    CHECK(s->view.group_end == 0);
    s->log.filled = middle; /* another record in place of the second */
    s->filled_mark = 0;
    CHECK(ts_put_one(&s->log, s->routes, body, 12, 0, NULL, 0, s->now_ms) == middle);
    s->view.end = log_end(s);
    CHECK(ts_scan(&s->view, &s->known, 1000, start, &next, 4, out) == 2);
    CHECK(s->view.group_end == 0 && next == s->view.end);
    free(whole);
    free_store(s);
}

int main(void)
{
    test_needs();
    for (int32_t pad = 0; pad < 600; pad += 8)
        test_groups(pad / 8 % 2, pad);
    puts("test_append: ok");
    return 0;
}
