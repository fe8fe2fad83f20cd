/* The Python side of the walker: buffers in, buffers out. What is done with bytes is in the headers.
 *
 * Uses only the stable ABI of Python 3.11, so that one build serves all later versions. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include "_walker_core.h"

typedef struct {
    PyTypeObject *block, *tables, *walker;
} module_state;

static struct PyModuleDef module_definition;

static module_state *state_of(PyObject *type) {
    return PyModule_GetState(PyType_GetModule((PyTypeObject *)type));
}

static void free_self(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyObject *no_memory_or_value_error(int status, const char *message) {
    if (status == WALK_NO_MEMORY) return PyErr_NoMemory();
    PyErr_SetString(PyExc_ValueError, message);
    return NULL;
}

/* Checks that [first, last) lies in a buffer; sets an exception where not. */
static int check_range(const Py_buffer *view, Py_ssize_t first, Py_ssize_t last) {
    if (first < 0 || last < first || last > view->len) {
        PyErr_SetString(PyExc_ValueError, "range outside the buffer");
        return 0;
    }
    return 1;
}

/* ---- Block: memory of a finished column, seen by numpy as a buffer ------------------------------------ */

typedef struct {
    PyObject_HEAD
    void *data;
    Py_ssize_t size;
} block_object;

static int block_buffer(PyObject *self, Py_buffer *view, int flags) {
    block_object *block = (block_object *)self;
    return PyBuffer_FillInfo(view, self, block->data, block->size, 0, flags);
}

static void block_dealloc(PyObject *self) {
    free(((block_object *)self)->data);
    free_self(self);
}

static PyType_Slot block_slots[] = {
    {Py_tp_doc, "Memory of one column."},
    {Py_tp_dealloc, block_dealloc},
    {Py_bf_getbuffer, block_buffer},
    {0, NULL},
};
static PyType_Spec block_spec = {
    "analyzers.reading._walker.Block", sizeof(block_object), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, block_slots};

/* ---- Tables: what the ids in a plane's events stand for ----------------------------------------------- */

typedef struct {
    PyObject_HEAD
    plane_tables tables;
} tables_object;

static void tables_dealloc(PyObject *self) {
    plane_tables *tables = &((tables_object *)self)->tables;
    id_table_free(&tables->metadata);
    id_table_free(&tables->stats);
    id_table_free(&tables->references);
    free_self(self);
}

static PyObject *tables_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    Py_buffer views[6] = {{0}};
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*y*:Tables", &views[0], &views[1], &views[2], &views[3], &views[4],
                          &views[5]))
        return NULL;
    allocfunc allocate = PyType_GetSlot(type, Py_tp_alloc);
    PyObject *self = allocate(type, 0);
    if (self) {
        plane_tables *tables = &((tables_object *)self)->tables;
        id_table *each[3] = {&tables->metadata, &tables->stats, &tables->references};
        int status = WALK_OK;
        for (int i = 0; i < 3 && status == WALK_OK; i++) {
            Py_buffer *ids = &views[2 * i], *rows = &views[2 * i + 1];
            size_t count = (size_t)ids->len / sizeof(int64_t);
            if ((size_t)rows->len != count * sizeof(int32_t)) status = WALK_BAD;
            else status = id_table_make(each[i], ids->buf, rows->buf, count);
        }
        if (status) {
            Py_DECREF(self);
            self = no_memory_or_value_error(status, "ids must be int64, ascending, with one int32 row each");
        }
    }
    for (int i = 0; i < 6; i++) PyBuffer_Release(&views[i]);
    return self;
}

static PyType_Slot tables_slots[] = {
    {Py_tp_doc, "Tables(metadata_ids, rows, stat_ids, stats, reference_ids, rows): int64 ids, int32 rows."},
    {Py_tp_new, tables_new},
    {Py_tp_dealloc, tables_dealloc},
    {0, NULL},
};
static PyType_Spec tables_spec = {"analyzers.reading._walker.Tables", sizeof(tables_object), 0,
                                  Py_TPFLAGS_DEFAULT, tables_slots};

/* ---- Walker ------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    Py_buffer view; /* held as long as the walker: strings point into it */
    columns columns;
    int walking; /* a walk runs without the GIL: no other thread may come in */
} walker_object;

static PyObject *walker_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    Py_buffer view;
    unsigned long long seed;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "y*K:Walker", &view, &seed)) return NULL;
    allocfunc allocate = PyType_GetSlot(type, Py_tp_alloc);
    PyObject *self = allocate(type, 0);
    if (!self) {
        PyBuffer_Release(&view);
        return NULL;
    }
    ((walker_object *)self)->view = view;
    ((walker_object *)self)->columns.strings.seed = seed;
    if (columns_reserve(&((walker_object *)self)->columns, 0)) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return self;
}

static void walker_dealloc(PyObject *self) {
    walker_object *walker = (walker_object *)self;
    columns_free(&walker->columns);
    if (walker->view.obj) PyBuffer_Release(&walker->view);
    free_self(self);
}

static int check_free(walker_object *walker) {
    if (!walker->walking) return 1;
    PyErr_SetString(PyExc_RuntimeError, "the walker is in use by another thread");
    return 0;
}

/* For what reads lines: not after columns were taken. */
static int check_open(walker_object *walker) {
    if (!check_free(walker)) return 0;
    if (walker->columns.capacity) return 1;
    PyErr_SetString(PyExc_RuntimeError, "the walker has handed over its columns");
    return 0;
}

static PyObject *walker_begin(PyObject *self, PyObject *args) {
    walker_object *walker = (walker_object *)self;
    int host;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "pn:begin", &host, &size) || !check_open(walker)) return NULL;
    if (size < 0 || size > walker->view.len) size = walker->view.len;
    if (line_begin(&walker->columns, host, (size_t)size)) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *walker_walk(PyObject *self, PyObject *args) {
    walker_object *walker = (walker_object *)self;
    PyObject *tables;
    Py_ssize_t position, last, pause;
    if (!PyArg_ParseTuple(args, "O!nnn:walk", state_of((PyObject *)Py_TYPE(self))->tables, &tables, &position,
                          &last, &pause))
        return NULL;
    if (!check_open(walker) || !check_range(&walker->view, position, last)) return NULL;
    const uint8_t *base = walker->view.buf;
    span s = {base + position, base + last, base + walker->view.len};
    const uint8_t *until = pause < position ? s.at : pause > last ? s.end : base + pause;
    int status;
    walker->walking = 1;
    Py_BEGIN_ALLOW_THREADS
    status = line_walk(&walker->columns, &((tables_object *)tables)->tables, &s, until);
    Py_END_ALLOW_THREADS
    walker->walking = 0;
    if (status == WALK_NO_MEMORY) return PyErr_NoMemory();
    return PyLong_FromSsize_t(status == WALK_OK ? s.at - base : -1);
}

static PyObject *walker_end(PyObject *self, PyObject *ignored) {
    walker_object *walker = (walker_object *)self;
    (void)ignored;
    if (!check_open(walker)) return NULL;
    columns *c = &walker->columns;
    line_end(c);
    return Py_BuildValue("(nniLIi)", (Py_ssize_t)c->line_first, (Py_ssize_t)c->count, c->device_clock,
                         (long long)c->timestamp_ns, (unsigned int)c->stats_seen, c->aggregates);
}

static PyObject *walker_drop(PyObject *self, PyObject *ignored) {
    walker_object *walker = (walker_object *)self;
    (void)ignored;
    if (!check_open(walker)) return NULL;
    line_drop(&walker->columns);
    Py_RETURN_NONE;
}

static PyObject *walker_line_name(PyObject *self, PyObject *args) {
    walker_object *walker = (walker_object *)self;
    Py_ssize_t first, last;
    if (!PyArg_ParseTuple(args, "nn:line_name", &first, &last)) return NULL;
    if (!check_range(&walker->view, first, last)) return NULL;
    const uint8_t *base = walker->view.buf;
    span s = {base + first, base + last, base + walker->view.len}, name;
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = line_name(s, &name);
    Py_END_ALLOW_THREADS
    if (status) Py_RETURN_NONE;
    return PyBytes_FromStringAndSize((const char *)name.at, name.end - name.at);
}

static PyObject *walker_strings(PyObject *self, PyObject *ignored) {
    walker_object *walker = (walker_object *)self;
    (void)ignored;
    if (!check_free(walker)) return NULL;
    string_table *strings = &walker->columns.strings;
    PyObject *list = PyList_New((Py_ssize_t)strings->count);
    for (size_t i = 0; list && i < strings->count; i++) {
        string_entry *entry = &strings->entries[i];
        PyObject *bytes = PyBytes_FromStringAndSize((const char *)entry->at, (Py_ssize_t)entry->length);
        if (!bytes) Py_CLEAR(list);
        else PyList_SetItem(list, (Py_ssize_t)i, bytes);
    }
    return list;
}

/* Hands a column over as a block; the walker no longer has it. */
static PyObject *walker_take(PyObject *self, PyObject *args) {
    walker_object *walker = (walker_object *)self;
    int column;
    if (!PyArg_ParseTuple(args, "i:take", &column) || !check_free(walker)) return NULL;
    columns *c = &walker->columns;
    if (column < 0 || column >= COLUMN_COUNT || !c->data[column]) {
        PyErr_SetString(PyExc_KeyError, "no such column");
        return NULL;
    }
    PyTypeObject *type = state_of((PyObject *)Py_TYPE(self))->block;
    allocfunc allocate = PyType_GetSlot(type, Py_tp_alloc);
    block_object *block = (block_object *)allocate(type, 0);
    if (!block) return NULL;
    size_t size = c->count * column_width(column);
    void *shrunk = realloc(c->data[column], size ? size : 1);
    block->data = shrunk ? shrunk : c->data[column];
    block->size = (Py_ssize_t)size;
    c->data[column] = NULL;
    c->capacity = 0; /* no further rows: the columns are no longer all there */
    return (PyObject *)block;
}

static PyMethodDef walker_methods[] = {
    {"begin", walker_begin, METH_VARARGS,
     "begin(host, size): start a line of that many bytes; of a host line only ops and steps are kept."},
    {"walk", walker_walk, METH_VARARGS,
     "walk(tables, position, last, pause): read the line's records up to the first that begins at or after\n"
     "pause; return where that is, -1 for a record that makes no sense."},
    {"end", walker_end, METH_NOARGS,
     "end(): (first row, row after last, device clock, timestamp_ns, bit per stat seen, any aggregate)."},
    {"drop", walker_drop, METH_NOARGS, "drop(): forget the rows of the line."},
    {"line_name", walker_line_name, METH_VARARGS, "line_name(first, last): its bytes; None if malformed."},
    {"strings", walker_strings, METH_NOARGS, "strings(): those written out in events; i is meant by -2 - i."},
    {"take", walker_take, METH_VARARGS, "take(column): the finished column's memory."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot walker_slots[] = {
    {Py_tp_doc, "Walker(buffer, seed): collects the events of a trace's lines into columns."},
    {Py_tp_new, walker_new},
    {Py_tp_dealloc, walker_dealloc},
    {Py_tp_methods, walker_methods},
    {0, NULL},
};
static PyType_Spec walker_spec = {"analyzers.reading._walker.Walker", sizeof(walker_object), 0,
                                  Py_TPFLAGS_DEFAULT, walker_slots};

/* ---- functions ---------------------------------------------------------------------------------------- */

static int append_pair(PyObject *list, PyObject *item) {
    if (!item) return -1;
    int result = PyList_Append(list, item);
    Py_DECREF(item);
    return result;
}

static PyObject *split_plane(PyObject *module, PyObject *args) {
    Py_buffer view;
    Py_ssize_t first, last;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*nn:split_plane", &view, &first, &last)) return NULL;
    PyObject *lines = PyList_New(0), *rest = PyList_New(0), *result = NULL;
    if (!lines || !rest || !check_range(&view, first, last)) goto done;
    const uint8_t *base = view.buf, *rest_from = base + first;
    span s = {base + first, base + last, base + view.len};
    Py_ssize_t bad = -1;
    while (s.at < s.end) {
        const uint8_t *record = s.at;
        uint32_t tag;
        span value;
        if (!plane_record(&s, &tag, &value)) {
            bad = record - base;
            s.end = record;
            break;
        }
        if (tag == FIELD(3, 2)) {
            if (record > rest_from &&
                append_pair(rest, Py_BuildValue("(nn)", (Py_ssize_t)(rest_from - base), (Py_ssize_t)(record - base))))
                goto done;
            if (append_pair(lines, Py_BuildValue("(nnn)", (Py_ssize_t)(record - base), (Py_ssize_t)(value.at - base),
                                                 (Py_ssize_t)(value.end - base))))
                goto done;
            rest_from = value.end;
        }
    }
    if (s.end > rest_from &&
        append_pair(rest, Py_BuildValue("(nn)", (Py_ssize_t)(rest_from - base), (Py_ssize_t)(s.end - base))))
        goto done;
    result = Py_BuildValue("(OOn)", lines, rest, bad);
done:
    Py_XDECREF(lines);
    Py_XDECREF(rest);
    PyBuffer_Release(&view);
    return result;
}

static PyObject *nest(PyObject *module, PyObject *args) {
    Py_buffer first, last, start, duration, parent;
    long long tolerance;
    PyObject *result = NULL;
    int32_t *stack = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*y*y*y*Lw*:nest", &first, &last, &start, &duration, &tolerance, &parent))
        return NULL;
    size_t rows = (size_t)start.len / sizeof(int64_t), lines = (size_t)first.len / sizeof(int64_t), most = 0;
    const int64_t *firsts = first.buf, *lasts = last.buf;
    if ((size_t)duration.len / sizeof(int64_t) != rows || (size_t)parent.len / sizeof(int32_t) != rows ||
        last.len != first.len || tolerance < 0 || rows > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "columns of different lengths");
        goto done;
    }
    for (size_t i = 0; i < lines; i++) {
        if (firsts[i] < 0 || lasts[i] < firsts[i] || (size_t)lasts[i] > rows) {
            PyErr_SetString(PyExc_ValueError, "line outside the rows");
            goto done;
        }
        size_t length = (size_t)(lasts[i] - firsts[i]);
        if (length > most) most = length;
    }
    stack = malloc((most + 1) * sizeof *stack);
    if (!stack) {
        PyErr_NoMemory();
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    for (size_t i = 0; i < lines; i++)
        nest_line((size_t)firsts[i], (size_t)lasts[i], start.buf, duration.buf, (uint64_t)tolerance, parent.buf,
                  stack);
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
done:
    free(stack);
    PyBuffer_Release(&first);
    PyBuffer_Release(&last);
    PyBuffer_Release(&start);
    PyBuffer_Release(&duration);
    PyBuffer_Release(&parent);
    return result;
}

static PyMethodDef module_methods[] = {
    {"split_plane", split_plane, METH_VARARGS,
     "split_plane(buffer, first, last): (lines, other ranges, offset of the first bad record or -1)."},
    {"nest", nest, METH_VARARGS,
     "nest(first, last, start, duration, tolerance, parent): fill parent; int64 in, int32 out."},
    {NULL, NULL, 0, NULL},
};

static int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type) {
    *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *type ? PyModule_AddType(module, *type) : -1;
}

static int module_exec(PyObject *module) {
    module_state *state = PyModule_GetState(module);
    return add_type(module, &block_spec, &state->block) || add_type(module, &tables_spec, &state->tables) ||
                   add_type(module, &walker_spec, &state->walker)
               ? -1
               : 0;
}

static int module_traverse(PyObject *module, visitproc visit, void *arg) {
    module_state *state = PyModule_GetState(module);
    Py_VISIT(state->block);
    Py_VISIT(state->tables);
    Py_VISIT(state->walker);
    return 0;
}

static int module_clear(PyObject *module) {
    module_state *state = PyModule_GetState(module);
    Py_CLEAR(state->block);
    Py_CLEAR(state->tables);
    Py_CLEAR(state->walker);
    return 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};
static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, "_walker",       "Walks the events of a trace file; see _walker_core.h.",
    sizeof(module_state),  module_methods,  module_slots,
    module_traverse,       module_clear,    NULL};

PyMODINIT_FUNC PyInit__walker(void) { return PyModuleDef_Init(&module_definition); }
