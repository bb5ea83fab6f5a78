/* The open slot: loaded entries in order of (wake time, timer id).
 *
 * A slot is loaded thousands of entries at a time. They are sorted once, with a counting sort, into
 * a run, and taken from it in turn. Single entries (late puts, cancelled rolls) go to the heap. A
 * pop takes the least of the first entries of all runs and the heap. It continues with the same run
 * for as long as its entries precede all others.
 */
#include "timer/open_slot.h"

#include "log/parse.h"

enum { DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS };

typedef struct {
    uint64_t least, most;
} span;

static void widen(span *range, int64_t value)
{
    uint64_t ordered = (uint64_t)value ^ (uint64_t)1 << 63; /* ordered like signed numbers */

    if (ordered < range->least)
        range->least = ordered;
    if (ordered > range->most)
        range->most = ordered;
}

static uint64_t field(const ts_heap_key *key, int32_t by_id, const span *range)
{
    return ((uint64_t)(by_id ? key->id : key->wake_ms) ^ (uint64_t)1 << 63) - range->least;
}

/* One pass of a stable counting sort, by the digit of one field that begins at bit `shift`. */
static void sort_pass(const ts_heap_key *from, ts_heap_key *to, int64_t count, int32_t by_id,
                      const span *range, int32_t shift)
{
    int64_t starts[DIGITS] = {0}, sum = 0;

    for (int64_t i = 0; i < count; i++)
        starts[field(&from[i], by_id, range) >> shift & (DIGITS - 1)]++;
    for (int32_t digit = 0; digit < DIGITS; digit++) {
        int64_t here = starts[digit];
        starts[digit] = sum;
        sum += here;
    }
    for (int64_t i = 0; i < count; i++)
        to[starts[field(&from[i], by_id, range) >> shift & (DIGITS - 1)]++] = from[i];
}

void ts_run_sort(const ts_due *in, int64_t count, ts_heap_key *keys, ts_due *out)
{
    ts_heap_key *from = keys, *to = keys + count, *swap;
    span ranges[2] = {{UINT64_MAX, 0}, {UINT64_MAX, 0}};

    for (int64_t i = 0; i < count; i++) {
        keys[i] = (ts_heap_key){in[i].wake_ms, in[i].id, i};
        widen(&ranges[0], in[i].wake_ms);
        widen(&ranges[1], in[i].id);
    }
    for (int32_t by_id = 1; by_id >= 0 && count > 0; by_id--) { /* the more significant field
                                                                 * last */
        const span *of = &ranges[by_id];

        for (int32_t shift = 0; shift < 64 &&
             (of->most - of->least) >> shift; shift += DIGIT_BITS) {
            sort_pass(from, to, count, by_id, of, shift);
            swap = from;
            from = to;
            to = swap;
        }
    }
    for (int64_t i = 0; i < count; i++)
        out[i] = in[from[i].at];
}

typedef struct {
    const ts_due *least;
    const ts_due *next; /* the least entry of the other sources; NULL: they are empty */
    ts_run *run;        /* the source of `least`; NULL: the heap */
} first;

static void look_at(first *found, const ts_due *entry, ts_run *run)
{
    if (found->least == NULL || ts_due_before(entry, found->least)) {
        found->next = found->least;
        found->least = entry;
        found->run = run;
    } else if (found->next == NULL || ts_due_before(entry, found->next)) {
        found->next = entry;
    }
}

static first first_of(const ts_heap *heap, ts_run *runs, int64_t run_count)
{
    first found = {NULL, NULL, NULL};

    if (heap != NULL && heap->count > 0)
        look_at(&found, &heap->entries[heap->keys[0].at], NULL);
    for (int64_t i = 0; i < run_count; i++) {
        if (runs[i].at < runs[i].end)
            look_at(&found, &runs[i].entries[runs[i].at], &runs[i]);
    }
    return found;
}

/* Return whether the run's next entry precedes those of all other sources. Messages that were put
 * in sequence are in one run, so many with equal due times follow. */
static int32_t run_continues(const first *found)
{
    const ts_run *run = found->run;

    return run->at < run->end &&
           (found->next == NULL || !ts_due_before(found->next, &run->entries[run->at]));
}

void ts_runs_merge(const ts_run *runs, int64_t count, ts_due *out)
{
    ts_run left[TS_RUNS_MAX];
    first found;

    memcpy(left, runs, (size_t)count * sizeof *runs);
    while ((found = first_of(NULL, left, count)).least != NULL) {
        do
            *out++ = found.run->entries[found.run->at++];
        while (run_continues(&found));
    }
}

int64_t ts_open_wake(const ts_open *open)
{
    first found = first_of(&open->heap, (ts_run *)(uintptr_t)open->runs, open->run_count);

    return found.least == NULL ? INT64_MAX : found.least->wake_ms;
}

enum { TAKEN, PUT_BACK, NO_SPACE };

/* Take the first entry. If its own slot has been loaded since, the entry does not roll any more:
 * put it back, to the heap, until it is due. */
static int32_t take(ts_open *open, ts_run *run, int64_t read_slot, int64_t precision_ms,
                    ts_due *entry)
{
    ts_heap *heap = &open->heap;
    int32_t rolls_no_more = (entry->flags & TS_FLAG_ROLL) &&
                            ts_slot_of(entry->due_ms, precision_ms) < read_slot;

    if (rolls_no_more && run != NULL && heap->count == heap->capacity)
        return NO_SPACE;
    if (run != NULL)
        run->at++;
    else
        ts_heap_drop(heap);
    if (!rolls_no_more)
        return TAKEN;
    entry->flags &= ~TS_FLAG_ROLL;
    if (entry->due_ms <= entry->wake_ms)
        return TAKEN;
    entry->wake_ms = entry->due_ms;
    ts_heap_push(heap, entry, 1);
    return PUT_BACK;
}

int64_t ts_open_pop(ts_open *open, int64_t until_ms, int64_t read_slot, int64_t precision_ms,
                    ts_due *out, int64_t capacity)
{
    first found = {NULL, NULL, NULL};
    int32_t status = PUT_BACK;
    int64_t popped = 0;

    while (popped < capacity && status != NO_SPACE) {
        if (status == TAKEN && found.run != NULL && run_continues(&found))
            found.least = &found.run->entries[found.run->at];
        else
            found = first_of(&open->heap, open->runs, open->run_count);
        if (found.least == NULL || found.least->wake_ms > until_ms)
            break;
        out[popped] = *found.least;
        status = take(open, found.run, read_slot, precision_ms, &out[popped]);
        popped += status == TAKEN;
    }
    open->is_full = status == NO_SPACE;
    return popped;
}
