/* Calls of follow: arguments in, which are looked at once, and matches out, some at a time. */

static void follow_done(Follow *f)
{
    if (f->sources)
        for (int64_t i = 0; i < f->program->sources; i++)
            source_done(f->sources + i);
    free(f->sources); /* and all that lies behind them */
    free(f->found);
    Py_XDECREF(f->arguments);
    free(f);
}

static void follow_gone(PyObject *capsule)
{
    follow_done(PyCapsule_GetPointer(capsule, "latecomer.follow"));
}

/* The memory of an array that lies in one piece and that the caller keeps; `n` as in array(). */
static const void *lent(PyObject *given, int width, npy_intp *n)
{
    if (!PyArray_Check(given) || PyArray_NDIM((PyArrayObject *)given) != 1 ||
        PyArray_ITEMSIZE((PyArrayObject *)given) != width || !PyArray_IS_C_CONTIGUOUS((PyArrayObject *)given) ||
        (*n >= 0 && *n != PyArray_DIM((PyArrayObject *)given, 0))) {
        PyErr_Format(PyExc_TypeError, "a contiguous array of %zd %d-byte values is needed, not %R", (Py_ssize_t)*n, width,
                     given);
        return NULL;
    }
    *n = PyArray_DIM((PyArrayObject *)given, 0);
    return DATA(given);
}

/* The items of a tuple of so many (-1: any number); NULL: it is none. */
static PyObject **items(PyObject *given, Py_ssize_t wanted, const char *what)
{
    if (!PyTuple_Check(given) || (wanted >= 0 && PyTuple_GET_SIZE(given) != wanted)) {
        PyErr_Format(PyExc_TypeError, "a tuple of %zd %s is needed, not %R", wanted, what, given);
        return NULL;
    }
    return ((PyTupleObject *)given)->ob_item;
}

/* A column from (values, offsets or None, valid or None). */
static int column_of(PyObject *given, const int64_t *layout, Column *column)
{
    PyObject **part = items(given, 3, "parts of a column");
    npy_intp edges = -1;
    column->n = -1;
    column->kind = (enum Kind)layout[0];
    column->width = (int)layout[1];
    if (!part || !(column->values = lent(part[0], column->width, &column->n)))
        return 0;
    if (column->kind == TEXT) {
        if (!(column->offsets = lent(part[1], 8, &edges)))
            return 0;
        column->n = edges - 1;
    }
    if (part[2] != Py_None && !(column->valid = lent(part[2], 1, &column->n)))
        return 0;
    if (column->kind <= FLOATING && column->width == 8 && !column->valid)
        column->words = (const int64_t *)column->values;
    column->first = column->kind == TEXT ? (const char *)column->offsets : column->values;
    column->step = column->kind == TEXT ? 8 : column->width;
    return 1;
}

/* Places from (number, dense, sparse, numbers) or (number, dense, sparse, bytes, within, blocks, block bits, base). */
static int places_of(PyObject *given, Places *places)
{
    npy_intp plain = -1, within = -1, blocks = -1;
    int bits = PyTuple_Check(given) && PyTuple_GET_SIZE(given) == 8;
    PyObject **part = items(given, bits ? 8 : 4, "parts of places");
    if (!part || !integer(part[0], &places->number) || !integer(part[1], &places->dense) ||
        !integer(part[2], &places->sparse))
        return 0;
    if (!bits)
        return (places->plain = lent(part[3], 8, &plain)) && plain == places->sparse;
    places->size = -1;
    if (!(places->bytes = lent(part[3], 1, &places->size)))
        return 0;
    within = places->size;
    return (places->within = lent(part[4], 1, &within)) && (places->blocks = lent(part[5], 8, &blocks)) &&
           integer(part[6], &places->block) && integer(part[7], &places->base) && places->size <= blocks << places->block;
}

/* The memory of a call, in one piece. 0: there is not as much, with an exception. */
static int roomy(Follow *f)
{
    const Program *program = f->program;
    size_t sources = (size_t)program->sources * sizeof *f->sources, columns = (size_t)program->columns * sizeof(Column);
    size_t latest = (size_t)program->sources * sizeof *f->latest;
    size_t places = (size_t)program->bound * GROUP * sizeof *f->seed_place;
    char *memory = malloc(sources + columns + latest + places + (size_t)program->moves * sizeof *f->level);
    if (memory == NULL) {
        complain(PyExc_MemoryError, "there is none for an order");
        return 0;
    }
    memset(memory, 0, sources + columns);
    f->sources = (Source *)memory;
    f->bound.columns = (Column *)(memory + sources);
    f->bound.texts = program->text;
    f->latest = (int64_t *)(memory + sources + columns);
    f->seed_place = (int64_t *)(memory + sources + columns + latest);
    f->level = (Level *)(memory + sources + columns + latest + places);
    return 1;
}

/* Sources, columns, places and seeds of a call. 0: not usable, or (`nothing`) without matches whatever the seeds. */
static int prepared(Follow *f, PyObject *const *args, int64_t bits, int *nothing)
{
    const Program *program = f->program;
    PyObject **sources = items(args[1], program->sources, "sources");
    PyObject **latest = sources ? items(args[9], program->sources, "times") : NULL;
    if (!latest || !roomy(f))
        return 0;
    for (int64_t i = 0; i < program->sources; i++)
        if (!source_of(sources[i], bits, f->sources + i) || !integer(latest[i], f->latest + i))
            return 0;
    for (int64_t i = 0; i < program->moves; i++)
        if ((*nothing = nothing_in(f->sources + program->move[i].look.source)))
            return 0;
    PyObject **columns = items(args[3], program->columns, "columns");
    if (!columns)
        return 0;
    for (int64_t i = 0; i < program->columns; i++)
        if (!column_of(columns[i], program->layout + 2 * i, f->bound.columns + i))
            return 0;
    PyObject **refs = items(args[6], program->bound, "seeds"), **ts = refs ? items(args[7], program->bound, "seeds") : NULL;
    f->n = -1;
    if (!ts || !places_of(args[4], &f->bound.places) || !(f->keys = lent(args[5], 8, &f->n)))
        return 0;
    for (int64_t i = 0; i < program->bound; i++)
        if (!(f->seed_refs[i] = lent(refs[i], 8, &f->n)) || !(f->seed_ts[i] = lent(ts[i], 8, &f->n)))
            return 0;
    for (int64_t i = 0; i < program->sources; i++)
        expect(f->sources + i, f->n);
    return 1;
}

static int told(PyObject *list, int64_t part, const int64_t *row, const Follow *f)
{
    PyObject *column = fresh(f->count, NPY_INT64);
    if (column == NULL)
        return 0;
    int64_t *out = DATA(column);
    for (npy_intp i = 0; i < f->count; i++)
        out[i] = row[i * f->width];
    return PyList_SetItem(list, part, column) == 0;
}

static PyObject *nones(int64_t n)
{
    PyObject *list = PyList_New(n);
    for (int64_t i = 0; list && i < n; i++)
        PyList_SET_ITEM(list, i, Py_NewRef(Py_None));
    return list;
}

/* Whether nothing has gone wrong; else there is an exception. */
static int sound_so_far(const Follow *f)
{
    if (f->bound.lost)
        complain(PyExc_IndexError, "a reference is not in the log");
    else if (f->short_of_memory)
        complain(PyExc_MemoryError, "there is none for so many matches");
    return !f->bound.lost && !f->short_of_memory;
}

/* What has been found so far, as (seeds, keys, refs, ts, rest); the follow is handed to `rest`, or done. */
static PyObject *piece(Follow *f, int64_t most)
{
    const Program *program = f->program;
    NPY_BEGIN_THREADS_DEF;
    NPY_BEGIN_THREADS;
    follow_on(f, most);
    NPY_END_THREADS;
    if (!sound_so_far(f)) {
        follow_done(f);
        return NULL;
    }
    if (!f->count) {
        follow_done(f);
        Py_RETURN_NONE;
    }
    PyObject *seeds = fresh(f->count, NPY_INT64), *keys = fresh(f->count, NPY_UINT64), *rest = NULL, *result = NULL;
    PyObject *refs = nones(program->parts), *ts = nones(program->parts);
    int fine = seeds && keys && refs && ts;
    if (fine) {
        int64_t *own = DATA(seeds);
        uint64_t *out = DATA(keys);
        for (npy_intp i = 0; i < f->count; i++) {
            own[i] = f->found[i * f->width];
            out[i] = f->keys[own[i]];
        }
    }
    for (int64_t i = 0; fine && i < program->bound + program->moves; i++) {
        int64_t part = i < program->bound ? program->bind[i] : program->move[i - program->bound].look.part;
        fine = told(refs, part, f->found + 1 + 2 * i, f) && told(ts, part, f->found + 2 + 2 * i, f);
    }
    f->count = 0;
    if (fine && (f->depth >= 0 || f->seed < f->n)) {
        if ((rest = PyCapsule_New(f, "latecomer.follow", follow_gone)))
            result = PyTuple_Pack(5, seeds, keys, refs, ts, rest);
        else
            follow_done(f);
    } else {
        follow_done(f);
        if (fine)
            result = PyTuple_Pack(5, seeds, keys, refs, ts, Py_None);
    }
    Py_XDECREF(seeds);
    Py_XDECREF(keys);
    Py_XDECREF(refs);
    Py_XDECREF(ts);
    Py_XDECREF(rest);
    return result;
}

/* A follow of the arguments of follow(), of which it makes use while they are there. NULL: with an exception, or there is
 * nothing to be found whatever the seeds. */
static Follow *begun(PyObject *const *args)
{
    int64_t bits;
    int nothing = 0;
    Program *program = PyCapsule_GetPointer(args[0], "latecomer.program");
    if (program == NULL || !integer(args[2], &bits))
        return NULL;
    Follow *f = calloc(1, sizeof *f);
    if (f == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    f->program = program;
    f->depth = -1;
    f->until = INT64_MAX;
    f->mask = (INT64_C(1) << (bits & 63)) - 1;
    f->width = 1 + 2 * (program->bound + program->moves);
    if (prepared(f, args, bits, &nothing))
        return f;
    follow_done(f);
    if (!nothing && !PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "a source, a column or a seed does not fit");
    return NULL;
}

/* follow(program, sources, bits, columns, places, keys, refs, ts, most, latest) -> the first `most` matches or fewer, or None
 *
 * `latest` are times that no event of a source is later than. Seeds are rows of keys, and of refs and ts for each
 * component that the program says they bind. Matches are (numbers of their seeds, keys, references and times as a list
 * with None for components not bound, and what `resume` needs to go on, or None). */
static PyObject *follow(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    int64_t most;
    if (!expects(count, 10) || !integer(args[8], &most))
        return NULL;
    Follow *f = begun(args);
    if (f == NULL) {
        if (PyErr_Occurred())
            return NULL;
        Py_RETURN_NONE;
    }
    if (!(f->arguments = PyTuple_New(10))) {
        follow_done(f);
        return NULL;
    }
    for (int i = 0; i < 10; i++)
        PyTuple_SET_ITEM(f->arguments, i, Py_NewRef(args[i]));
    return piece(f, most);
}

/* resume(rest, most) -> the next matches, as `follow` gives them; what was the rest is used up */
static PyObject *resume(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    int64_t most;
    if (!expects(count, 2) || !integer(args[1], &most))
        return NULL;
    Follow *f = PyCapsule_GetPointer(args[0], "latecomer.follow");
    if (f == NULL || PyCapsule_SetName(args[0], "latecomer.used") || PyCapsule_SetDestructor(args[0], NULL))
        return NULL;
    return piece(f, most);
}
