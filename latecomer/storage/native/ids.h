/* The id index: an open-addressing table of (32-bit mark, reference, of which 32 bits may do), probed from place to
 * place. An index that is on the way to a new table has two. */

typedef struct {
    uint32_t *marks;
    char *refs;
    npy_intp size;
    int width;
} IdTable;

static int id_table(PyObject *const *given, IdTable *table, Held *held)
{
    table->size = -1;
    table->width = PyArray_Check(given[1]) && PyArray_ITEMSIZE((PyArrayObject *)given[1]) == 4 ? 4 : 8;
    if (!(table->marks = array(given[0], 4, &table->size, held)) ||
        !(table->refs = array(given[1], table->width, &table->size, held)))
        return 0;
    if (table->size < 1) {
        PyErr_SetString(PyExc_TypeError, "a table has a place at least");
        return 0;
    }
    return own_memory(given[0], table->marks) && own_memory(given[1], table->refs);
}

static inline uint32_t id_mark(uint64_t hash)
{
    uint32_t mark = (uint32_t)(hash >> 32);
    return mark ? mark : 1;
}

static inline npy_intp id_home(uint32_t mark, npy_intp size)
{
    return (npy_intp)(((uint64_t)mark * (uint64_t)size) >> 32);
}

/* The table in which a mark belongs: the new one for the `done` homes of the old one that come from `first` on. */
static inline int id_gone_over(uint32_t mark, const IdTable *old, npy_intp first, npy_intp done)
{
    if (!done)
        return 0;
    npy_intp off = id_home(mark, old->size) - first;
    return (off < 0 ? off + old->size : off) < done;
}

#define ID_AHEAD 12 /* rows: by then memory has answered */

/* Enter references `own` under the marks of hashes; `unique`: only where the mark is new. `open` are the rows that were not
 * entered, at most `most` (-1: any number) before it stops; `places`, if not NULL, where the others are, in `tables[0]` or
 * (-1 - place) in `tables[1]`. How many rows are left open; -1: the table is full. */
static npy_intp enter_ids(IdTable *tables, int64_t first, int64_t done, const uint64_t *hashes, const int64_t *own, npy_intp n,
                          int unique, npy_intp most, int64_t *open, int64_t *places)
{
    npy_intp left = 0;
    for (npy_intp i = 0; i < n && left != most; i++) {
        if (i + ID_AHEAD < n) {
            uint32_t mark = id_mark(hashes[i + ID_AHEAD]);
            const IdTable *soon = &tables[id_gone_over(mark, &tables[0], first, done)];
            npy_intp home = id_home(mark, soon->size);
            PREFETCH(soon->marks + home);
            PREFETCH(soon->refs + home * soon->width);
        }
        uint32_t wanted = id_mark(hashes[i]);
        const IdTable *table = &tables[id_gone_over(wanted, &tables[0], first, done)];
        uint32_t *marks = table->marks;
        npy_intp size = table->size, at = id_home(wanted, size), steps = 0;
        while (marks[at] && !(unique && marks[at] == wanted) && ++steps <= size)
            at = at + 1 == size ? 0 : at + 1;
        if (steps > size)
            return -1;
        if (marks[at]) {
            open[left++] = i;
            continue;
        }
        marks[at] = wanted;
        if (table->width == 4)
            ((uint32_t *)table->refs)[at] = (uint32_t)own[i];
        else
            ((int64_t *)table->refs)[at] = own[i];
        if (places)
            places[i] = table == tables ? at : -1 - at;
    }
    return left;
}

/* Take the first `n` of those out again that enter_ids() has entered last, all of them. */
static void forget_ids(IdTable *tables, const int64_t *places, npy_intp n)
{
    while (n--)
        tables[places[n] < 0].marks[places[n] < 0 ? -1 - places[n] : places[n]] = 0;
}

/* put(marks (32 bits), refs (32 or 64 bits), new marks, new refs, first, done, hashes, own (64 bits), unique) -> (rows
 * not entered, how many were): enter references under the marks of hashes; `unique`: only where the mark is new. The
 * tables are written to. */
static PyObject *put(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held held = {{0}, 0};
    IdTable tables[2];
    npy_intp n = -1, left = 0;
    int64_t first, done;
    PyObject *rows = NULL, *result = NULL;
    int64_t *open = NULL;
    const uint64_t *hashes;
    const int64_t *own;
    if (!expects(count, 9) || !integer(args[4], &first) || !integer(args[5], &done))
        return NULL;
    int unique = PyObject_IsTrue(args[8]);
    if (!id_table(args, &tables[0], &held) || !id_table(args + 2, &tables[1], &held) ||
        !(hashes = array(args[6], 8, &n, &held)) || !(own = array(args[7], 8, &n, &held)))
        ;
    else if ((open = malloc((n + 1) * sizeof *open)) == NULL)
        PyErr_NoMemory();
    else {
        NPY_BEGIN_THREADS_DEF;
        NPY_BEGIN_THREADS_THRESHOLDED(n);
        left = enter_ids(tables, first, done, hashes, own, n, unique, -1, open, NULL);
        NPY_END_THREADS;
        if (left < 0)
            PyErr_SetString(PyExc_ValueError, "the table is full");
        else if ((rows = fresh(left, NPY_INT64))) {
            memcpy(DATA(rows), open, left * sizeof *open);
            result = Py_BuildValue("Nn", rows, (Py_ssize_t)(n - left));
        }
    }
    free(open);
    let_go(&held);
    return result;
}

/* take_out(marks (32 bits), refs (32 or 64 bits), begin, end, base) -> (hashes, refs): the entries at these places, which
 * are free then; references of 32 bits are at least `base`. Of hashes only the marks are known. */
static PyObject *take_out(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held held = {{0}, 0};
    IdTable table;
    int64_t begin, end, base;
    PyObject *hashes = NULL, *refs = NULL, *result = NULL;
    if (!expects(count, 5) || !integer(args[2], &begin) || !integer(args[3], &end) || !integer(args[4], &base))
        return NULL;
    if (!id_table(args, &table, &held))
        ;
    else if (begin < 0 || end < begin || end > table.size)
        PyErr_SetString(PyExc_IndexError, "these places are not in the table");
    else {
        npy_intp n = 0;
        for (npy_intp at = begin; at < end; at++)
            n += table.marks[at] != 0;
        if ((hashes = fresh(n, NPY_UINT64)) && (refs = fresh(n, NPY_INT64))) {
            uint64_t *out = DATA(hashes);
            int64_t *told = DATA(refs);
            for (npy_intp at = begin, row = 0; row < n; at++)
                if (table.marks[at]) {
                    out[row] = (uint64_t)table.marks[at] << 32;
                    told[row++] = table.width == 8 ? ((const int64_t *)table.refs)[at]
                                                   : base + (uint32_t)(((const uint32_t *)table.refs)[at] - (uint32_t)base);
                }
            memset(table.marks + begin, 0, (end - begin) * sizeof *table.marks);
            result = PyTuple_Pack(2, hashes, refs);
        }
    }
    Py_XDECREF(hashes);
    Py_XDECREF(refs);
    let_go(&held);
    return result;
}
