/* The walk over the events of a trace line: everything the C extension does with bytes, without Python, so that
 * it can be fuzzed and measured on its own.
 *
 * A trace is untrusted input: see _walker_wire.h; nothing recurses. Field numbers are those of openxla/xla
 * xla/tsl/profiler/protobuf/xplane.proto. A line that is named twice is refused: it may have been passed over by
 * its first name. */
#ifndef MOE_PROF_WALKER_CORE_H
#define MOE_PROF_WALKER_CORE_H

#include "_walker_nest.h"
#include "_walker_tables.h"
#include "_walker_wire.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

#define USUAL_EVENT_BYTES 48 /* of events with both clocks; room for rows is made by it */
#define HUGE_BLOCK_BYTES (16 << 20)

/* Columns of events. The order of the stats is that of INT_STATS and STRING_STATS in columns.py. */
enum {
    INT_COUNT = 9,
    STRING_COUNT = 4,
    STAT_STRINGS = INT_COUNT,
    STAT_DEVICE_OFFSET = INT_COUNT + STRING_COUNT,
    STAT_DEVICE_DURATION,
    STAT_COUNT,

    COLUMN_METADATA = 0,
    COLUMN_EVENT_START,
    COLUMN_EVENT_DURATION,
    COLUMN_START,
    COLUMN_DURATION,
    COLUMN_OCCURRENCES,
    COLUMN_STATS,
    COLUMN_COUNT = COLUMN_STATS + INT_COUNT + STRING_COUNT
};

static inline size_t column_width(int column) {
    int narrow = column == COLUMN_METADATA || column == COLUMN_OCCURRENCES ||
                 column >= COLUMN_STATS + STAT_STRINGS;
    return narrow ? sizeof(int32_t) : sizeof(int64_t);
}

/* ---- columns ------------------------------------------------------------------------------------------ */

/* Columns grow together; one that is not needed yet has no memory and is filled in when it first is. Growing
 * moves no pages of a large block and touches none, so that memory is what the rows need. */
typedef struct {
    void *data[COLUMN_COUNT];
    int stats[INT_COUNT + STRING_COUNT]; /* those whose columns have memory */
    int stat_count;
    size_t count, capacity;
    string_table strings;
    /* the line being read */
    size_t line_first;
    int host;         /* keep only events with an hlo_op or a step_num */
    int named;        /* whether its name was met */
    int device_clock; /* whether every event so far had both device stats */
    int64_t timestamp_ns;
    uint32_t stats_seen; /* bit per stat that a kept event has */
    int aggregates;      /* whether any kept event is an aggregate */
} columns;

static inline void columns_free(columns *c) {
    for (int i = 0; i < COLUMN_COUNT; i++) {
        free(c->data[i]);
        c->data[i] = NULL;
    }
    string_table_free(&c->strings);
    c->count = c->capacity = 0;
}

/* Asks for huge pages for a large block: ten million rows are 120,000 page faults otherwise. */
static inline void want_huge_pages(void *data, size_t size) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    const uintptr_t page = 4096;
    if (size < HUGE_BLOCK_BYTES) return;
    uintptr_t first = ((uintptr_t)data + page - 1) & ~(page - 1), last = ((uintptr_t)data + size) & ~(page - 1);
    madvise((void *)first, last - first, MADV_HUGEPAGE);
#else
    (void)data;
    (void)size;
#endif
}

/* Makes room for more rows: half as many again, or up to `rows` where that is more. */
static inline int columns_reserve(columns *c, size_t rows) {
    size_t capacity = c->capacity ? c->capacity + c->capacity / 2 : 1024;
    if (capacity < rows) capacity = rows;
    if (capacity > INT32_MAX) capacity = INT32_MAX;
    if (capacity <= c->count) return WALK_NO_MEMORY;
    for (int i = 0; i < COLUMN_COUNT; i++) {
        if (i > COLUMN_EVENT_DURATION && !c->data[i]) continue;
        void *data = realloc(c->data[i], capacity * column_width(i));
        if (!data) return WALK_NO_MEMORY;
        want_huge_pages(data, capacity * column_width(i));
        c->data[i] = data;
    }
    c->capacity = capacity;
    return WALK_OK;
}

/* Gives a column memory, and all rows before this one the value of a row without it. */
static inline int columns_add(columns *c, int column) {
    void *data = malloc(c->capacity * column_width(column));
    if (!data) return WALK_NO_MEMORY;
    want_huge_pages(data, c->capacity * column_width(column));
    if (column == COLUMN_START || column == COLUMN_DURATION) {
        memcpy(data, c->data[column - COLUMN_START + COLUMN_EVENT_START], c->count * sizeof(int64_t));
    } else if (column == COLUMN_OCCURRENCES) {
        for (size_t i = 0; i < c->count; i++) ((int32_t *)data)[i] = 1;
    } else if (column_width(column) == sizeof(int32_t)) {
        for (size_t i = 0; i < c->count; i++) ((int32_t *)data)[i] = NO_STRING;
    } else {
        for (size_t i = 0; i < c->count; i++) ((int64_t *)data)[i] = ABSENT;
    }
    c->data[column] = data;
    if (column >= COLUMN_STATS) c->stats[c->stat_count++] = column - COLUMN_STATS;
    return WALK_OK;
}

/* ---- events ------------------------------------------------------------------------------------------- */

enum { VALUE_NONE, VALUE_DOUBLE, VALUE_INTEGER, VALUE_BYTES, VALUE_REFERENCE };

typedef struct {
    int64_t metadata_id, offset_ps, duration_ps, occurrences;
    int aggregate;
    uint32_t has;                /* bit per stat */
    int64_t number[STAT_COUNT];  /* integer stats; for a string stat the row referred to, or -1 */
    span text[STRING_COUNT];     /* string stats that are written out */
} event;

static inline int parse_stat(span s, const plane_tables *tables, event *e) {
    int64_t id = 0;
    uint64_t number = 0;
    int kind = VALUE_NONE;
    span bytes = {NULL, NULL, NULL};
    uint32_t tag;
    if (LIKELY(s.end - s.at >= 2 && s.at[0] == FIELD(1, 0) && s.at[1] < 0x80)) { /* As profilers write it. */
        id = s.at[1];
        s.at += 2;
    }
    while (s.at < s.end) {
        if (!read_tag(&s, &tag)) return 0;
        switch (tag) {
        case FIELD(1, 0): {
            uint64_t value;
            if (!read_varint(&s, &value, 10)) return 0;
            id = (int64_t)value;
            break;
        }
        case FIELD(2, 1):
            if (s.end - s.at < 8) return 0;
            memcpy(&number, s.at, 8);
            s.at += 8;
            kind = VALUE_DOUBLE;
            break;
        case FIELD(3, 0):
        case FIELD(4, 0):
            if (!read_varint(&s, &number, 10)) return 0;
            kind = VALUE_INTEGER;
            break;
        case FIELD(7, 0):
            if (!read_varint(&s, &number, 10)) return 0;
            kind = VALUE_REFERENCE;
            break;
        case FIELD(5, 2):
        case FIELD(6, 2):
            if (!read_bytes(&s, &bytes)) return 0;
            kind = VALUE_BYTES;
            break;
        default:
            if (!skip_value(&s, tag)) return 0;
        }
    }
    int32_t stat = id_table_row(&tables->stats, id);
    if (stat < 0 || stat >= STAT_COUNT) return 1;
    if (stat >= STAT_STRINGS && stat < STAT_STRINGS + STRING_COUNT) {
        if (kind == VALUE_BYTES) {
            e->number[stat] = -1;
            e->text[stat - STAT_STRINGS] = bytes;
        } else if (kind == VALUE_REFERENCE) {
            int32_t row = id_table_row(&tables->references, (int64_t)number);
            if (row < 0) return 1;
            e->number[stat] = row;
        } else {
            return 1;
        }
    } else {
        int64_t value = (int64_t)number;
        if (kind == VALUE_DOUBLE) {
            double real;
            memcpy(&real, &number, 8);
            if (!(real >= -9223372036854775808.0 && real < 9223372036854775808.0)) return 1;
            value = (int64_t)real;
        } else if (kind != VALUE_INTEGER) {
            return 1;
        }
        if (value == ABSENT) return 1;
        e->number[stat] = value;
    }
    e->has |= UINT32_C(1) << stat;
    return 1;
}

static inline int parse_event(span s, const plane_tables *tables, event *e) {
    uint32_t tag;
    uint64_t value;
    span stat;
    e->metadata_id = e->offset_ps = e->duration_ps = e->occurrences = 0;
    e->aggregate = 0;
    e->has = 0;
    while (s.at < s.end) {
        if (!read_tag(&s, &tag)) return 0;
        switch (tag) {
        case FIELD(1, 0):
            if (!read_varint(&s, &value, 10)) return 0;
            e->metadata_id = (int64_t)value;
            break;
        case FIELD(2, 0):
            if (!read_varint(&s, &value, 10)) return 0;
            e->offset_ps = (int64_t)value;
            e->aggregate = 0;
            break;
        case FIELD(3, 0):
            if (!read_varint(&s, &value, 10)) return 0;
            e->duration_ps = (int64_t)value;
            break;
        case FIELD(4, 2):
            if (!read_bytes(&s, &stat) || !parse_stat(stat, tables, e)) return 0;
            break;
        case FIELD(5, 0):
            if (!read_varint(&s, &value, 10)) return 0;
            e->occurrences = (int64_t)value;
            e->aggregate = 1;
            break;
        default:
            if (!skip_value(&s, tag)) return 0;
        }
    }
    return 1;
}

#define HAS(e, stat) ((e)->has >> (stat) & 1)
enum { STAT_STEP_NUM = 3, STAT_HLO_OP = STAT_STRINGS };

/* Appends one event as a row. */
static inline int store(columns *c, const plane_tables *tables, event *e) {
    if (c->host && !HAS(e, STAT_STEP_NUM) && !HAS(e, STAT_HLO_OP)) return WALK_OK;
    if (c->count == c->capacity) {
        int status = columns_reserve(c, 0);
        if (status) return status;
    }
    size_t row = c->count;
    int64_t start = e->aggregate ? ABSENT : e->offset_ps;
    ((int32_t *)c->data[COLUMN_METADATA])[row] = id_table_row(&tables->metadata, e->metadata_id);
    ((int64_t *)c->data[COLUMN_EVENT_START])[row] = start;
    ((int64_t *)c->data[COLUMN_EVENT_DURATION])[row] = e->duration_ps;
    if (e->aggregate) {
        c->aggregates = 1;
        if (!c->data[COLUMN_OCCURRENCES] && columns_add(c, COLUMN_OCCURRENCES)) return WALK_NO_MEMORY;
    }
    if (c->data[COLUMN_OCCURRENCES]) {
        int64_t count = e->aggregate ? e->occurrences : 1;
        ((int32_t *)c->data[COLUMN_OCCURRENCES])[row] =
            count < 0 ? 0 : count > INT32_MAX ? INT32_MAX : (int32_t)count;
    }
    int device = HAS(e, STAT_DEVICE_OFFSET) && HAS(e, STAT_DEVICE_DURATION);
    if (!device) c->device_clock = 0;
    if (c->device_clock && !c->data[COLUMN_START]) {
        if (columns_add(c, COLUMN_START) || columns_add(c, COLUMN_DURATION)) return WALK_NO_MEMORY;
    }
    if (c->data[COLUMN_START]) {
        int exact = c->device_clock;
        int64_t device_start = e->aggregate ? ABSENT : e->number[STAT_DEVICE_OFFSET];
        ((int64_t *)c->data[COLUMN_START])[row] = exact ? device_start : start;
        ((int64_t *)c->data[COLUMN_DURATION])[row] = exact ? e->number[STAT_DEVICE_DURATION] : e->duration_ps;
    }
    uint32_t wanted = e->has & ((UINT32_C(1) << STAT_DEVICE_OFFSET) - 1);
    if (wanted & ~c->stats_seen) {
        for (int stat = 0; stat < STAT_DEVICE_OFFSET; stat++) {
            if (wanted >> stat & 1 && !c->data[COLUMN_STATS + stat] && columns_add(c, COLUMN_STATS + stat))
                return WALK_NO_MEMORY;
        }
        c->stats_seen |= wanted;
    }
    for (int i = 0; i < c->stat_count; i++) {
        int stat = c->stats[i], column = COLUMN_STATS + stat;
        if (stat < STAT_STRINGS) {
            ((int64_t *)c->data[column])[row] = wanted >> stat & 1 ? e->number[stat] : ABSENT;
            continue;
        }
        int32_t value = NO_STRING;
        if (wanted >> stat & 1) {
            value = (int32_t)e->number[stat];
            if (value < 0) { /* Written out: numbered downwards from -2, beside the rows referred to. */
                int32_t number;
                if (intern(&c->strings, e->text[stat - STAT_STRINGS], &number)) return WALK_NO_MEMORY;
                value = -2 - number;
            }
        }
        ((int32_t *)c->data[column])[row] = value;
    }
    c->count++;
    return WALK_OK;
}

/* ---- lines -------------------------------------------------------------------------------------------- */

/* Starts a line of `size` bytes. Of a host line only ops and steps are kept, so that nothing says how many. */
static inline int line_begin(columns *c, int host, size_t size) {
    size_t rows = c->count + (host ? 0 : size / USUAL_EVENT_BYTES);
    if (rows > c->capacity && columns_reserve(c, rows)) return WALK_NO_MEMORY;
    c->line_first = c->count;
    c->host = host;
    c->named = 0;
    c->device_clock = 1;
    c->timestamp_ns = 0;
    c->stats_seen = 0;
    c->aggregates = 0;
    return WALK_OK;
}

/* Reads a line's records from s->at until one begins at or after `pause`, or the line ends. */
static inline int line_walk(columns *c, const plane_tables *tables, span *s, const uint8_t *pause) {
    uint32_t tag;
    uint64_t value;
    span bytes;
    event e;
    while (s->at < s->end && s->at < pause) {
        if (!read_tag(s, &tag)) return WALK_BAD;
        if (tag == FIELD(4, 2)) {
            if (!read_bytes(s, &bytes) || !parse_event(bytes, tables, &e)) return WALK_BAD;
            int status = store(c, tables, &e);
            if (status) return status;
        } else if (tag == FIELD(3, 0)) {
            if (!read_varint(s, &value, 10)) return WALK_BAD;
            c->timestamp_ns = (int64_t)value;
        } else {
            if (tag == FIELD(2, 2) && c->named++) return WALK_BAD;
            if (!skip_value(s, tag)) return WALK_BAD;
        }
    }
    return WALK_OK;
}

/* Ends a line; where not every event had the device clock, none uses it. */
static inline void line_end(columns *c) {
    size_t count = c->count - c->line_first;
    if (count == 0) c->device_clock = 0;
    if (c->device_clock || !c->data[COLUMN_START] || !count) return;
    for (int i = 0; i < 2; i++) {
        memcpy((int64_t *)c->data[COLUMN_START + i] + c->line_first,
               (int64_t *)c->data[COLUMN_EVENT_START + i] + c->line_first, count * sizeof(int64_t));
    }
}

static inline void line_drop(columns *c) { c->count = c->line_first; }

/* Finds a line's name: that before its first event, else any. Lines that are not read are passed over
 * after this, so a later name is not looked for where there is one. */
static inline int line_name(span s, span *name) {
    span display = {NULL, NULL, NULL}, bytes;
    uint32_t tag;
    name->at = name->end = name->limit = NULL;
    while (s.at < s.end) {
        if (!read_tag(&s, &tag)) return WALK_BAD;
        if (tag == FIELD(2, 2)) {
            if (!read_bytes(&s, name)) return WALK_BAD;
        } else if (tag == FIELD(11, 2)) {
            if (!read_bytes(&s, &display)) return WALK_BAD;
        } else if (tag == FIELD(4, 2)) {
            if (!read_bytes(&s, &bytes)) return WALK_BAD;
            if (name->at != name->end) return WALK_OK;
        } else if (!skip_value(&s, tag)) {
            return WALK_BAD;
        }
    }
    if (name->at == name->end) *name = display;
    return WALK_OK;
}

#endif
