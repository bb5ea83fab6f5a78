/* Run a target without libFuzzer: on files and folders of inputs; then, with -seconds=n, on
 * randomly changed inputs. For compilers without libFuzzer, and for the corpora in CI. */
#define _GNU_SOURCE
#include <dirent.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "fuzz.h"

enum { INPUTS_MAX = 65536, INPUT_BYTES_MAX = 1 << 16 };

typedef struct {
    uint8_t *bytes;
    size_t size;
} input;

static input inputs[INPUTS_MAX];
static int32_t input_count;
static const uint8_t *running; /* the current input, reported on a crash */
static size_t running_size;

static void run(const uint8_t *bytes, size_t size)
{
    uint8_t *copy = check_copy(bytes, size); /* of exactly its size, so that a read past it is
                                              * detected */

    running = copy;
    running_size = size;
    LLVMFuzzerTestOneInput(copy, size);
    running = NULL;
    free(copy);
}

static void run_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    uint8_t *bytes = malloc(INPUT_BYTES_MAX);
    size_t size;

    CHECK(file != NULL && bytes != NULL);
    size = fread(bytes, 1, INPUT_BYTES_MAX, file);
    fclose(file);
    run(bytes, size);
    if (input_count < INPUTS_MAX)
        inputs[input_count++] = (input){bytes, size};
    else
        free(bytes);
}

static void run_path(const char *path)
{
    struct stat status;
    DIR *folder;
    struct dirent *one;
    char name[4096];

    CHECK(stat(path, &status) == 0);
    if (!S_ISDIR(status.st_mode)) {
        run_file(path);
        return;
    }
    folder = opendir(path);
    CHECK(folder != NULL);
    while ((one = readdir(folder)) != NULL) {
        if (one->d_name[0] == '.')
            continue;
        CHECK((size_t)snprintf(name, sizeof name, "%s/%s", path, one->d_name) < sizeof name);
        run_path(name);
    }
    closedir(folder);
}

static size_t change(uint8_t *bytes, size_t size, uint64_t *seed)
{
    static const uint64_t odd[] = {0, 1, 0xFF, 0x7F, 0x80, UINT32_MAX, INT32_MAX, UINT64_MAX,
                                   INT64_MAX, 0x8000000000000000u, 20, 52, 91};
    size_t at = check_random(seed) % (size + 1), width = (size_t)1 << check_random(seed) % 4;
    uint64_t value = odd[check_random(seed) % (sizeof odd / sizeof *odd)];
    const input *other = &inputs[check_random(seed) % (uint32_t)input_count];

    switch (check_random(seed) % 5) {
    case 0:
        if (at < size)
            bytes[at] ^= (uint8_t)(1u << check_random(seed) % 8);
        return size;
    case 1:
        for (size_t i = 0; i < width && at + i < size; i++)
            bytes[at + i] = (uint8_t)(value >> 8 * (width - 1 - i));
        return size;
    case 2:
        return at;
    case 3: /* the rest comes from another input */
        if (at >= other->size)
            return size;
        memcpy(bytes + at, other->bytes + at, other->size - at);
        return other->size;
    default:
        width *= 1 + check_random(seed) % 64;
        if (size + width > INPUT_BYTES_MAX)
            return size;
        memmove(bytes + at + width, bytes + at, size - at);
        return size + width;
    }
}

/* Report the current input before a sanitizer or a CHECK ends the process. */
static void report(void)
{
    FILE *file;

    if (running == NULL)
        return;
    file = fopen("crash-replay", "wb");
    if (file != NULL) {
        fwrite(running, 1, running_size, file);
        fclose(file);
    }
    fprintf(stderr, "the input, %zu bytes, is in ./crash-replay\n", running_size);
}

void __asan_on_error(void);
void __asan_on_error(void)
{
    report();
}

static int64_t change_for(long seconds, uint64_t seed)
{
    time_t end = time(NULL) + seconds;
    uint8_t *bytes = malloc(INPUT_BYTES_MAX);
    int64_t count = 0;

    for (; input_count > 0 && ((count & 255) != 0 || time(NULL) < end); count++) {
        const input *from = &inputs[check_random(&seed) % (uint32_t)input_count];
        size_t size = from->size;

        memcpy(bytes, from->bytes, size);
        for (uint32_t n = 1 + check_random(&seed) % 4; n > 0; n--)
            size = change(bytes, size, &seed);
        run(bytes, size);
    }
    free(bytes);
    return count;
}

int main(int count, char **arguments)
{
    int64_t changed = 0;
    uint64_t seed = (uint64_t)time(NULL) ^ (uint64_t)getpid() << 32;
    long seconds = 0;

    atexit(report);
    for (int i = 1; i < count; i++) {
        if (strncmp(arguments[i], "-seconds=", 9) == 0)
            seconds = strtol(arguments[i] + 9, NULL, 10);
        else if (strncmp(arguments[i], "-seed=", 6) == 0)
            seed = strtoull(arguments[i] + 6, NULL, 10);
        else
            run_path(arguments[i]);
    }
    if (seconds > 0)
        changed = change_for(seconds, seed);
    printf("%s: ran %d inputs, %lld changed ones\n", arguments[0], input_count, (long long)changed);
    for (int32_t i = 0; i < input_count; i++)
        free(inputs[i].bytes);
    return 0;
}
