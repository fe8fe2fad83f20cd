/* One pass over the events of a trace for each question that needs all of them. arrays.py, selftime.py and
 * totals.py say what the questions are and have the same in numpy.
 *
 * Columns come in as buffers. Every id is checked against the table it points into, and no Python object is
 * touched in a pass, so that the GIL is free. Uses only the stable ABI of Python 3.11. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include "../reading/_walker_nest.h"

#define MOST_VIEWS 12

/* The buffers of one call. */
typedef struct {
    Py_buffer view[MOST_VIEWS];
    int count;
} views;

static void release(views *v) {
    for (int i = 0; i < v->count; i++) PyBuffer_Release(&v->view[i]);
}

static PyObject *failed(views *v, const char *message) {
    release(v);
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, message);
    return NULL;
}

/* Takes the next argument as an array of `size`-byte items: its memory and how many there are. None is an
 * array that is not there. Returns 0 with an exception set where it is no such array. */
static int column(views *v, PyObject *argument, size_t size, int writable, void **data, size_t *length) {
    *data = NULL;
    if (argument == Py_None) return 1;
    Py_buffer *view = &v->view[v->count];
    if (PyObject_GetBuffer(argument, view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE)) return 0;
    v->count++;
    if ((size_t)view->len % size) {
        PyErr_SetString(PyExc_ValueError, "not an array of that type");
        return 0;
    }
    *data = view->buf;
    *length = (size_t)view->len / size;
    return 1;
}

static const char LENGTHS[] = "columns of different lengths";
static const char OUTSIDE[] = "an id points outside its table";

/* The copies are what a compiler can keep in registers: nobody has their address. */
#define COLUMN(argument, type, name, length, writable)                                                             \
    void *name##_data;                                                                                             \
    size_t name##_length = 0;                                                                                      \
    if (!column(&v, argument, sizeof(type), writable, &name##_data, &name##_length)) return failed(&v, NULL);      \
    type *const restrict name = name##_data;                                                                       \
    const size_t length = name##_length
#define INPUT(argument, type, name, length) COLUMN(argument, type, name, length, 0)
#define OUTPUT(argument, type, name, length) COLUMN(argument, type, name, length, 1)

static PyObject *take(PyObject *module, PyObject *args) {
    PyObject *a[3];
    views v = {.count = 0};
    (void)module;
    if (!PyArg_ParseTuple(args, "OOO:take", &a[0], &a[1], &a[2])) return NULL;
    INPUT(a[0], const int32_t, table, size);
    INPUT(a[1], const int32_t, ids, rows);
    OUTPUT(a[2], int32_t, out, out_rows);
    if (rows != out_rows) return failed(&v, LENGTHS);
    Py_BEGIN_ALLOW_THREADS
    for (size_t i = 0; i < rows; i++) out[i] = (uint32_t)ids[i] < size ? table[ids[i]] : -1;
    Py_END_ALLOW_THREADS
    release(&v);
    Py_RETURN_NONE;
}

static PyObject *sums(PyObject *module, PyObject *args) {
    PyObject *a[3];
    views v = {.count = 0};
    int bad = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOO:sums", &a[0], &a[1], &a[2])) return NULL;
    INPUT(a[0], const int32_t, ids, rows);
    INPUT(a[1], const int64_t, values, value_rows);
    OUTPUT(a[2], uint64_t, out, size); /* unsigned, for it may wrap */
    if (values && rows != value_rows) return failed(&v, LENGTHS);
    Py_BEGIN_ALLOW_THREADS
    for (size_t i = 0; i < rows; i++) {
        if (ids[i] < 0) continue;
        if ((size_t)ids[i] >= size) {
            bad = 1;
            break;
        }
        out[ids[i]] += values ? (uint64_t)values[i] : 1;
    }
    Py_END_ALLOW_THREADS
    if (bad) return failed(&v, OUTSIDE);
    release(&v);
    Py_RETURN_NONE;
}

static PyObject *number(PyObject *module, PyObject *args) {
    PyObject *a[4];
    Py_ssize_t width;
    views v = {.count = 0};
    int bad = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOnOO:number", &a[0], &a[1], &width, &a[2], &a[3])) return NULL;
    INPUT(a[0], const int32_t, ids, rows);
    INPUT(a[1], const int32_t, parts, part_rows);
    OUTPUT(a[2], int32_t, counters, size);
    OUTPUT(a[3], int32_t, out, out_rows);
    if (width < 1 || rows != out_rows || (parts && rows != part_rows) || rows > INT32_MAX) return failed(&v, LENGTHS);
    const size_t num_ids = size / (size_t)width;
    Py_BEGIN_ALLOW_THREADS
    for (size_t i = 0; i < rows; i++) {
        int64_t part = !parts ? 0 : parts[i] < 0 ? width - 1 : parts[i];
        if (ids[i] < 0 || part >= width || (size_t)ids[i] >= num_ids) {
            bad = 1;
            break;
        }
        out[i] = counters[(int64_t)ids[i] * width + part]++;
    }
    Py_END_ALLOW_THREADS
    if (bad) return failed(&v, OUTSIDE);
    release(&v);
    Py_RETURN_NONE;
}

static PyObject *deal(PyObject *module, PyObject *args) {
    PyObject *a[5];
    views v = {.count = 0};
    int bad = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOOO:deal", &a[0], &a[1], &a[2], &a[3], &a[4])) return NULL;
    INPUT(a[0], const int32_t, ids, rows);
    INPUT(a[1], const int32_t, first, size);
    INPUT(a[2], const int32_t, each, each_size);
    OUTPUT(a[3], int32_t, counters, counter_size);
    OUTPUT(a[4], int32_t, out, out_rows);
    if (rows != out_rows || each_size != size || counter_size != size || rows > INT32_MAX) return failed(&v, LENGTHS);
    Py_BEGIN_ALLOW_THREADS
    for (size_t i = 0; i < rows; i++) {
        int32_t id = ids[i];
        if (id < 0 || (size_t)id >= size || each[id] < 1) {
            bad = 1;
            break;
        }
        uint32_t dealt = (uint32_t)counters[id]++ / (uint32_t)each[id];
        out[i] = first[id] < 0 ? -1 : (int32_t)((uint32_t)first[id] + dealt);
    }
    Py_END_ALLOW_THREADS
    if (bad) return failed(&v, OUTSIDE);
    release(&v);
    Py_RETURN_NONE;
}

/* A row that others may lie in. `carried` is what its end takes from whatever encloses it: its own duration and,
 * if it is no container, all that lay in it. */
typedef struct {
    int64_t start, end;
    uint64_t carried;
    size_t row;
    int container;
} open_row;

static inline void hand_over(const open_row *inner, open_row *outer, uint64_t *self) {
    if (outer->container) self[outer->row] -= inner->carried;
    else outer->carried += inner->carried;
}

/* The rule of nesting.py, which explains it. The parent of a row is known for good when the row leaves the stack:
 * it lies in the one below, or, if it came a little early, in the one that drives it out. */
static int nest(size_t rows, const int64_t *start, const int64_t *duration, const int32_t *op,
                const uint8_t *container, uint64_t tolerance, uint64_t *self) {
    size_t depth = 0, room = 64;
    open_row *stack = malloc(room * sizeof *stack);
    if (!stack) return 0;
    for (size_t row = 0; row < rows; row++) {
        if (start[row] == ABSENT) continue;
        int64_t begin = start[row], end = add_capped(begin, duration[row] > 0 ? duration[row] : 0);
        open_row next = {begin, end, (uint64_t)duration[row], row, container[op[row]]};
        uint64_t half = distance(end, begin) / 2;
        size_t kept = depth;
        while (kept && !(distance(end, stack[kept - 1].end) <= tolerance && distance(stack[kept - 1].end, begin) > half))
            kept--;
        while (depth > kept + 1) {
            depth--;
            hand_over(&stack[depth], &stack[depth - 1], self);
        }
        if (depth > kept) {
            open_row *last = &stack[kept];
            int early = distance(begin, last->start) <= tolerance && distance(last->end, end) <= tolerance &&
                        distance(last->end, begin) > distance(last->end, last->start) / 2;
            if (early) hand_over(last, &next, self);
            else if (kept) hand_over(last, &stack[kept - 1], self);
        }
        if (kept == room) {
            open_row *more = realloc(stack, 2 * room * sizeof *stack);
            if (!more) {
                free(stack);
                return 0;
            }
            stack = more;
            room *= 2;
        }
        stack[kept] = next;
        depth = kept + 1;
    }
    for (; depth > 1; depth--) hand_over(&stack[depth - 1], &stack[depth - 2], self);
    free(stack);
    return 1;
}

static PyObject *take_away_nested(PyObject *module, PyObject *args) {
    PyObject *a[5];
    long long tolerance;
    views v = {.count = 0};
    int bad = 0, sorted = 1, done = 1;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOOLO:take_away_nested", &a[0], &a[1], &a[2], &a[3], &tolerance, &a[4])) return NULL;
    INPUT(a[0], const int64_t, start, rows);
    INPUT(a[1], const int64_t, duration, duration_rows);
    INPUT(a[2], const int32_t, op, op_rows);
    INPUT(a[3], const uint8_t, container, ops);
    OUTPUT(a[4], uint64_t, self, self_rows);
    if (duration_rows != rows || op_rows != rows || self_rows != rows || tolerance < 0) return failed(&v, LENGTHS);
    Py_BEGIN_ALLOW_THREADS
    for (size_t i = 0; i < rows && !bad; i++) bad = (uint32_t)op[i] >= ops;
    for (size_t i = 1; i < rows && sorted; i++)
        sorted = start[i] > start[i - 1] || (start[i] == start[i - 1] && duration[i] <= duration[i - 1]);
    if (!bad && sorted) done = nest(rows, start, duration, op, container, (uint64_t)tolerance, self);
    Py_END_ALLOW_THREADS
    if (bad) return failed(&v, OUTSIDE);
    release(&v);
    return done ? PyBool_FromLong(sorted) : PyErr_NoMemory();
}

/* Where the slots of one op begin, and the two digits of an execution's number that choose among them. */
typedef struct {
    int32_t first; /* -1: not wanted */
    int32_t outer_each, outer_count, inner_each, inner_count;
} slots;

static inline uint32_t digit(int32_t number, int32_t each, int32_t count) {
    return count > 1 ? (uint32_t)number / (uint32_t)each % (uint32_t)count : 0;
}

static int slots_are_good(const slots *of_op, size_t ops, size_t num_slots) {
    for (size_t i = 0; i < ops; i++) {
        const slots *s = &of_op[i];
        if (s->first < 0) continue;
        if (s->outer_each < 1 || s->outer_count < 1 || s->inner_each < 1 || s->inner_count < 1) return 0;
        if ((int64_t)s->outer_count > ((int64_t)num_slots - s->first) / s->inner_count) return 0;
    }
    return 1;
}

static PyObject *tally(PyObject *module, PyObject *args) {
    PyObject *a[13];
    views v = {.count = 0};
    int bad = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOOOOOOOOOO:tally", &a[0], &a[1], &a[2], &a[3], &a[4], &a[5], &a[6], &a[7], &a[8],
                          &a[9], &a[10], &a[11]))
        return NULL;
    INPUT(a[0], const int32_t, op, rows);
    INPUT(a[1], const int32_t, run, run_rows);
    INPUT(a[2], const int32_t, execution, execution_rows);
    INPUT(a[3], const int32_t, weight, weight_rows);
    INPUT(a[4], const int64_t, duration, duration_rows);
    INPUT(a[5], const int64_t, self, self_rows);
    INPUT(a[6], const int64_t, first_cell, runs);
    INPUT(a[7], const slots, of_op, ops);
    INPUT(a[8], const int32_t, group, num_slots);
    OUTPUT(a[9], uint64_t, executions, cells);
    OUTPUT(a[10], uint64_t, durations, duration_cells);
    OUTPUT(a[11], uint64_t, selves, self_cells);
    if (run_rows != rows || execution_rows != rows || (weight && weight_rows != rows) || duration_rows != rows ||
        self_rows != rows || duration_cells != cells || self_cells != cells)
        return failed(&v, LENGTHS);
    int32_t last_group = -1;
    for (size_t i = 0; i < num_slots; i++)
        if (group[i] > last_group) last_group = group[i];
    for (size_t i = 0; i < runs; i++)
        if (first_cell[i] >= 0 && (cells <= (size_t)last_group || (size_t)first_cell[i] > cells - 1 - (size_t)last_group))
            bad = last_group >= 0;
    if (bad || !slots_are_good(of_op, ops, num_slots)) return failed(&v, OUTSIDE);
    Py_BEGIN_ALLOW_THREADS
    for (size_t i = 0; i < rows; i++) {
        if ((uint32_t)op[i] >= ops || (run[i] >= 0 && (size_t)run[i] >= runs)) {
            bad = 1;
            break;
        }
        const slots *s = &of_op[op[i]];
        if (s->first < 0 || run[i] < 0 || first_cell[run[i]] < 0) continue;
        uint32_t slot = (uint32_t)s->first + digit(execution[i], s->outer_each, s->outer_count) * (uint32_t)s->inner_count +
                        digit(execution[i], s->inner_each, s->inner_count);
        if (group[slot] < 0) continue;
        int64_t cell = first_cell[run[i]] + group[slot];
        executions[cell] += weight ? (uint64_t)(int64_t)weight[i] : 1;
        durations[cell] += (uint64_t)duration[i];
        selves[cell] += (uint64_t)self[i];
    }
    Py_END_ALLOW_THREADS
    if (bad) return failed(&v, OUTSIDE);
    release(&v);
    Py_RETURN_NONE;
}

static PyMethodDef module_methods[] = {
    {"take", take, METH_VARARGS, "take(table, ids, out): entries of table, -1 for an id that is not in it; int32."},
    {"sums", sums, METH_VARARGS,
     "sums(ids, values, out): add int64 values (None: ones) to out by int32 id; negative ids are left out."},
    {"number", number, METH_VARARGS,
     "number(ids, parts, width, counters, out): how many earlier rows have the same id and part; all int32.\n"
     "A negative part is the last one; counters have width entries per id. Without parts, all are 0."},
    {"deal", deal, METH_VARARGS,
     "deal(ids, first, each, counters, out): first[id] + n // each[id] for the n-th row of an id, -1 where first is\n"
     "negative; all int32."},
    {"take_away_nested", take_away_nested, METH_VARARGS,
     "take_away_nested(start, duration, op, container, tolerance, self): subtract from self what lies in each\n"
     "container; false, with nothing done, where the rows are not in order."},
    {"tally", tally, METH_VARARGS,
     "tally(op, run, execution, weight, duration, self, first_cell, slots, group, executions, durations, selves)"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, "_groupby", "Passes over the events of a trace.", 0, module_methods,
    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__groupby(void) { return PyModuleDef_Init(&module_definition); }
