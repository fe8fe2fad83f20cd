/* Which interval encloses which. nesting.py explains the rule and has the same in Python. */
#ifndef MOE_PROF_WALKER_NEST_H
#define MOE_PROF_WALKER_NEST_H

#include "_walker_tables.h"

static inline int64_t add_capped(int64_t a, int64_t b) { /* b is not negative */
    return a > INT64_MAX - b ? INT64_MAX : a + b;
}

/* a - b as an unsigned distance, 0 where b is the larger. */
static inline uint64_t distance(int64_t a, int64_t b) { return a > b ? (uint64_t)a - (uint64_t)b : 0; }

/* The rule of nesting.py, which explains it; `parent` of rows [first, last) is filled. `stack` has room for
 * last - first rows. */
static inline void nest_line(size_t first, size_t last, const int64_t *start, const int64_t *duration,
                      uint64_t tolerance, int32_t *parent, int32_t *stack) {
    size_t depth = 0;
#define END(row) add_capped(start[row], duration[row] > 0 ? duration[row] : 0)
    for (size_t row = first; row < last; row++) {
        parent[row] = -1;
        if (start[row] == ABSENT) continue;
        int64_t begin = start[row], end = END(row);
        uint64_t half = distance(end, begin) / 2;
        size_t kept = depth;
        while (kept) {
            int64_t outer = END(stack[kept - 1]);
            if (distance(end, outer) <= tolerance && distance(outer, begin) > half) break;
            kept--;
        }
        int32_t enclosing = kept ? stack[kept - 1] : -1;
        parent[row] = enclosing;
        for (size_t i = kept; i < depth; i++) {
            int32_t early = stack[i];
            int64_t early_end = END(early);
            if (parent[early] == enclosing && distance(begin, start[early]) <= tolerance &&
                distance(early_end, end) <= tolerance &&
                distance(early_end, begin) > distance(early_end, start[early]) / 2)
                parent[early] = (int32_t)row;
        }
        stack[kept] = (int32_t)row;
        depth = kept + 1;
    }
#undef END
}

#endif
