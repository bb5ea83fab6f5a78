/* The open slot: a binary heap of due entries by (wake time, timer id). */
#include "../timerstore.h"
#include "parse.h"

static int32_t before(const ts_due *a, const ts_due *b)
{
    return a->wake_ms != b->wake_ms ? a->wake_ms < b->wake_ms : a->id < b->id;
}

static void push_one(ts_heap *heap, const ts_due *entry)
{
    int64_t at = heap->count++;

    while (at > 0) {
        int64_t parent = (at - 1) / 2;
        if (!before(entry, &heap->entries[parent]))
            break;
        heap->entries[at] = heap->entries[parent];
        at = parent;
    }
    heap->entries[at] = *entry;
}

static void drop_top(ts_heap *heap)
{
    ts_due last = heap->entries[--heap->count];
    int64_t at = 0;

    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= heap->count)
            break;
        if (child + 1 < heap->count && before(&heap->entries[child + 1], &heap->entries[child]))
            child++;
        if (!before(&heap->entries[child], &last))
            break;
        heap->entries[at] = heap->entries[child];
        at = child;
    }
    if (heap->count > 0)
        heap->entries[at] = last;
}

void ts_heap_push(ts_heap *heap, const ts_due *in, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        push_one(heap, &in[i]);
}

int64_t ts_heap_pop(ts_heap *heap, int64_t until_ms, int64_t frontier, int64_t precision_ms,
                    ts_due *out, int64_t capacity)
{
    int64_t popped = 0;

    while (popped < capacity && heap->count > 0 && heap->entries[0].wake_ms <= until_ms) {
        ts_due top = heap->entries[0];

        drop_top(heap);
        if ((top.flags & TS_FLAG_ROLL) && ts_slot_of(top.due_ms, precision_ms) < frontier) {
            top.flags &= ~TS_FLAG_ROLL; /* its own slot has been loaded meanwhile: no roll */
            if (top.due_ms > top.wake_ms) {
                top.wake_ms = top.due_ms;
                push_one(heap, &top);
                continue;
            }
        }
        out[popped++] = top;
    }
    return popped;
}
