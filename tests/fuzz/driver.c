/* A small coverage-guided fuzzer for one process: `walker_fuzz RUNS SEED SAVE_DIR INPUT...`.
 *
 * It mutates inputs, keeps those that reach new code, and goes on from them; the same seed and inputs give the
 * same run. Inputs named that reach nothing new are left out; with 0 RUNS the others are saved: the
 * smallest set, when the inputs' names sort by size. The compiler calls __sanitizer_cov_trace_pc in every block (-fsanitize-coverage=trace-pc). Inputs that reached
 * new code are written to SAVE_DIR ("-" for none); one that crashes is written to ./crash-input. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
void __sanitizer_set_death_callback(void (*callback)(void));

enum { MAP_SIZE = 1 << 13, MOST_BYTES = 4096, MOST_INPUTS = 1 << 14 };

static uint8_t hits[MAP_SIZE], seen[MAP_SIZE];
static uintptr_t previous;

__attribute__((no_sanitize("address", "undefined"), no_sanitize_coverage)) void __sanitizer_cov_trace_pc(void) {
    uintptr_t here = (uintptr_t)__builtin_return_address(0);
    hits[(here ^ previous) & (MAP_SIZE - 1)]++;
    previous = here >> 1;
}

typedef struct {
    uint8_t *data;
    size_t size;
} input;

static input inputs[MOST_INPUTS];
static size_t input_count;
static uint8_t current[MOST_BYTES];
static size_t current_size;
static uint64_t random_state;

static void write_input(const char *path) {
    FILE *file = fopen(path, "wb");
    if (!file) return;
    fwrite(current, 1, current_size, file);
    fclose(file);
}

static void save_input(const char *folder, size_t number) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%06zu", folder, number);
    write_input(path);
}

static void on_death(void) { write_input("crash-input"); }

static uint64_t random_number(void) { /* xorshift64* */
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * UINT64_C(2685821657736338717);
}

static size_t below(size_t limit) { return limit ? random_number() % limit : 0; }

static int keep(const uint8_t *data, size_t size) {
    if (input_count == MOST_INPUTS) return 0;
    inputs[input_count].data = malloc(size + 1);
    if (!inputs[input_count].data) exit(2);
    memcpy(inputs[input_count].data, data, size);
    inputs[input_count++].size = size;
    return 1;
}

/* Counts of a block are told apart by their power of two, except when a set of inputs is made smaller. */
static int counting = 1;

static int run_current(void) {
    int news = 0;
    memset(hits, 0, sizeof hits);
    previous = 0;
    LLVMFuzzerTestOneInput(current, current_size);
    for (size_t i = 0; i < MAP_SIZE; i++) {
        if (i % 8 == 0) { /* Most of the map is empty: pass over eight at a time. */
            uint64_t word;
            memcpy(&word, hits + i, 8);
            if (!word) {
                i += 7;
                continue;
            }
        }
        if (!hits[i]) continue;
        uint8_t bucket = !counting ? 1 : (uint8_t)(1 << (hits[i] >= 128 ? 7 : 31 - __builtin_clz(hits[i])));
        if (!(seen[i] & bucket)) {
            seen[i] |= bucket;
            news = 1;
        }
    }
    return news;
}

static void insert(size_t at, const uint8_t *bytes, size_t size) {
    if (current_size + size > MOST_BYTES) return;
    memmove(current + at + size, current + at, current_size - at);
    memcpy(current + at, bytes, size);
    current_size += size;
}

static void mutate(void) {
    static const uint8_t tags[] = {0x08, 0x10, 0x18, 0x20, 0x22, 0x28, 0x2a, 0x11, 0x12, 0x32, 0x38, 0x5a, 0x1a};
    uint8_t bytes[16];
    size_t at = below(current_size), size = 1 + below(below(4) ? 8 : current_size);
    switch (below(9)) {
    case 0:
        if (current_size) current[at] ^= (uint8_t)(1 << below(8));
        break;
    case 1:
        if (current_size) current[at] = (uint8_t)random_number();
        break;
    case 2:
        if (current_size) current[at] = tags[below(sizeof tags)];
        break;
    case 3: /* a varint of any length, often a huge one */
        size = 1 + below(11);
        for (size_t i = 0; i < size; i++) bytes[i] = (uint8_t)(below(3) ? 0xff : random_number() | 0x80);
        bytes[size - 1] &= 0x7f;
        insert(at, bytes, size);
        break;
    case 4:
        if (size > current_size - at) size = current_size - at;
        memmove(current + at, current + at + size, current_size - at - size);
        current_size -= size;
        break;
    case 5: { /* again a part of itself */
        uint8_t copy[MOST_BYTES];
        if (size > current_size - at) size = current_size - at;
        memcpy(copy, current + at, size);
        insert(below(current_size), copy, size);
        break;
    }
    case 6: { /* a part of another */
        const input *other = &inputs[below(input_count)];
        size_t from = below(other->size);
        if (size > other->size - from) size = other->size - from;
        insert(at, other->data + from, size);
        break;
    }
    case 7:
        if (current_size) current[at] = (uint8_t)(current_size - at + below(5) - 2);
        break;
    default:
        bytes[0] = tags[below(sizeof tags)];
        bytes[1] = (uint8_t)below(20);
        insert(at, bytes, 2);
    }
}

static void load(const char *path) {
    struct stat status;
    if (stat(path, &status)) exit(2);
    if (S_ISDIR(status.st_mode)) {
        struct dirent **names;
        int count = scandir(path, &names, NULL, alphasort);
        for (int i = 0; i < count; i++) {
            char inside[4096];
            snprintf(inside, sizeof inside, "%s/%s", path, names[i]->d_name);
            if (names[i]->d_name[0] != '.') load(inside);
            free(names[i]);
        }
        if (count >= 0) free(names);
        return;
    }
    FILE *file = fopen(path, "rb");
    if (!file) exit(2);
    current_size = fread(current, 1, MOST_BYTES, file);
    fclose(file);
    if (run_current()) keep(current, current_size);
}

int main(int argc, char **argv) {
    if (argc < 5) {
        fprintf(stderr, "usage: %s RUNS SEED SAVE_DIR INPUT...\n", argv[0]);
        return 2;
    }
    uint64_t runs = strtoull(argv[1], NULL, 10);
    random_state = strtoull(argv[2], NULL, 10) * 2 + 1;
    const char *save = argv[3];
    counting = runs != 0;
    __sanitizer_set_death_callback(on_death);
    for (int i = 4; i < argc; i++) load(argv[i]);
    size_t seeds = input_count;
    if (!seeds) return 2;
    for (size_t i = 0; !runs && strcmp(save, "-") && i < seeds; i++) {
        current_size = inputs[i].size;
        memcpy(current, inputs[i].data, current_size);
        save_input(save, i);
    }
    time_t begin = time(NULL);
    for (uint64_t run = 0; run < runs; run++) {
        const input *base = &inputs[below(input_count)];
        current_size = base->size;
        memcpy(current, base->data, current_size);
        for (size_t i = 1 + below(6); i; i--) mutate();
        if (run_current() && keep(current, current_size) && strcmp(save, "-")) {
            save_input(save, input_count - seeds);
        }
        if ((run + 1) % 1000000 == 0) {
            printf("%llu executions, %zu inputs, %ld s\n", (unsigned long long)run + 1, input_count,
                   (long)(time(NULL) - begin));
            fflush(stdout);
        }
    }
    size_t reached = 0;
    for (size_t i = 0; i < MAP_SIZE; i++) reached += seen[i] != 0;
    printf("%llu executions in %ld s from %zu seeds: no crash, %zu edges, %zu inputs kept\n",
           (unsigned long long)runs, (long)(time(NULL) - begin), seeds, reached, input_count - seeds);
    return 0;
}
