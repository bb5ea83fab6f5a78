/* The calendar, compared with plain arrays: any order of additions and removals, any bucket, any
 * table size. */
#include "check.h"
#include "timer/calendar.h"

enum { CELLS = 1 << 12, SECONDS = 9000, TOPICS = 3 };

static ts_calendar_cell memory[2][2 * CELLS];
static int64_t wanted[TOPICS + 1][SECONDS];
static int64_t got[SECONDS];

static void compare(const ts_calendar *calendar, int64_t base_s)
{
    static const int64_t units[] = {1, 60, 3600};

    for (int64_t topic = 0; topic <= TOPICS; topic++) {
        for (int32_t u = 0; u < 3; u++) {
            int64_t first = base_s / units[u], count = SECONDS / units[u];

            ts_calendar_read(calendar, topic, units[u], first, count, got);
            for (int64_t i = 0; i < count; i++) {
                int64_t sum = 0;

                for (int64_t k = i * units[u]; k < (i + 1) * units[u]; k++)
                    sum += wanted[topic][k];
                CHECK(got[i] == sum);
            }
        }
    }
}

static void run(uint32_t seed, int64_t base_s, int32_t steps)
{
    ts_calendar calendar = {memory[0], CELLS - 1, 0, CELLS * 5 / 8, NULL};
    ts_calendar larger = {memory[1], 2 * CELLS - 1, 0, 2 * CELLS * 5 / 8, NULL};
    ts_route routes[TOPICS];

    memset(memory, 0, sizeof memory);
    memset(wanted, 0, sizeof wanted);
    memset(routes, 0, sizeof routes);
    for (int32_t t = 0; t < TOPICS; t++)
        routes[t].topic_number = t + 1;
    srand(seed);
    for (int32_t i = 0; i < steps && ts_calendar_has_space(&calendar, 1); i++) {
        int32_t topic = rand() % TOPICS;
        int64_t second = rand() % 4 ? rand() % 40 : rand() % SECONDS;
        int64_t by = wanted[topic + 1][second] > 0 && rand() % 3 == 0 ? -1 : 1;

        ts_calendar_add(&calendar, &routes[topic], (base_s + second) * 1000 + rand() % 1000, by);
        wanted[topic + 1][second] += by;
        wanted[0][second] += by;
    }
    CHECK(calendar.used <= calendar.limit);
    compare(&calendar, base_s);
    CHECK(ts_calendar_move(&larger, &calendar) <= calendar.used);
    compare(&larger, base_s);
}

int main(void)
{
    ts_calendar tiny = {memory[0], 63, 0, 40, NULL};
    ts_route route;

    for (uint32_t seed = 0; seed < 40; seed++)
        run(seed, 3600 * (int64_t)(seed % 7) * 60000, seed % 2 ? 100 : 4000);
    memset(memory, 0, sizeof memory);
    memset(&route, 0, sizeof route);
    route.topic_number = 1;
    CHECK(ts_calendar_has_space(NULL, 1000000));
    CHECK(ts_calendar_has_space(&tiny, 10) && !ts_calendar_has_space(&tiny, 11));
    ts_calendar_add(&tiny, &route, INT64_MAX, 1); /* past what a key holds, and before 1970 */
    ts_calendar_add(&tiny, &route, -5, 1);
    ts_calendar_read(&tiny, 1, 1, 0, 1, got);
    CHECK(got[0] == 1);
    CHECK(tiny.used == 8); /* the far one is counted at the last number */
    puts("test_calendar: ok");
    return 0;
}
