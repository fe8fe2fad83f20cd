/* The walk itself against a bare loop over the same bytes: `reader_walk FILE [repetitions]`.
 *
 * The bare loop decodes the same fields into the same number of columns, allocated beforehand, and does nothing
 * else: no bounds, no unknown fields, no tables of ids, no growing. It would crash on most files; it says what
 * the bytes cost. Prints one line per way: name, best CPU seconds. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include "../../analyzers/reading/_walker_core.h"

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static inline uint64_t bare_varint(const uint8_t **at) {
    const uint8_t *p = *at;
    uint64_t value = 0;
    int shift = 0;
    while (*p >= 0x80) {
        value |= (uint64_t)(*p++ & 0x7f) << shift;
        shift += 7;
    }
    value |= (uint64_t)*p++ << shift;
    *at = p;
    return value;
}

static size_t bare_walk(span line, int32_t *metadata, int64_t *columns[4]) {
    const uint8_t *p = line.at;
    size_t row = 0;
    while (p < line.end) {
        uint8_t tag = *p++;
        uint64_t size = bare_varint(&p);
        if (tag != 0x22) {
            p += size;
            continue;
        }
        const uint8_t *end = p + size;
        int64_t values[5] = {0}, stats[16] = {0};
        while (p < end) {
            tag = *p++;
            if (tag != 0x22) {
                values[tag >> 3 & 3] = (int64_t)bare_varint(&p);
                continue;
            }
            p += 2; /* length and tag of the stat's id, which has one byte */
            uint8_t id = *p++ & 15;
            p++;
            stats[id] = (int64_t)bare_varint(&p);
        }
        metadata[row] = (int32_t)values[1];
        columns[0][row] = values[2];
        columns[1][row] = values[3];
        columns[2][row] = stats[1];
        columns[3][row] = stats[2];
        row++;
    }
    return row;
}

/* The longest line of the first plane. */
static span longest_line(span file) {
    span plane, best = {NULL, NULL, NULL};
    uint32_t tag;
    uint64_t length;
    if (!read_tag(&file, &tag) || !read_varint(&file, &length, 10)) exit(2);
    plane = (span){file.at, file.at + length, file.limit};
    while (plane.at < plane.end && read_tag(&plane, &tag)) {
        if ((tag & 7) != 2) {
            skip_value(&plane, tag);
            continue;
        }
        if (!read_varint(&plane, &length, 10)) exit(2);
        if (tag == FIELD(3, 2) && length > (size_t)(best.end - best.at))
            best = (span){plane.at, plane.at + length, plane.limit};
        plane.at += length;
    }
    return best;
}

static double walker(span line, size_t *rows) {
    int64_t stat_ids[] = {1, 2}, metadata_ids[512];
    int32_t stats[] = {STAT_DEVICE_OFFSET, STAT_DEVICE_DURATION}, metadata_rows[512];
    for (int i = 0; i < 512; i++) metadata_ids[i] = metadata_rows[i] = i;
    plane_tables tables = {0};
    columns c = {0};
    if (id_table_make(&tables.metadata, metadata_ids, metadata_rows, 512) ||
        id_table_make(&tables.stats, stat_ids, stats, 2) || columns_reserve(&c, 0))
        exit(2);
    double begin = now();
    if (line_begin(&c, 0, (size_t)(line.end - line.at))) exit(2);
    if (line_walk(&c, &tables, &line, line.end)) exit(2);
    line_end(&c);
    double seconds = now() - begin;
    *rows = c.count;
    columns_free(&c);
    id_table_free(&tables.metadata);
    id_table_free(&tables.stats);
    id_table_free(&tables.references);
    return seconds;
}

static double bare(span line, size_t rows) {
    int32_t *metadata = malloc(rows * sizeof *metadata);
    int64_t *values[4];
    want_huge_pages(metadata, rows * sizeof *metadata);
    for (int i = 0; i < 4; i++) {
        values[i] = malloc(rows * sizeof **values);
        want_huge_pages(values[i], rows * sizeof **values);
    }
    double begin = now();
    if (bare_walk(line, metadata, values) != rows) exit(2);
    double seconds = now() - begin;
    free(metadata);
    for (int i = 0; i < 4; i++) free(values[i]);
    return seconds;
}

int main(int argc, char **argv) {
    int file = argc > 1 ? open(argv[1], O_RDONLY) : -1, repetitions = argc > 2 ? atoi(argv[2]) : 5;
    struct stat status;
    if (file < 0 || fstat(file, &status)) return 2;
    const uint8_t *data = mmap(NULL, status.st_size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file, 0);
    if (data == MAP_FAILED) return 2;
    span line = longest_line((span){data, data + status.st_size, data + status.st_size});
    double best[2] = {1e9, 1e9};
    size_t rows = 0;
    for (int i = 0; i < repetitions; i++) { /* Alternating, so that a busy machine is busy for both. */
        double seconds = walker(line, &rows);
        if (seconds < best[0]) best[0] = seconds;
        seconds = bare(line, rows);
        if (seconds < best[1]) best[1] = seconds;
    }
    printf("rows %zu\nwalk %.4f\nbare %.4f\n", rows, best[0], best[1]);
    return 0;
}
