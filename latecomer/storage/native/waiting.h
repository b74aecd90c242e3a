/* Waiting: matches that steps hold until a moment of their own (`runtime/holding.py`), a heap with the next one on top. A row
 * is its moment, its turn among those of one moment, the key, and the references of its parts. */

#define ROW_HEAD 3

typedef struct {
    PyObject_HEAD
    npy_intp parts, count, room;
    int64_t until;       /* all that waits up to here is here, and not elsewhere */
    int64_t first, last; /* turns: the next of those that have waited elsewhere, and of new ones */
    int64_t *rows;
} Waiting;

static inline npy_intp row_width(const Waiting *waiting)
{
    return ROW_HEAD + waiting->parts;
}

static inline int goes_before(const int64_t *row, const int64_t *other)
{
    return row[0] < other[0] || (row[0] == other[0] && row[1] < other[1]);
}

/* Make room for so many more; 0: there is no memory. */
static int waiting_room(Waiting *waiting, npy_intp more)
{
    if (waiting->count + more <= waiting->room)
        return 1;
    npy_intp room = 2 * waiting->count + more + 64;
    int64_t *rows = realloc(waiting->rows, (size_t)room * (size_t)row_width(waiting) * sizeof *rows);
    if (rows == NULL) {
        complain(PyExc_MemoryError, "there is none for matches that wait");
        return 0;
    }
    waiting->rows = rows;
    waiting->room = room;
    return 1;
}

/* Put in a row, for which there is room. */
static void waiting_put(Waiting *waiting, const int64_t *row)
{
    npy_intp width = row_width(waiting), at = waiting->count++;
    while (at > 0 && goes_before(row, waiting->rows + (at - 1) / 2 * width)) {
        memcpy(waiting->rows + at * width, waiting->rows + (at - 1) / 2 * width, (size_t)width * sizeof *row);
        at = (at - 1) / 2;
    }
    memcpy(waiting->rows + at * width, row, (size_t)width * sizeof *row);
}

/* Take out the next row. */
static void waiting_next(Waiting *waiting, int64_t *row)
{
    npy_intp width = row_width(waiting), n = --waiting->count, at = 0, below;
    int64_t *rows = waiting->rows;
    const int64_t *last = rows + n * width;
    memcpy(row, rows, (size_t)width * sizeof *row);
    for (; (below = 2 * at + 1) < n; at = below) {
        below += below + 1 < n && goes_before(rows + (below + 1) * width, rows + below * width);
        if (!goes_before(rows + below * width, last))
            break;
        memcpy(rows + at * width, rows + below * width, (size_t)width * sizeof *rows);
    }
    if (n)
        memmove(rows + at * width, last, (size_t)width * sizeof *rows);
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
    free(((Waiting *)self)->rows);
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

static int in_order(const void *row, const void *other)
{
    return goes_before(row, other) ? -1 : goes_before(other, row);
}

/* How many rows of the heap, from `at` down, have come by a moment. */
static npy_intp come_by(const Waiting *waiting, npy_intp at, int64_t moment)
{
    if (at >= waiting->count || waiting->rows[at * row_width(waiting)] > moment)
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
    if (n > 1 && n == waiting->count) /* what is in order is a heap, too */
        qsort(waiting->rows, (size_t)n, (size_t)row_width(waiting) * sizeof *waiting->rows, in_order);
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
    int whole = n == waiting->count;
    for (npy_intp i = 0; fine && i < n; i++) {
        if (whole)
            memcpy(row, waiting->rows + i * row_width(waiting), (size_t)row_width(waiting) * sizeof *row);
        else
            waiting_next(waiting, row);
        ((int64_t *)DATA(moments))[i] = row[0];
        own[parts][i] = row[2];
        for (npy_intp j = 0; j < parts; j++)
            own[j][i] = row[ROW_HEAD + j];
    }
    if (fine) {
        if (whole) {
            free(waiting->rows);
            waiting->rows = NULL;
            waiting->count = waiting->room = 0;
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
    return PyLong_FromSsize_t(waiting->room * row_width(waiting) * (npy_intp)sizeof *waiting->rows);
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
