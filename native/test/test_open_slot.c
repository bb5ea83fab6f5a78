/* The open slot: runs and heap together, in order, including entries that no longer roll. */
#include "store.h"

/* Add a batch to the open slot, as a run or one by one. */
static void open_push(ts_open *open, const ts_due *in, int32_t count, int32_t as_run)
{
    ts_heap_key *keys;
    ts_due *entries;

    if (!as_run) {
        ts_heap_push(&open->heap, in, count);
        return;
    }
    keys = bytes_of(2 * (count + 1) * (int64_t)sizeof *keys);
    entries = bytes_of((count + 1) * (int64_t)sizeof *entries);
    ts_run_sort(in, count, keys, entries);
    open->runs[open->run_count++] = (ts_run){entries, 0, count};
    free(keys);
}

static int64_t open_count(const ts_open *open)
{
    int64_t count = open->heap.count;

    for (int64_t i = 0; i < open->run_count; i++)
        count += open->runs[i].end - open->runs[i].at;
    return count;
}

/* Merge the last few runs into one. */
static void open_merge(ts_open *open, int64_t run_count)
{
    ts_run *runs = &open->runs[open->run_count - run_count];
    int64_t count = 0;
    ts_due *entries;

    for (int64_t i = 0; i < run_count; i++)
        count += runs[i].end - runs[i].at;
    entries = bytes_of((count + 1) * (int64_t)sizeof *entries);
    ts_runs_merge(runs, run_count, entries);
    for (int64_t i = 0; i < run_count; i++)
        free((void *)(uintptr_t)runs[i].entries);
    *runs = (ts_run){entries, 0, count};
    open->run_count -= run_count - 1;
}

static void check_order(const ts_due *out, int64_t got, int64_t until)
{
    for (int64_t i = 0; i < got; i++) {
        CHECK(out[i].wake_ms <= until);
        CHECK(i == 0 || out[i - 1].wake_ms < out[i].wake_ms ||
              (out[i - 1].wake_ms == out[i].wake_ms && out[i - 1].id <= out[i].id));
    }
}

static void test_open(void)
{
    enum { CAPACITY = 100, MANY = 5000 };
    uint64_t seed = 3;
    ts_open open = {.run_count = 0};
    ts_due *in = bytes_of(MANY * (int64_t)sizeof *in), *out = bytes_of(MANY * (int64_t)sizeof *out);

    make_heap(&open.heap, CAPACITY);
    for (int32_t round = 0; round < 2000; round++) {
        int32_t as_run = check_below(&seed, 2) && open.run_count < 8;
        int32_t count = as_run ? check_below(&seed, check_below(&seed, 20) ? 40 : MANY)
                               : check_below(&seed, CAPACITY - (int32_t)open.heap.count + 1);
        int64_t had, until = check_below(&seed, 30), got, scale = check_below(&seed,
                                                                              3) ? 1 : 1000003;

        for (int32_t i = 0; i < count; i++)
            in[i] = (ts_due){.wake_ms = check_below(&seed, 30) - check_below(&seed,
                                                                             30) * (scale > 1),
                             .id = check_below(&seed, 1000) * scale};
        open_push(&open, in, count, as_run);
        if (open.run_count > 1 && check_below(&seed, 3) == 0)
            open_merge(&open, 2 + check_below(&seed, (int32_t)open.run_count - 1));
        had = open_count(&open);
        got = ts_open_pop(&open, until, 0, 1000, out, 1 + check_below(&seed, MANY));
        CHECK(open_count(&open) == had - got && !open.is_full);
        CHECK(open.heap.count + open.heap.unused_count == CAPACITY);
        check_order(out, got, until);
        CHECK(got == 0 || ts_open_wake(&open) >= out[got - 1].wake_ms);
    }
    while (ts_open_pop(&open, INT64_MAX, 0, 1000, out, MANY) > 0) {
    }
    CHECK(open_count(&open) == 0 && ts_open_wake(&open) == INT64_MAX);
    in[0] = (ts_due){.wake_ms = 10, .due_ms = 25, .id = 1, .flags = TS_FLAG_ROLL};
    in[1] = (ts_due){.wake_ms = 10, .due_ms = 5000, .id = 2, .flags = TS_FLAG_ROLL};
    for (int32_t as_run = 0; as_run < 2; as_run++) {
        open_push(&open, in, 2, as_run); /* the first one's own slot is loaded, so it waits */
        CHECK(ts_open_pop(&open, 20, 1, 1000, out, CAPACITY) == 1 && out[0].id == 2 &&
              out[0].flags);
        CHECK(ts_open_pop(&open, 24, 1, 1000, out, CAPACITY) == 0 && ts_open_wake(&open) == 25);
        CHECK(ts_open_pop(&open, 25, 1, 1000, out, CAPACITY) == 1 && out[0].id == 1);
        CHECK(!out[0].flags);
    }
    for (int32_t i = 0; i < CAPACITY; i++)
        out[i] = (ts_due){.wake_ms = 99, .due_ms = 99, .id = i};
    ts_heap_push(&open.heap, out, CAPACITY); /* no space for an entry that no longer rolls */
    open_push(&open, in, 1, 1);
    CHECK(ts_open_pop(&open, 20, 1, 1000, out, 9) == 0 && open.is_full);
    free_open(&open);
    free(in);
    free(out);
}

int main(void)
{
    test_open();
    puts("test_open_slot: ok");
    return 0;
}
