/* Answers: what several join orders find, one after another, as the rows of one table. */

#define MOST_ORDERS (2 * MOST_PARTS)

/* Where in a row of what was found the reference of a component is; its time is next to it. -1: it is not bound. */
static npy_intp found_at(const Program *program, int64_t part)
{
    for (int64_t i = 0; i < program->bound + program->moves; i++)
        if ((i < program->bound ? program->bind[i] : program->move[i - program->bound].look.part) == part)
            return (npy_intp)(1 + 2 * i);
    return -1;
}

/* Append what a follow has found of `parts` to rows of references and of times. 0: it does not bind them. */
static int take_found(const Follow *f, const int64_t *parts, npy_intp each, int64_t **refs, int64_t **ts)
{
    npy_intp places[MOST_PARTS];
    for (npy_intp i = 0; i < each; i++)
        if ((places[i] = found_at(f->program, parts[i])) < 0)
            return 0;
    for (npy_intp row = 0; row < f->count; row++)
        for (npy_intp i = 0; i < each; i++) {
            *(*refs)++ = f->found[row * f->width + places[i]];
            *(*ts)++ = f->found[row * f->width + places[i] + 1];
        }
    return 1;
}

/* follow_each(orders, parts, most) -> (counts, refs, ts) | None
 *
 * `orders` is a tuple of the arguments of as many calls of follow(), as tuples. They are followed to their ends, one after
 * another; `counts` says how many matches each has found, `refs` and `ts` are tables of the references and times of the
 * components `parts`, a row for each match. None: one of them finds `most` or more. */
static PyObject *follow_each(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held held = {{0}, 0};
    Follow *follows[MOST_ORDERS] = {NULL};
    npy_intp each = -1, size[2] = {0, 0};
    int64_t most;
    int whole = 1;
    PyObject *refs = NULL, *ts = NULL, *counts = NULL, *result = NULL;
    if (!expects(count, 3) || !integer(args[2], &most))
        return NULL;
    const int64_t *parts = array(args[1], 8, &each, &held);
    Py_ssize_t orders = parts && PyTuple_Check(args[0]) ? PyTuple_GET_SIZE(args[0]) : MOST_ORDERS + 1;
    if (orders > MOST_ORDERS || each > MOST_PARTS) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "a tuple of orders is needed, and not so many of them, nor of components");
        let_go(&held);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < orders && whole && !PyErr_Occurred(); i++) {
        PyObject **own = items(PyTuple_GET_ITEM(args[0], i), 10, "arguments of an order");
        Follow *f = own ? follows[i] = begun(own) : NULL;
        if (f == NULL)
            continue;
        NPY_BEGIN_THREADS_DEF;
        NPY_BEGIN_THREADS;
        follow_on(f, most);
        NPY_END_THREADS;
        if (!sound_so_far(f))
            continue;
        whole = f->depth < 0 && f->seed == f->n;
        size[0] += f->count;
    }
    size[1] = each;
    if (!PyErr_Occurred() && whole && (counts = PyTuple_New(orders)) && (refs = PyArray_SimpleNew(2, size, NPY_INT64)) &&
        (ts = PyArray_SimpleNew(2, size, NPY_INT64))) {
        int64_t *own_refs = DATA(refs), *own_ts = DATA(ts);
        for (Py_ssize_t i = 0; i < orders && !PyErr_Occurred(); i++) {
            PyObject *found = PyLong_FromSsize_t(follows[i] ? follows[i]->count : 0);
            if (found != NULL)
                PyTuple_SET_ITEM(counts, i, found);
            if (follows[i] && !take_found(follows[i], parts, each, &own_refs, &own_ts))
                PyErr_SetString(PyExc_TypeError, "a component is asked for that an order does not bind");
        }
        if (!PyErr_Occurred())
            result = PyTuple_Pack(3, counts, refs, ts);
    } else if (!PyErr_Occurred() && !whole)
        result = Py_NewRef(Py_None);
    for (Py_ssize_t i = 0; i < orders; i++)
        if (follows[i])
            follow_done(follows[i]);
    Py_XDECREF(counts);
    Py_XDECREF(refs);
    Py_XDECREF(ts);
    let_go(&held);
    return result;
}
