/* A heap of due entries by (wake time, timer id).
 *
 * A node has four children, and keys are separate from entries: one step down reads two cache lines
 * and moves 24 bytes. As a binary heap of whole entries a pop took 330 ns with 60,000 entries.
 */
#include "timer/open_slot.h"

enum { CHILDREN = 4 };

static inline int32_t key_before(const ts_heap_key *a, const ts_heap_key *b)
{
    return a->wake_ms != b->wake_ms ? a->wake_ms < b->wake_ms : a->id < b->id;
}

static void push_key(ts_heap *heap, const ts_heap_key *key)
{
    int64_t at = heap->count++;

    while (at > 0) {
        int64_t parent = (at - 1) / CHILDREN;
        if (!key_before(key, &heap->keys[parent]))
            break;
        heap->keys[at] = heap->keys[parent];
        at = parent;
    }
    heap->keys[at] = *key;
}

static void drop_top(ts_heap *heap)
{
    ts_heap_key last = heap->keys[--heap->count];
    int64_t at = 0;

    for (;;) {
        int64_t child = CHILDREN * at + 1, end = child + CHILDREN, least = child;
        if (child >= heap->count)
            break;
        for (child++; child < end && child < heap->count; child++) {
            if (key_before(&heap->keys[child], &heap->keys[least]))
                least = child;
        }
        if (!key_before(&heap->keys[least], &last))
            break;
        heap->keys[at] = heap->keys[least];
        at = least;
    }
    heap->keys[at] = last;
}

void ts_heap_push(ts_heap *heap, const ts_due *in, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        ts_heap_key key = {in[i].wake_ms, in[i].id, heap->unused[--heap->unused_count]};

        heap->entries[key.at] = in[i];
        push_key(heap, &key);
    }
}

ts_due *ts_heap_drop(ts_heap *heap)
{
    int64_t at = heap->keys[0].at;

    drop_top(heap);
    if (heap->count > 0)
        __builtin_prefetch(&heap->entries[heap->keys[0].at]);
    heap->unused[heap->unused_count++] = at;
    return &heap->entries[at];
}
