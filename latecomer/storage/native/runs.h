/* Runs: events sorted by (slice, code). Arranging, merging, and finding by key and time range. */

/* The first place from which on codes are not below `code`, sought from `hint` on in either direction. */
static inline npy_intp seek(const uint64_t *codes, npy_intp n, uint64_t code, npy_intp hint)
{
    npy_intp low, high, step = 1;
    if (hint < n && codes[hint] < code) {
        low = high = hint + 1;
        while (high < n && codes[high] < code) {
            low = high + 1;
            high = low + step;
            step <<= 1;
        }
        if (high > n)
            high = n;
    } else {
        low = high = hint;
        while (low > 0 && codes[low - 1] >= code) {
            high = low - 1;
            low = high > step ? high - step : 0;
            step <<= 1;
        }
    }
    while (low < high) {
        npy_intp middle = low + (high - low) / 2;
        if (codes[middle] < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

typedef struct {
    uint64_t code;
    int64_t slice;
    npy_intp row;
} Item;

#define MOST_BUCKETS 4096
#define FEW 32 /* so many are sorted by insertion */

static void insertion(Item *items, npy_intp n)
{
    for (npy_intp i = 1; i < n; i++) {
        Item item = items[i];
        npy_intp at = i;
        while (at && (items[at - 1].slice > item.slice ||
                      (items[at - 1].slice == item.slice && items[at - 1].code > item.code))) {
            items[at] = items[at - 1];
            at--;
        }
        items[at] = item;
    }
}

/* Codes begin with a hash, so their highest bits part them evenly, about one to a bucket. Whether they do: one key that
 * has most events, or very many events, are for the sort below. */
static int bucketed(const Item *items, Item *into, npy_intp n, uint64_t slices)
{
    npy_intp counts[MOST_BUCKETS + 1] = {0};
    int bits = 0;
    if (slices >= 8)
        return 0;
    while (((uint64_t)2 << bits) * (slices + 1) <= MOST_BUCKETS && (npy_intp)2 << bits <= n)
        bits++;
#define BUCKET(item) (((uint64_t)(item).slice << bits) + ((item).code >> (63 - bits)))
    npy_intp buckets = (npy_intp)((slices + 1) << bits);
    for (npy_intp i = 0; i < n; i++)
        if (++counts[BUCKET(items[i]) + 1] > FEW)
            return 0;
    for (npy_intp i = 1; i <= buckets; i++)
        counts[i] += counts[i - 1];
    for (npy_intp i = 0; i < n; i++)
        into[counts[BUCKET(items[i])]++] = items[i];
#undef BUCKET
    for (npy_intp i = 0, begin = 0; i < buckets; begin = counts[i++])
        insertion(into + begin, counts[i] - begin);
    return 1;
}

/* Sort by (slice, code), equal ones as they came: into buckets, or else byte by byte from the lowest, without the bytes
 * that all share. */
static Item *sorted(Item *items, Item *spare, npy_intp n, uint64_t slices)
{
    if (n <= FEW) {
        insertion(items, n);
        return items;
    }
    if (bucketed(items, spare, n, slices))
        return spare;
    int passes = 8;
    for (uint64_t left = slices; left; left >>= 8)
        passes++;
    for (int pass = 0; pass < passes; pass++) {
        npy_intp counts[256] = {0}, at = 0;
        int shift = 8 * (pass & 7), whole = 0;
        for (npy_intp i = 0; i < n; i++)
            counts[((pass < 8 ? items[i].code : (uint64_t)items[i].slice) >> shift) & 255]++;
        for (int digit = 0; digit < 256; digit++) {
            npy_intp here = counts[digit];
            whole |= here == n;
            counts[digit] = at;
            at += here;
        }
        if (whole)
            continue;
        for (npy_intp i = 0; i < n; i++)
            spare[counts[((pass < 8 ? items[i].code : (uint64_t)items[i].slice) >> shift) & 255]++] = items[i];
        Item *other = items;
        items = spare;
        spare = other;
    }
    return items;
}

/* arrange(hashes, ts, refs, bits) -> (codes, ts, refs, edges, latest): events by slice and code; edges lists (slice,
 * begin, end) */
static PyObject *arrange(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held held = {{0}, 0};
    npy_intp n = -1;
    int64_t bits;
    const uint64_t *hashes;
    const int64_t *ts, *refs;
    if (!expects(count, 4) || !integer(args[3], &bits))
        return NULL;
    PyObject *codes = NULL, *times = NULL, *own = NULL, *edges = NULL, *result = NULL;
    Item *items = NULL;
    if ((hashes = array(args[0], 8, &n, &held)) && (ts = array(args[1], 8, &n, &held)) &&
        (refs = array(args[2], 8, &n, &held)) && (codes = fresh(n, NPY_UINT64)) && (times = fresh(n, NPY_INT64)) &&
        (own = fresh(n, NPY_INT64)) && (edges = PyList_New(0)) && (items = malloc((2 * n + 1) * sizeof *items))) {
        uint64_t mask = (UINT64_C(1) << bits) - 1, keep = ~mask & (UINT64_MAX >> 1);
        int64_t first = INT64_MAX, last = INT64_MIN, *out_ts = DATA(times), *out_refs = DATA(own);
        uint64_t *out = DATA(codes);
        Item *order;
        NPY_BEGIN_THREADS_DEF;
        NPY_BEGIN_THREADS_THRESHOLDED(n);
        for (npy_intp i = 0; i < n; i++) {
            first = ts[i] < first ? ts[i] : first;
            last = ts[i] > last ? ts[i] : last;
        }
        for (npy_intp i = 0; i < n; i++) {
            items[i].code = (hashes[i] & keep) | ((uint64_t)ts[i] & mask);
            items[i].slice = (ts[i] >> bits) - (first >> bits);
            items[i].row = i;
        }
        order = sorted(items, items + n, n, n ? (uint64_t)((last >> bits) - (first >> bits)) : 0);
        for (npy_intp i = 0; i < n; i++) {
            out[i] = order[i].code;
            out_ts[i] = ts[order[i].row];
            out_refs[i] = refs[order[i].row];
        }
        NPY_END_THREADS;
        npy_intp begin = 0;
        int fine = 1;
        for (npy_intp i = 1; fine && i <= n; i++)
            if (i == n || order[i].slice != order[begin].slice) {
                PyObject *edge = Py_BuildValue("Lnn", (long long)(out_ts[begin] >> bits), (Py_ssize_t)begin, (Py_ssize_t)i);
                fine = edge != NULL && PyList_Append(edges, edge) == 0;
                Py_XDECREF(edge);
                begin = i;
            }
        if (fine)
            result = Py_BuildValue("OOOOL", codes, times, own, edges, (long long)last);
    }
    free(items);
    Py_XDECREF(codes);
    Py_XDECREF(times);
    Py_XDECREF(own);
    Py_XDECREF(edges);
    let_go(&held);
    return result;
}

/* merge(codes, refs, more codes, more refs) -> (codes, refs): two sorted runs as one; of equal codes the first's come
 * first */
static PyObject *merge(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held held = {{0}, 0};
    npy_intp n = -1, m = -1;
    const uint64_t *a, *b;
    const int64_t *a_refs, *b_refs;
    if (!expects(count, 4))
        return NULL;
    PyObject *codes = NULL, *refs = NULL, *result = NULL;
    if ((a = array(args[0], 8, &n, &held)) && (a_refs = array(args[1], 8, &n, &held)) &&
        (b = array(args[2], 8, &m, &held)) && (b_refs = array(args[3], 8, &m, &held)) &&
        (codes = fresh(n + m, NPY_UINT64)) && (refs = fresh(n + m, NPY_INT64))) {
        uint64_t *out = DATA(codes);
        int64_t *out_refs = DATA(refs);
        npy_intp i = 0, at = 0;
        NPY_BEGIN_THREADS_DEF;
        NPY_BEGIN_THREADS_THRESHOLDED(n + m);
        for (npy_intp j = 0; j < m; j++) {
            npy_intp stop = b[j] == UINT64_MAX ? n : seek(a, n, b[j] + 1, i);
            memcpy(out + at, a + i, (stop - i) * sizeof *out);
            memcpy(out_refs + at, a_refs + i, (stop - i) * sizeof *out_refs);
            at += stop - i;
            i = stop;
            out[at] = b[j];
            out_refs[at++] = b_refs[j];
        }
        memcpy(out + at, a + i, (n - i) * sizeof *out);
        memcpy(out_refs + at, a_refs + i, (n - i) * sizeof *out_refs);
        NPY_END_THREADS;
        result = Py_BuildValue("OO", codes, refs);
    }
    Py_XDECREF(codes);
    Py_XDECREF(refs);
    let_go(&held);
    return result;
}

typedef struct {
    int64_t slice, base;
    const uint64_t *codes;
    const int64_t *refs;
    npy_intp n, begin, end; /* begin, end: where the last row was found, the next one is likely near */
} Run;

/* Runs from a list of (slice, codes, refs), ascending by slice; the caller keeps the list. NULL: not usable. */
static Run *runs_of(PyObject *given, int64_t bits, Py_ssize_t *count)
{
    if (!PyList_Check(given)) {
        PyErr_SetString(PyExc_TypeError, "a list of runs is needed");
        return NULL;
    }
    *count = PyList_GET_SIZE(given);
    Run *runs = malloc((*count + 1) * sizeof *runs);
    if (runs == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < *count; i++) {
        PyObject *item = PyList_GET_ITEM(given, i);
        int usable = PyTuple_Check(item) && PyTuple_GET_SIZE(item) == 3;
        PyArrayObject *own[2] = {0};
        for (int side = 0; usable && side < 2; side++) {
            own[side] = (PyArrayObject *)PyTuple_GET_ITEM(item, side + 1);
            usable = PyArray_Check(own[side]) && PyArray_NDIM(own[side]) == 1 && PyArray_ITEMSIZE(own[side]) == 8 &&
                     PyArray_IS_C_CONTIGUOUS(own[side]);
        }
        usable = usable && PyArray_DIM(own[0], 0) == PyArray_DIM(own[1], 0) &&
                 integer(PyTuple_GET_ITEM(item, 0), &runs[i].slice) && (i == 0 || runs[i - 1].slice <= runs[i].slice);
        if (!usable) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_TypeError, "a run is (slice, codes, refs), ascending by slice");
            free(runs);
            return NULL;
        }
        runs[i].base = (int64_t)((uint64_t)runs[i].slice << bits);
        runs[i].codes = PyArray_DATA(own[0]);
        runs[i].refs = PyArray_DATA(own[1]);
        runs[i].n = PyArray_DIM(own[0], 0);
        runs[i].begin = runs[i].end = 0;
    }
    return runs;
}

/* The first run of a slice that is not below `slice`. */
static inline Py_ssize_t first_run(const Run *runs, Py_ssize_t count, int64_t slice)
{
    Py_ssize_t low = 0, high = count;
    while (low < high) {
        Py_ssize_t middle = low + (high - low) / 2;
        if (runs[middle].slice < slice)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The codes of a key in a run's slice, from `lo` to `hi`: those from `begin` on and below `end`. */
static inline void stretch(const Run *run, uint64_t key, int64_t lo, int64_t hi, int64_t mask, uint64_t *begin,
                           uint64_t *end)
{
    int64_t from = lo <= run->base ? 0 : lo - run->base, to = hi - run->base >= mask ? mask : hi - run->base;
    *begin = key + (uint64_t)from;
    *end = key + (uint64_t)to + 1;
}

typedef struct {
    npy_intp row, first, count;
    const Run *run;
} Hit;

/* join(runs, bits, keys, lo, hi, most) -> (rows, refs, ts) of all events of a row's key from `lo` to `hi`, by row; the
 * number of pairs where they are more than `most` */
static PyObject *join(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held held = {{0}, 0};
    npy_intp n = -1, total = 0, hits = 0, room = 256;
    int64_t bits, most;
    Py_ssize_t number;
    const uint64_t *keys;
    const int64_t *lo, *hi;
    if (!expects(count, 6) || !integer(args[1], &bits) || !integer(args[5], &most))
        return NULL;
    Run *runs = runs_of(args[0], bits, &number);
    if (runs == NULL)
        return NULL;
    PyObject *owner = NULL, *refs = NULL, *ts = NULL, *result = NULL;
    Hit *found = malloc(room * sizeof *found);
    if ((keys = array(args[2], 8, &n, &held)) && (lo = array(args[3], 8, &n, &held)) &&
        (hi = array(args[4], 8, &n, &held)) && found) {
        int64_t mask = (INT64_C(1) << bits) - 1;
        int short_of_memory = 0;
        NPY_BEGIN_THREADS_DEF;
        NPY_BEGIN_THREADS_THRESHOLDED(n);
        for (npy_intp i = 0; i < n && !short_of_memory; i++) {
            if (lo[i] > hi[i])
                continue;
            int64_t last = hi[i] >> bits;
            for (Py_ssize_t r = first_run(runs, number, lo[i] >> bits); r < number && runs[r].slice <= last; r++) {
                uint64_t begin, end;
                Run *run = runs + r;
                stretch(run, keys[i], lo[i], hi[i], mask, &begin, &end);
                run->begin = seek(run->codes, run->n, begin, run->begin);
                if (run->begin == run->n || run->codes[run->begin] >= end)
                    continue;
                npy_intp stop = seek(run->codes, run->n, end, run->begin);
                if (hits == room) {
                    Hit *more = realloc(found, 2 * room * sizeof *found);
                    if (more == NULL) {
                        short_of_memory = 1;
                        break;
                    }
                    found = more;
                    room *= 2;
                }
                found[hits++] = (Hit){i, run->begin, stop - run->begin, run};
                total += stop - run->begin;
            }
        }
        NPY_END_THREADS;
        if (short_of_memory)
            PyErr_NoMemory();
        else if (total > most)
            result = PyLong_FromSsize_t(total);
        else if ((owner = fresh(total, NPY_INT64)) && (refs = fresh(total, NPY_INT64)) &&
                 (ts = fresh(total, NPY_INT64))) {
            int64_t *own = DATA(owner), *out = DATA(refs), *times = DATA(ts);
            for (npy_intp h = 0; h < hits; h++) {
                const Run *run = found[h].run;
                for (npy_intp at = found[h].first; at < found[h].first + found[h].count; at++) {
                    *own++ = found[h].row;
                    *out++ = run->refs[at];
                    *times++ = (int64_t)(run->codes[at] & (uint64_t)mask) + run->base;
                }
            }
            result = Py_BuildValue("OOO", owner, refs, ts);
        }
    }
    free(found);
    free(runs);
    Py_XDECREF(owner);
    Py_XDECREF(refs);
    Py_XDECREF(ts);
    let_go(&held);
    return result;
}

/* nearest(runs, bits, keys, lo, hi, backward) -> (ts, refs): of each row's key the last event (else the first) from
 * `lo` to `hi`; -1 where there is none */
static PyObject *nearest(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held held = {{0}, 0};
    npy_intp n = -1;
    int64_t bits;
    Py_ssize_t number;
    const uint64_t *keys;
    const int64_t *lo, *hi;
    if (!expects(count, 6) || !integer(args[1], &bits))
        return NULL;
    int backward = PyObject_IsTrue(args[5]);
    Run *runs = runs_of(args[0], bits, &number);
    if (runs == NULL)
        return NULL;
    PyObject *refs = NULL, *ts = NULL, *result = NULL;
    if ((keys = array(args[2], 8, &n, &held)) && (lo = array(args[3], 8, &n, &held)) &&
        (hi = array(args[4], 8, &n, &held)) && (ts = fresh(n, NPY_INT64)) && (refs = fresh(n, NPY_INT64))) {
        int64_t mask = (INT64_C(1) << bits) - 1, *out = DATA(refs), *times = DATA(ts);
        NPY_BEGIN_THREADS_DEF;
        NPY_BEGIN_THREADS_THRESHOLDED(n);
        for (npy_intp i = 0; i < n; i++) {
            out[i] = -1;
            times[i] = 0;
            if (lo[i] > hi[i])
                continue;
            int64_t first = lo[i] >> bits, last = hi[i] >> bits;
            Py_ssize_t step = backward ? -1 : 1;
            Py_ssize_t r = backward ? first_run(runs, number, last + 1) - 1 : first_run(runs, number, first);
            int64_t done = INT64_MIN; /* the slice in which something was found: those beyond it are farther */
            for (; r >= 0 && r < number && runs[r].slice >= first && runs[r].slice <= last; r += step) {
                uint64_t begin, end;
                Run *run = runs + r;
                if (out[i] != -1 && run->slice != done)
                    break;
                stretch(run, keys[i], lo[i], hi[i], mask, &begin, &end);
                npy_intp at;
                if (backward) {
                    run->end = seek(run->codes, run->n, end, run->end);
                    at = run->end - 1;
                } else
                    at = run->begin = seek(run->codes, run->n, begin, run->begin);
                if (at < 0 || at == run->n || run->codes[at] < begin || run->codes[at] >= end)
                    continue;
                int64_t time = (int64_t)(run->codes[at] & (uint64_t)mask) + run->base;
                if (out[i] != -1 && (backward ? time <= times[i] : time >= times[i]))
                    continue;
                out[i] = run->refs[at];
                times[i] = time;
                done = run->slice;
            }
        }
        NPY_END_THREADS;
        result = Py_BuildValue("OO", ts, refs);
    }
    free(runs);
    Py_XDECREF(refs);
    Py_XDECREF(ts);
    let_go(&held);
    return result;
}
