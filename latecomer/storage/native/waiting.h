/* Waiting: matches that steps hold until a moment of their own (`runtime/holding.py`). A row is its moment, its turn among
 * those of one moment, the key, and the references of its parts. Most events come in order, and so do the moments of what
 * they are part of: such rows are a queue. The others are a heap, with the next one on top.
 */

#define ROW_HEAD 3

typedef struct {
    PyObject_HEAD
    npy_intp parts, count;
    int64_t until;       /* all that waits up to here is here, and not elsewhere */
    int64_t first, last; /* turns: the next of those that have waited elsewhere, and of new ones */
    npy_intp begin, end, room, heaped, heap_room;
    int64_t *queue, *heap; /* rows from `begin` to `end`, and as many as are `heaped` */
} Waiting;

static inline npy_intp row_width(const Waiting *waiting)
{
    return ROW_HEAD + waiting->parts;
}

static inline int goes_before(const int64_t *row, const int64_t *other)
{
    return row[0] < other[0] || (row[0] == other[0] && row[1] < other[1]);
}

/* Most rows have a part or two: too few words to call for. */
static inline void copy_row(int64_t *to, const int64_t *row, npy_intp width)
{
    for (npy_intp i = 0; i <= ROW_HEAD; i++)
        to[i] = row[i];
    if (width > ROW_HEAD + 1)
        memcpy(to + ROW_HEAD + 1, row + ROW_HEAD + 1, (size_t)(width - ROW_HEAD - 1) * sizeof *row);
}

/* The same rows in other memory, with room for so many; 0: there is none. */
static int rows_move(int64_t **rows, npy_intp *room, npy_intp wanted, npy_intp width)
{
    int64_t *own = realloc(*rows, (size_t)wanted * (size_t)width * sizeof *own);
    if (own == NULL) {
        complain(PyExc_MemoryError, "there is none for matches that wait");
        return 0;
    }
    *rows = own;
    *room = wanted;
    return 1;
}

/* Make room for so many more; 0: there is no memory. */
static int waiting_room(Waiting *waiting, npy_intp more)
{
    npy_intp width = row_width(waiting), n = waiting->end - waiting->begin;
    if (waiting->heaped + more > waiting->heap_room &&
        !rows_move(&waiting->heap, &waiting->heap_room, 2 * waiting->heaped + more + 64, width))
        return 0;
    if (waiting->end + more <= waiting->room)
        return 1;
    if (waiting->begin) {
        memmove(waiting->queue, waiting->queue + waiting->begin * width, (size_t)(n * width) * sizeof *waiting->queue);
        waiting->begin = 0;
        waiting->end = n;
    }
    return 2 * (n + more) <= waiting->room || rows_move(&waiting->queue, &waiting->room, 2 * (n + more) + 64, width);
}

static void heap_put(int64_t *heap, npy_intp at, const int64_t *row, npy_intp width)
{
    for (; at > 0 && goes_before(row, heap + (at - 1) / 2 * width); at = (at - 1) / 2)
        copy_row(heap + at * width, heap + (at - 1) / 2 * width, width);
    copy_row(heap + at * width, row, width);
}

/* The top of a heap goes; `n` rows stay. */
static void heap_drop(int64_t *heap, npy_intp n, npy_intp width)
{
    const int64_t *last = heap + n * width;
    npy_intp at = 0, below;
    for (; (below = 2 * at + 1) < n; at = below) {
        below += below + 1 < n && goes_before(heap + (below + 1) * width, heap + below * width);
        if (!goes_before(heap + below * width, last))
            break;
        copy_row(heap + at * width, heap + below * width, width);
    }
    if (at < n)
        copy_row(heap + at * width, last, width);
}

/* Put in a row, for which there is room. */
static void waiting_put(Waiting *waiting, const int64_t *row)
{
    npy_intp width = row_width(waiting);
    waiting->count++;
    if (waiting->begin == waiting->end || goes_before(waiting->queue + (waiting->end - 1) * width, row))
        copy_row(waiting->queue + waiting->end++ * width, row, width);
    else
        heap_put(waiting->heap, waiting->heaped++, row, width);
}

/* Whether the next row is on top of the heap. */
static inline int heap_is_next(const Waiting *waiting)
{
    return waiting->heaped && (waiting->begin == waiting->end ||
                               goes_before(waiting->heap, waiting->queue + waiting->begin * row_width(waiting)));
}

/* Take out the next row, if it has come by a moment. */
static int waiting_next(Waiting *waiting, int64_t moment, int64_t *row)
{
    npy_intp width = row_width(waiting);
    if (!waiting->count)
        return 0;
    int heaped = heap_is_next(waiting);
    const int64_t *next = heaped ? waiting->heap : waiting->queue + waiting->begin * width;
    if (next[0] > moment)
        return 0;
    copy_row(row, next, width);
    waiting->count--;
    if (heaped)
        heap_drop(waiting->heap, --waiting->heaped, width);
    else
        waiting->begin++;
    return 1;
}

/* Put back the row that was taken out last, into the place that it has left, or that there is in the heap. */
static void waiting_back(Waiting *waiting, const int64_t *row)
{
    npy_intp width = row_width(waiting);
    waiting->count++;
    if (waiting->begin)
        copy_row(waiting->queue + --waiting->begin * width, row, width);
    else
        heap_put(waiting->heap, waiting->heaped++, row, width);
}

static PyObject *waiting_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    Py_ssize_t parts;
    if (!PyArg_ParseTuple(args, "n", &parts))
        return NULL;
    if (parts < 1 || parts > MOST_PARTS)
        return PyErr_Format(PyExc_TypeError, "matches have 1 to %d parts, not %zd", MOST_PARTS, parts);
    Waiting *self = (Waiting *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->parts = parts;
    self->until = self->first = INT64_MIN;
    return (PyObject *)self;
}

static void waiting_gone(PyObject *self)
{
    free(((Waiting *)self)->queue);
    free(((Waiting *)self)->heap);
    Py_TYPE(self)->tp_free(self);
}

/* add(moments, columns, new): rows in the order of their turns, which are new, or have waited elsewhere; columns are the
 * references of each part, and the keys. */
static PyObject *waiting_add(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Waiting *waiting = (Waiting *)self;
    const int64_t *moments, *columns[MOST_PARTS + 1];
    int64_t row[ROW_HEAD + MOST_PARTS];
    npy_intp n = -1;
    if (!expects(count, 3))
        return NULL;
    int64_t *turn = PyObject_IsTrue(args[2]) ? &waiting->last : &waiting->first;
    PyObject **part = items(args[1], waiting->parts + 1, "columns");
    if (!part || !(moments = lent(args[0], 8, &n)))
        return NULL;
    for (npy_intp i = 0; i <= waiting->parts; i++)
        if (!(columns[i] = lent(part[i], 8, &n)))
            return NULL;
    if (!waiting_room(waiting, n))
        return NULL;
    for (npy_intp i = 0; i < n; i++) {
        row[0] = moments[i];
        row[1] = (*turn)++;
        row[2] = columns[waiting->parts][i];
        for (npy_intp j = 0; j < waiting->parts; j++)
            row[ROW_HEAD + j] = columns[j][i];
        waiting_put(waiting, row);
    }
    Py_RETURN_NONE;
}

/* How many rows of the heap, from `at` down, have come by a moment. */
static npy_intp come_by(const Waiting *waiting, npy_intp at, int64_t moment)
{
    if (at >= waiting->heaped || waiting->heap[at * row_width(waiting)] > moment)
        return 0;
    return 1 + come_by(waiting, 2 * at + 1, moment) + come_by(waiting, 2 * at + 2, moment);
}

/* take(moment): the rows that have come by then, which are here no longer, in their order: (moments, columns). */
static PyObject *waiting_take(PyObject *self, PyObject *given)
{
    Waiting *waiting = (Waiting *)self;
    int64_t moment;
    if (!integer(given, &moment))
        return NULL;
    npy_intp n = come_by(waiting, 0, moment), parts = waiting->parts;
    for (npy_intp i = waiting->begin; i < waiting->end && waiting->queue[i * row_width(waiting)] <= moment; i++)
        n++;
    int64_t row[ROW_HEAD + MOST_PARTS], *own[MOST_PARTS + 1];
    PyObject *moments = fresh(n, NPY_INT64), *columns = PyTuple_New(parts + 1), *result = NULL;
    int fine = moments && columns;
    for (npy_intp i = 0; fine && i <= parts; i++) {
        PyObject *column = fresh(n, NPY_INT64);
        if ((fine = column != NULL)) {
            PyTuple_SET_ITEM(columns, i, column);
            own[i] = DATA(column);
        }
    }
    for (npy_intp i = 0; fine && i < n; i++) {
        waiting_next(waiting, moment, row);
        ((int64_t *)DATA(moments))[i] = row[0];
        own[parts][i] = row[2];
        for (npy_intp j = 0; j < parts; j++)
            own[j][i] = row[ROW_HEAD + j];
    }
    if (fine) {
        if (!waiting->count) {
            free(waiting->queue);
            free(waiting->heap);
            waiting->queue = waiting->heap = NULL;
            waiting->begin = waiting->end = waiting->room = waiting->heap_room = 0;
        }
        result = PyTuple_Pack(2, moments, columns);
    }
    Py_XDECREF(moments);
    Py_XDECREF(columns);
    return result;
}

static PyObject *waiting_nbytes(PyObject *self, void *unused)
{
    const Waiting *waiting = (Waiting *)self;
    return PyLong_FromSsize_t((waiting->room + waiting->heap_room) * row_width(waiting) * (npy_intp)sizeof *waiting->queue);
}

static PyMemberDef waiting_members[] = {
    {"until", T_LONGLONG, offsetof(Waiting, until), 0, "all that waits up to this moment is here"},
    {"count", T_PYSSIZET, offsetof(Waiting, count), READONLY, "matches"},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef waiting_values[] = {
    {"nbytes", waiting_nbytes, NULL, "bytes in memory", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef waiting_methods[] = {
    {"add", (PyCFunction)(void (*)(void))waiting_add, METH_FASTCALL, "Put in matches."},
    {"take", waiting_take, METH_O, "Take out the matches whose moment has come, in the order of their moments."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject WaitingType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "latecomer.storage._compiled.Waiting",
    .tp_doc = "Matches that steps hold.",
    .tp_basicsize = sizeof(Waiting),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = waiting_new,
    .tp_dealloc = waiting_gone,
    .tp_members = waiting_members,
    .tp_getset = waiting_values,
    .tp_methods = waiting_methods,
};
