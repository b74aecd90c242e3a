/* The id index: an open-addressing table whose entries are words, probed from place to place: the mark above 32 bits of
 * the reference. The others (`highs`) lie apart, where references need them. An index that is on the way to a new table
 * has two. */

typedef struct {
    uint64_t *words; /* 0: a free place */
    uint32_t *highs; /* or NULL */
    npy_intp size;
} IdTable;

static int id_table(PyObject *const *given, IdTable *table, Held *held)
{
    npy_intp highs = -1;
    table->size = -1;
    if (!(table->words = array(given[0], 8, &table->size, held)) ||
        !(table->highs = array(given[1], 4, &highs, held)) ||
        !own_memory(given[0], table->words) || !own_memory(given[1], table->highs))
        return 0;
    if (table->size < 1 || (highs && highs != table->size)) {
        PyErr_SetString(PyExc_TypeError, "a table has a place at least, and high bits for all of them or for none");
        return 0;
    }
    if (!highs)
        table->highs = NULL;
    return 1;
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

static inline const IdTable *id_table_of(uint32_t mark, const IdTable *tables, npy_intp first, npy_intp done)
{
    return &tables[id_gone_over(mark, &tables[0], first, done)];
}

/* The reference of an entry; without high bits it is the least that is not below `base`. */
static inline int64_t id_ref(const IdTable *table, npy_intp at, int64_t base)
{
    uint32_t low = (uint32_t)table->words[at];
    return table->highs ? (int64_t)((uint64_t)table->highs[at] << 32 | low) : base + (uint32_t)(low - (uint32_t)base);
}

/* The first place from the mark's home on that is free or, where it is to be `unique`, holds it; -1: there is none. */
static inline npy_intp id_place(const IdTable *table, uint32_t mark, int unique)
{
    const uint64_t *words = table->words;
    npy_intp size = table->size, at = id_home(mark, size), steps = 0;
    while (words[at] && !(unique && (uint32_t)(words[at] >> 32) == mark)) {
        if (++steps == size)
            return -1;
        at = at + 1 == size ? 0 : at + 1;
    }
    return at;
}

/* Write an entry into a free place; where that is, in `tables[0]` or (-1 - place) in `tables[1]`. */
static inline int64_t take_place(const IdTable *tables, const IdTable *table, npy_intp at, uint32_t mark, int64_t ref)
{
    table->words[at] = (uint64_t)mark << 32 | (uint32_t)ref;
    if (table->highs)
        table->highs[at] = (uint32_t)((uint64_t)ref >> 32);
    return table == tables ? at : -1 - at;
}

#define ID_AHEAD 16 /* rows: by then memory has answered */
#define ID_CHAIN 3  /* places that most looks go on from home at most: into the next line of memory, often enough */

/* Enter references `own` under the marks of hashes, each into the table where it belongs; `unique`: only where the mark
 * is new. `open` are the rows that were not entered; `places`, if not NULL, where the others are, in `tables[0]` or
 * (-1 - place) in `tables[1]`. How many rows are left open; -1: the table is full. */
static npy_intp enter_ids(const IdTable *tables, int64_t first, int64_t done, const uint64_t *hashes,
                          const int64_t *own, npy_intp n, int unique, int64_t *open, int64_t *places)
{
    npy_intp left = 0;
    for (npy_intp i = -ID_AHEAD; i < n; i++) {
        if (i + ID_AHEAD < n) { /* here, since compilers leave out a function that does nothing but fetch ahead */
            uint32_t soon = id_mark(hashes[i + ID_AHEAD]);
            const IdTable *table = id_table_of(soon, tables, first, done);
            const uint64_t *home = table->words + id_home(soon, table->size);
            PREFETCH(home);
            PREFETCH(home + ID_CHAIN);
        }
        if (i < 0)
            continue;
        uint32_t mark = id_mark(hashes[i]);
        const IdTable *table = id_table_of(mark, tables, first, done);
        npy_intp at = id_place(table, mark, unique);
        if (at < 0)
            return -1;
        if (table->words[at]) {
            open[left++] = i;
            continue;
        }
        int64_t place = take_place(tables, table, at, mark, own[i]);
        if (places)
            places[i - left] = place;
    }
    return left;
}

/* Take out again the `n` entries that were entered last, in this order. */
static void forget_ids(const IdTable *tables, const int64_t *places, npy_intp n)
{
    while (n--)
        tables[places[n] < 0].words[places[n] < 0 ? -1 - places[n] : places[n]] = 0;
}

/* put(words, highs (32 bits; empty: none), new words, new highs, first, done, hashes, own, unique) -> (rows not
 * entered, how many were): enter references under the marks of hashes; `unique`: only where the mark is new. The
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
        left = enter_ids(tables, first, done, hashes, own, n, unique, open, NULL);
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

/* take_out(words, highs (32 bits; empty: none), begin, end, base) -> (hashes, refs): the entries at these places, which
 * are free then; where there are no high bits, references are at least `base`. Of hashes only the marks are known. */
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
            n += table.words[at] != 0;
        if ((hashes = fresh(n, NPY_UINT64)) && (refs = fresh(n, NPY_INT64))) {
            uint64_t *out = DATA(hashes);
            int64_t *told = DATA(refs);
            NPY_BEGIN_THREADS_DEF;
            NPY_BEGIN_THREADS_THRESHOLDED(end - begin);
            for (npy_intp at = begin, row = 0; row < n; at++)
                if (table.words[at]) {
                    out[row] = table.words[at] >> 32 << 32;
                    told[row++] = id_ref(&table, at, base);
                }
            memset(table.words + begin, 0, (end - begin) * sizeof *table.words);
            NPY_END_THREADS;
            result = PyTuple_Pack(2, hashes, refs);
        }
    }
    Py_XDECREF(hashes);
    Py_XDECREF(refs);
    let_go(&held);
    return result;
}

#define CARRIED 512 /* places that are gone through together */

/* Take out the entries at some places, up to CARRIED, and put those back whose references are at least `least`: the
 * numbers of both are added up, and `lowest` is no more than the references. In two goes, of which the first has no
 * branch, since which places are free is anybody's guess. 0: a table is full. */
static int carry_some(const IdTable *tables, int64_t first, int64_t done, npy_intp begin, npy_intp end, int64_t base,
                      int64_t least, npy_intp *taken, npy_intp *kept, int64_t *lowest)
{
    uint64_t words[CARRIED];
    int64_t refs[CARRIED];
    npy_intp n = 0;
    for (npy_intp at = begin; at < end; at++) {
        uint64_t word = tables->words[at];
        words[n] = word;
        refs[n] = id_ref(tables, at, base);
        *taken += word != 0;
        n += (word != 0) & (refs[n] >= least);
    }
    memset(tables->words + begin, 0, (size_t)(end - begin) * sizeof *words);
    for (npy_intp i = 0; i < n; i++) {
        uint32_t mark = (uint32_t)(words[i] >> 32);
        const IdTable *table = id_table_of(mark, tables, first, done);
        npy_intp place = id_place(table, mark, 0);
        if (place < 0)
            return 0;
        take_place(tables, table, place, mark, refs[i]);
        *lowest = refs[i] < *lowest ? refs[i] : *lowest;
    }
    *kept += n;
    return 1;
}

/* carry(words, highs, new words, new highs, first, done, begin, end, base, least) -> (entries taken out, entries put back,
 * the least reference of these): what take_out() and put() do together to the entries at the places from `begin` to
 * `end`, if those are put back whose references are at least `least`. */
static PyObject *carry(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held held = {{0}, 0};
    IdTable tables[2];
    int64_t first, done, begin, end, base, least;
    PyObject *result = NULL;
    if (!expects(count, 10) || !integer(args[4], &first) || !integer(args[5], &done) || !integer(args[6], &begin) ||
        !integer(args[7], &end) || !integer(args[8], &base) || !integer(args[9], &least))
        return NULL;
    if (!id_table(args, &tables[0], &held) || !id_table(args + 2, &tables[1], &held))
        ;
    else if (begin < 0 || end < begin || end > tables[0].size)
        PyErr_SetString(PyExc_IndexError, "these places are not in the table");
    else {
        npy_intp taken = 0, kept = 0;
        int64_t lowest = INT64_MAX;
        int room = 1;
        NPY_BEGIN_THREADS_DEF;
        NPY_BEGIN_THREADS_THRESHOLDED(end - begin);
        for (npy_intp at = begin; at < end && room; at += CARRIED) {
            npy_intp stop = end - at < CARRIED ? end : at + CARRIED;
            room = carry_some(tables, first, done, at, stop, base, least, &taken, &kept, &lowest);
        }
        NPY_END_THREADS;
        if (room)
            result = Py_BuildValue("nnL", (Py_ssize_t)taken, (Py_ssize_t)kept, (long long)lowest);
        else
            PyErr_SetString(PyExc_ValueError, "the table is full");
    }
    let_go(&held);
    return result;
}
