/* A handler for SIGBUS, for maps of files that another process truncates while they are mapped
 * (docs/decisions/0013-locks-and-re-entry.md).
 *
 * The kernel sends SIGBUS to a thread that reads a mapped page past its file's end. The handler
 * maps a page of zeros in its place and counts the fault, so that the process survives. No valid
 * record, unit or used slot consists of zeros. Readers check the number of faults afterwards, and
 * raise an error instead of returning what they read. Faults at other addresses go to the handler
 * that was installed before.
 *
 * Unlike all other C files, this one keeps a table between calls, because a signal handler gets no
 * arguments of ours. Ranges are added and removed under a lock of storage/guarded_map.py. The
 * handler reads the table, in any thread at any time.
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
static int32_t used;       /* ranges from here on were never used */
static int32_t hits;       /* faults so far */
static uintptr_t page_bytes;
static struct sigaction before;

/* Map a page of zeros at the fault. Return 0 if the address is not ours, or on failure. */
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
        /* A signal that was sent by raise() or kill(), for example by a handler that has reported a
         * fault. It is not forwarded a second time, but ends the process. */
        int is_sent = info->si_code <= 0;

        if (!is_sent && (before.sa_flags & SA_SIGINFO) != 0) {
            before.sa_sigaction(number, info, context);
        } else if (!is_sent && before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
            before.sa_handler(number);
        } else {
            sigaction(number, &usual, NULL); /* on return the fault repeats and ends the process */
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
