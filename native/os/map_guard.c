/* Maps of files that somebody may cut while they are mapped: the fault is answered with a page of zeros,
 * and noted, so that the process lives on and the store that used the map is told.
 *
 * The kernel sends SIGBUS to the thread that touches a page behind its file's end. The handler puts a
 * page of its own in that place; no record, unit or used slot is made of zeros, and whoever looks at
 * the count of faults afterwards raises an error instead of what it read. Faults elsewhere go to the
 * handler that was there before.
 *
 * What api.h says of C is not so here: this keeps a table, since a handler can be handed nothing, and
 * calls the system. Adding and removing happen under a lock of storage/guarded_map.py; the handler, in any
 * thread at any time, reads. Decision 0035.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "timerstore.h"

enum { RANGES = 16384 };

typedef struct {
    uintptr_t begin; /* 0: unused */
    uintptr_t end;
    int32_t is_hit;
} range;

static range ranges[RANGES];
static int32_t used;       /* ranges beyond were never used */
static int32_t hits;       /* faults so far */
static uintptr_t page_bytes;
static struct sigaction before;

/* A page of zeros where the fault was; 0 where that is none of ours, or cannot be had. */
static int32_t give_page(uintptr_t at)
{
    int32_t count = __atomic_load_n(&used, __ATOMIC_ACQUIRE);

    for (int32_t i = 0; i < count; i++) {
        uintptr_t begin = __atomic_load_n(&ranges[i].begin, __ATOMIC_ACQUIRE);
        void *page;

        if (begin == 0 || at < begin || at >= __atomic_load_n(&ranges[i].end, __ATOMIC_RELAXED))
            continue;
        page = (void *)(at / page_bytes * page_bytes);
        if (mmap(page, page_bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
            return 0;
        __atomic_store_n(&ranges[i].is_hit, 1, __ATOMIC_RELAXED);
        __atomic_add_fetch(&hits, 1, __ATOMIC_RELEASE);
        return 1;
    }
    return 0;
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    struct sigaction usual = {.sa_handler = SIG_DFL};
    int saved = errno;

    if (info->si_code != BUS_ADRERR || !give_page((uintptr_t)info->si_addr)) {
        /* One that was sent, as a handler does that has told of a fault: nobody is asked twice. */
        int is_sent = info->si_code <= 0;

        if (!is_sent && (before.sa_flags & SA_SIGINFO) != 0) {
            before.sa_sigaction(number, info, context);
        } else if (!is_sent && before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
            before.sa_handler(number);
        } else {
            sigaction(number, &usual, NULL); /* on return the fault happens again, and ends us */
            if (is_sent)
                raise(number);
        }
    }
    errno = saved;
}

int32_t ts_guard_install(void)
{
    struct sigaction now, ours = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};

    page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    if (sigaction(SIGBUS, NULL, &now) != 0)
        return -errno;
    if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_fault)
        return 0;
    before = now;
    sigemptyset(&ours.sa_mask);
    return sigaction(SIGBUS, &ours, NULL) == 0 ? 0 : -errno;
}

const int32_t *ts_guard_hits(void)
{
    return &hits;
}

int32_t ts_guard_add(const uint8_t *at, int64_t size)
{
    for (int32_t i = 0; i < RANGES; i++) {
        if (ranges[i].begin != 0)
            continue;
        ranges[i].end = (uintptr_t)at + (uintptr_t)size;
        ranges[i].is_hit = 0;
        __atomic_store_n(&ranges[i].begin, (uintptr_t)at, __ATOMIC_RELEASE);
        if (i >= used)
            __atomic_store_n(&used, i + 1, __ATOMIC_RELEASE);
        return i;
    }
    return TS_FULL;
}

int32_t ts_guard_is_hit(int32_t number)
{
    return __atomic_load_n(&ranges[number].is_hit, __ATOMIC_ACQUIRE);
}

void ts_guard_remove(int32_t number)
{
    __atomic_store_n(&ranges[number].begin, 0, __ATOMIC_RELEASE);
}
