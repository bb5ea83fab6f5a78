/* The whole way of a message in memory, from a put to a pull, with random steps. */
#include "store.h"

static void test_way(const shape *is, uint64_t seed, int64_t *seen)
{
    store *s = make_store(is);

    for (int32_t round = 0; round < 120; round++) {
        if (round < 60) {
            put_many(s, &seed, check_below(&seed, REAL), 1 + check_below(&seed, 12),
                     (int32_t)is->precision_ms * (1 + check_below(&seed, 60)));
            put_one(s, check_below(&seed, REAL),
                    s->now_ms + check_below(&seed, (int32_t)is->precision_ms * 3));
            for (int32_t i = check_below(&seed, 4); i > 0; i--) {
                int64_t id = check_below(&seed, (int32_t)s->routes[TIMER].next_offset + 1);
                if (s->due_ms[id] != 0 && check_below(&seed, 2))
                    cancel(s, id);
                else if (s->due_ms[id] != 0)
                    reschedule(s, id, s->now_ms - is->precision_ms * 9 +
                                          check_below(&seed, (int32_t)is->precision_ms * 90));
            }
        }
        if (round == 50)
            check_scan(s);
        if (check_below(&seed, 5)) /* else the services are late */
            step(s, &seed);
        s->now_ms += check_below(&seed, (int32_t)is->precision_ms * 2);
    }
    CHECK(s->cuts > 3 && log_end(s) > is->segment_bytes);
    for (int32_t round = 0; round < 200 && s->states.pending > 0; round++) {
        step(s, &seed);
        s->now_ms += is->precision_ms;
    }
    check_end(s);
    seen[0] += s->rolled;
    seen[1] += s->late;
    seen[2] += s->routes[TIMER].next_offset;
    free_store(s);
}

int main(void)
{
    static const shape shapes[] = {
        {1000, 1 << 14, 52 * 11 + 20, 64, 1700000000000, 1},
        {1000, 1 << 15, 52 * 7 + 16, 40, 1700000000123, 0},
        {100, 1 << 14, 4096, 64, 1700000000050, 1},
        {1000, 1 << 14, 52 * 5 + 67, 64, 900000000000000123, 1}, /* a clock may show any time */
    };
    int64_t seen[3] = {0};

    for (uint64_t seed = 1; seed <= 12; seed++)
        test_way(&shapes[seed % 4], seed, seen);
    CHECK(seen[0] > 100 && seen[1] > 100 && seen[2] > 2000); /* rolled, late, all */
    puts("test_engine: ok");
    return 0;
}
