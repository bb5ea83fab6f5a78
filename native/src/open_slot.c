/* The open slot: loaded entries in order of (wake time, timer id).
 *
 * A slot is loaded thousands of entries at a time: they are sorted once, by counting, and lie in a
 * run from which they are taken in turn. What comes one by one (late puts, what rolled back) goes to
 * the heap. A pop takes the least of the runs' first entries and the heap's. Sorting and taking cost
 * about 40 ns an entry, a heap of all of them 230 ns (one million, 16,384 a batch).
 */
#include "open_slot.h"

#include "parse.h"

enum { DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS };

/* ---- sorting ---- */

typedef struct {
    uint64_t least, most;
} span;

static void widen(span *range, int64_t value)
{
    uint64_t ordered = (uint64_t)value ^ (uint64_t)1 << 63; /* in the order of signed numbers */

    if (ordered < range->least)
        range->least = ordered;
    if (ordered > range->most)
        range->most = ordered;
}

static uint64_t field(const ts_heap_key *key, int32_t by_id, const span *range)
{
    return ((uint64_t)(by_id ? key->id : key->wake_ms) ^ (uint64_t)1 << 63) - range->least;
}

/* One counting pass: stable, by the digit of one field that begins at bit `shift`. */
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
    for (int32_t by_id = 1; by_id >= 0 && count > 0; by_id--) { /* the stronger one last */
        const span *of = &ranges[by_id];

        for (int32_t shift = 0; shift < 64 && (of->most - of->least) >> shift; shift += DIGIT_BITS) {
            sort_pass(from, to, count, by_id, of, shift);
            swap = from;
            from = to;
            to = swap;
        }
    }
    for (int64_t i = 0; i < count; i++)
        out[i] = in[from[i].at];
}

void ts_run_merge(const ts_run *a, const ts_run *b, ts_due *out)
{
    const ts_due *x = a->entries + a->at, *x_end = a->entries + a->end;
    const ts_due *y = b->entries + b->at, *y_end = b->entries + b->end;

    while (x < x_end && y < y_end)
        *out++ = ts_due_before(y, x) ? *y++ : *x++;
    while (x < x_end)
        *out++ = *x++;
    while (y < y_end)
        *out++ = *y++;
}

/* ---- taking ---- */

/* The least entry, and the run it lies in; NULL there where it lies in the heap. */
static const ts_due *least_of(const ts_open *open, ts_run **in, ts_run *runs)
{
    const ts_due *least = NULL;

    *in = NULL;
    if (open->heap.count > 0)
        least = &open->heap.entries[open->heap.keys[0].at];
    for (int64_t i = 0; i < open->run_count; i++) {
        ts_run *run = &runs[i];

        if (run->at < run->end && (least == NULL || ts_due_before(&run->entries[run->at], least))) {
            least = &run->entries[run->at];
            *in = run;
        }
    }
    return least;
}

int64_t ts_open_wake(const ts_open *open)
{
    ts_run *in;
    const ts_due *least = least_of(open, &in, (ts_run *)(uintptr_t)open->runs);

    return least == NULL ? INT64_MAX : least->wake_ms;
}

int64_t ts_open_pop(ts_open *open, int64_t until_ms, int64_t frontier, int64_t precision_ms,
                    ts_due *out, int64_t capacity)
{
    ts_heap *heap = &open->heap;
    int64_t popped = 0;

    open->is_full = 0;
    while (popped < capacity) {
        ts_run *run;
        const ts_due *least = least_of(open, &run, open->runs);
        ts_due *entry = &out[popped];
        int32_t rolls_no_more;

        if (least == NULL || least->wake_ms > until_ms)
            break;
        *entry = *least;
        /* Its own slot has been loaded meanwhile. */
        rolls_no_more = (entry->flags & TS_FLAG_ROLL) &&
                        ts_slot_of(entry->due_ms, precision_ms) < frontier;
        if (rolls_no_more && run != NULL && heap->count == heap->capacity) {
            open->is_full = 1;
            break;
        }
        if (run != NULL)
            run->at++;
        else
            ts_heap_drop(heap);
        if (rolls_no_more) {
            entry->flags &= ~TS_FLAG_ROLL;
            if (entry->due_ms > entry->wake_ms) {
                entry->wake_ms = entry->due_ms;
                ts_heap_push(heap, entry, 1);
                continue;
            }
        }
        popped++;
    }
    return popped;
}
