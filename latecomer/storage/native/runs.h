/* Runs: events sorted by (slice, code). Arranging and merging. */

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
