/* Runs: events sorted by (slice, code). Arranging and merging. */

typedef struct {
    uint64_t code;
    int64_t slice, ref;
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

/* Items as they come, and as much room again to sort them. */
typedef struct {
    Item *items;
    npy_intp n;
    int64_t bits;
} Heap;

static inline void drop_item(Heap *heap, uint64_t hash, int64_t ts, int64_t ref)
{
    uint64_t mask = (UINT64_C(1) << heap->bits) - 1, keep = ~mask & (UINT64_MAX >> 1);
    heap->items[heap->n] = (Item){(hash & keep) | ((uint64_t)ts & mask), ts >> heap->bits, ref};
}

/* Sort the items, of which there is at least one, and write what they are. Their slices count from `base` on, then. */
static const Item *settled(Heap *heap, uint64_t *codes, int64_t *ts, int64_t *refs, uint64_t *keys, int64_t *base,
                           int64_t *earliest, int64_t *latest)
{
    npy_intp n = heap->n;
    uint64_t mask = (UINT64_C(1) << heap->bits) - 1;
    int64_t first = heap->items[0].slice, last = first, least = INT64_MAX, most = INT64_MIN;
    for (npy_intp i = 1; i < n; i++) {
        first = heap->items[i].slice < first ? heap->items[i].slice : first;
        last = heap->items[i].slice > last ? heap->items[i].slice : last;
    }
    for (npy_intp i = 0; i < n; i++)
        heap->items[i].slice -= first;
    const Item *order = sorted(heap->items, heap->items + n, n, (uint64_t)(last - first));
    for (npy_intp i = 0; i < n; i++) {
        codes[i] = order[i].code;
        keys[i] = order[i].code & ~mask;
        ts[i] = (int64_t)(((uint64_t)(order[i].slice + first) << heap->bits) | (order[i].code & mask));
        refs[i] = order[i].ref;
        least = ts[i] < least ? ts[i] : least;
        most = ts[i] > most ? ts[i] : most;
    }
    *base = first;
    *earliest = least;
    *latest = most;
    return order;
}

/* What the items are, sorted: (codes, ts, refs, keys, edges, latest); there is at least one. */
static PyObject *arranged(Heap *heap)
{
    npy_intp n = heap->n;
    PyObject *own[4] = {fresh(n, NPY_UINT64), fresh(n, NPY_INT64), fresh(n, NPY_INT64), fresh(n, NPY_UINT64)};
    PyObject *edges = PyList_New(0), *result = NULL;
    if (own[0] && own[1] && own[2] && own[3] && edges) {
        int64_t first, earliest, latest;
        const Item *order;
        NPY_BEGIN_THREADS_DEF;
        NPY_BEGIN_THREADS_THRESHOLDED(n);
        order = settled(heap, DATA(own[0]), DATA(own[1]), DATA(own[2]), DATA(own[3]), &first, &earliest, &latest);
        NPY_END_THREADS;
        int fine = 1;
        for (npy_intp i = 1, begin = 0; fine && i <= n; i++)
            if (i == n || order[i].slice != order[begin].slice) {
                PyObject *edge = Py_BuildValue("Lnn", (long long)(order[begin].slice + first), (Py_ssize_t)begin, (Py_ssize_t)i);
                fine = put_into(edges, edge);
                begin = i;
            }
        if (fine)
            result = Py_BuildValue("OOOOOL", own[0], own[1], own[2], own[3], edges, (long long)latest);
    }
    for (int i = 0; i < 4; i++)
        Py_XDECREF(own[i]);
    Py_XDECREF(edges);
    return result;
}

/* Room for so many items; 0: there is no memory. */
static int make_heap(Heap *heap, npy_intp n, int64_t bits)
{
    heap->n = 0;
    heap->bits = bits;
    heap->items = malloc((size_t)(2 * n + 1) * sizeof *heap->items);
    if (heap->items == NULL)
        PyErr_NoMemory();
    return heap->items != NULL;
}

/* arrange(hashes, ts, refs, bits) -> (codes, ts, refs, keys, edges, latest): events by slice and code, at least one; edges
 * lists (slice, begin, end) */
static PyObject *arrange(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held held = {{0}, 0};
    Heap heap = {0};
    npy_intp n = -1;
    int64_t bits;
    const uint64_t *hashes;
    const int64_t *ts, *refs;
    PyObject *result = NULL;
    if (!expects(count, 4) || !integer(args[3], &bits))
        return NULL;
    if ((hashes = array(args[0], 8, &n, &held)) && (ts = array(args[1], 8, &n, &held)) &&
        (refs = array(args[2], 8, &n, &held)) && make_heap(&heap, n, bits)) {
        for (; heap.n < n; heap.n++)
            drop_item(&heap, hashes[heap.n], ts[heap.n], refs[heap.n]);
        if (n)
            result = arranged(&heap);
        else
            PyErr_SetString(PyExc_ValueError, "there is no event to arrange");
    }
    free(heap.items);
    let_go(&held);
    return result;
}

/* arrange_each(types, ts, first, bits, wanted) -> for each (type, hashes or None) of the tuple `wanted` what arrange() makes
 * of the rows of the type, None where there are none. Rows whose type is not negative have the references from `first`
 * on; where hashes are None they are 0. */
static PyObject *arrange_each(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held held = {{0}, 0};
    Heap heap = {0};
    npy_intp n = -1;
    int64_t first, bits;
    const int64_t *types, *ts;
    PyObject *result = NULL;
    if (!expects(count, 5) || !integer(args[2], &first) || !integer(args[3], &bits))
        return NULL;
    if (!PyTuple_Check(args[4])) {
        PyErr_SetString(PyExc_TypeError, "a tuple of (type, hashes) is needed");
        return NULL;
    }
    Py_ssize_t wanted = PyTuple_GET_SIZE(args[4]);
    if ((types = array(args[0], 8, &n, &held)) && (ts = array(args[1], 8, &n, &held)) && make_heap(&heap, n, bits) &&
        (result = PyList_New(wanted)))
        for (Py_ssize_t i = 0; result && i < wanted; i++) {
            Held own = {{0}, 0};
            PyObject *pair = PyTuple_GET_ITEM(args[4], i), *made = NULL;
            const uint64_t *hashes = NULL;
            int64_t number;
            if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2)
                PyErr_SetString(PyExc_TypeError, "a pair of (type, hashes) is needed");
            else if (integer(PyTuple_GET_ITEM(pair, 0), &number) &&
                     (PyTuple_GET_ITEM(pair, 1) == Py_None || (hashes = array(PyTuple_GET_ITEM(pair, 1), 8, &n, &own)))) {
                int64_t ref = first;
                heap.n = 0;
                NPY_BEGIN_THREADS_DEF;
                NPY_BEGIN_THREADS_THRESHOLDED(n);
                /* Whatever is written for a row of another type is written over by the next one. */
                for (npy_intp row = 0; row < n; row++) {
                    drop_item(&heap, hashes ? hashes[row] : 0, ts[row], ref);
                    heap.n += types[row] == number;
                    ref += types[row] >= 0;
                }
                NPY_END_THREADS;
                made = heap.n ? arranged(&heap) : Py_NewRef(Py_None);
            }
            let_go(&own);
            if (made)
                PyList_SET_ITEM(result, i, made);
            else
                Py_CLEAR(result);
        }
    free(heap.items);
    let_go(&held);
    return result;
}

/* Events sorted by code. */
typedef struct {
    const uint64_t *codes;
    const int64_t *refs;
    npy_intp n;
} Sorted;

#define RARE 8 /* one of the others among so many: their places are looked up, and what lies between is copied */

/* How far a merge has come, and how far it goes: places in both runs. What is merged goes to where they add up to. */
typedef struct {
    npy_intp i, j, end, other_end;
} Lane;

#define IN_PARTS 512 /* events; merging less is not worth the search for the parts */

/* How many of the first run are among the first `n` events of both. */
static npy_intp first_among(const Sorted *one, const Sorted *other, npy_intp n)
{
    npy_intp low = n > other->n ? n - other->n : 0, high = n < one->n ? n : one->n;
    while (low < high) {
        npy_intp middle = low + (high - low) / 2;
        if (one->codes[middle] <= other->codes[n - middle - 1])
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Merge the next event, without a branch, since which comes next is anybody's guess. */
static inline void merge_next(const uint64_t *codes, const int64_t *refs, const uint64_t *more, const int64_t *more_refs,
                              npy_intp *i, npy_intp *j, uint64_t *to, int64_t *to_refs)
{
    uint64_t code = codes[*i], other = more[*j];
    int64_t ref = refs[*i], other_ref = more_refs[*j], second = other < code;
    to[*i + *j] = second ? other : code;
    to_refs[*i + *j] = second ? other_ref : ref;
    *i += 1 - second;
    *j += second;
}

/* Merge what is left. */
static void merge_rest(const Sorted *one, const Sorted *other, Lane own, uint64_t *codes, int64_t *refs)
{
    while (own.i < own.end && own.j < own.other_end)
        merge_next(one->codes, one->refs, other->codes, other->refs, &own.i, &own.j, codes, refs);
    const Sorted *left = own.i < own.end ? one : other;
    npy_intp from = own.i < own.end ? own.i : own.j, n = own.end - own.i + own.other_end - own.j;
    memcpy(codes + own.i + own.j, left->codes + from, (size_t)n * sizeof *codes);
    memcpy(refs + own.i + own.j, left->refs + from, (size_t)n * sizeof *refs);
}

/* Two runs as one; of equal codes those of the first come first. */
static void merged(Sorted one, Sorted other, uint64_t *codes, int64_t *refs)
{
    npy_intp total = one.n + other.n, i = 0, at = 0;
    if (other.n * RARE <= one.n) {
        for (npy_intp j = 0; j < other.n; j++) {
            uint64_t code = other.codes[j];
            npy_intp stop = code == UINT64_MAX ? one.n : seek(one.codes, one.n, code + 1, i);
            memcpy(codes + at, one.codes + i, (stop - i) * sizeof *codes);
            memcpy(refs + at, one.refs + i, (stop - i) * sizeof *refs);
            at += stop - i;
            i = stop;
            codes[at] = code;
            refs[at++] = other.refs[j];
        }
        merge_rest(&one, &other, (Lane){i, other.n, one.n, other.n}, codes, refs);
        return;
    }
    if (total < IN_PARTS) {
        merge_rest(&one, &other, (Lane){0, 0, one.n, other.n}, codes, refs);
        return;
    }
    /* Four parts go on in turns, so that none waits for what it has just looked at. */
    npy_intp first = first_among(&one, &other, total / 4), second = first_among(&one, &other, total / 2),
             third = first_among(&one, &other, total / 4 * 3);
    Lane a = {0, 0, first, total / 4 - first}, b = {first, total / 4 - first, second, total / 2 - second},
         c = {second, total / 2 - second, third, total / 4 * 3 - third},
         d = {third, total / 4 * 3 - third, one.n, other.n};
    const uint64_t *p = one.codes, *q = other.codes;
    const int64_t *r = one.refs, *t = other.refs;
#define STEPS(lane) (lane.end - lane.i < lane.other_end - lane.j ? lane.end - lane.i : lane.other_end - lane.j)
    for (;;) {
        npy_intp steps = STEPS(a), more = STEPS(b);
        steps = more < steps ? more : steps;
        more = STEPS(c);
        steps = more < steps ? more : steps;
        more = STEPS(d);
        steps = more < steps ? more : steps;
        if (!steps)
            break;
        npy_intp ai = a.i, aj = a.j, bi = b.i, bj = b.j, ci = c.i, cj = c.j, di = d.i, dj = d.j;
        while (steps--) {
            merge_next(p, r, q, t, &ai, &aj, codes, refs);
            merge_next(p, r, q, t, &bi, &bj, codes, refs);
            merge_next(p, r, q, t, &ci, &cj, codes, refs);
            merge_next(p, r, q, t, &di, &dj, codes, refs);
        }
        a.i = ai, a.j = aj, b.i = bi, b.j = bj, c.i = ci, c.j = cj, d.i = di, d.j = dj;
    }
#undef STEPS
    merge_rest(&one, &other, a, codes, refs);
    merge_rest(&one, &other, b, codes, refs);
    merge_rest(&one, &other, c, codes, refs);
    merge_rest(&one, &other, d, codes, refs);
}

/* Copy events but for those before `floor` within their slice, perhaps to where they are; returns how many. */
static npy_intp purged(Sorted run, uint64_t *codes, int64_t *refs, uint64_t mask, uint64_t floor)
{
    npy_intp left = 0;
    for (npy_intp i = 0; i < run.n; i++) {
        uint64_t code = run.codes[i];
        codes[left] = code;
        refs[left] = run.refs[i];
        left += (code & mask) >= floor;
    }
    return left;
}

static int sorted_run(PyObject *const *given, Sorted *run, Held *held)
{
    run->n = -1;
    return (run->codes = array(given[0], 8, &run->n, held)) && (run->refs = array(given[1], 8, &run->n, held));
}

/* merge(codes, refs, more codes, more refs) -> (codes, refs): two sorted runs as one; of equal codes the first's come
 * first */
static PyObject *merge(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held held = {{0}, 0};
    Sorted one, other;
    if (!expects(count, 4))
        return NULL;
    PyObject *codes = NULL, *refs = NULL, *result = NULL;
    if (sorted_run(args, &one, &held) && sorted_run(args + 2, &other, &held) &&
        (codes = fresh(one.n + other.n, NPY_UINT64)) && (refs = fresh(one.n + other.n, NPY_INT64))) {
        NPY_BEGIN_THREADS_DEF;
        NPY_BEGIN_THREADS_THRESHOLDED(one.n + other.n);
        merged(one, other, DATA(codes), DATA(refs));
        NPY_END_THREADS;
        result = Py_BuildValue("OO", codes, refs);
    }
    Py_XDECREF(codes);
    Py_XDECREF(refs);
    let_go(&held);
    return result;
}

/* The first up to `most` events from the `begin`-th on; 0 if there is no such place. */
static int piece_of(Sorted *run, int64_t begin, int64_t most)
{
    if (begin < 0 || begin > run->n || most < 0)
        return 0;
    run->codes += begin;
    run->refs += begin;
    run->n = run->n - begin < most ? run->n - begin : most;
    return 1;
}

/* merge_on(into codes, into refs, made, codes, refs, begin, more codes, more refs, more begin, most, mask, floor) ->
 * (made, begin, more begin): goes on with merging two sorted runs, by up to `most` events of each, without what is
 * before `floor` within its slice. The first two are written to, from `made` on. */
static PyObject *merge_on(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held held = {{0}, 0};
    Sorted one, other, into;
    int64_t made, begin, more, most;
    uint64_t mask, floor;
    PyObject *result = NULL;
    if (!expects(count, 12) || !integer(args[2], &made) || !integer(args[5], &begin) || !integer(args[8], &more) ||
        !integer(args[9], &most) || !word(args[10], &mask) || !word(args[11], &floor))
        return NULL;
    if (!sorted_run(args, &into, &held) || !sorted_run(args + 3, &one, &held) || !sorted_run(args + 6, &other, &held)) {
        let_go(&held);
        return NULL;
    }
    npy_intp n = one.n - begin, m = other.n - more;
    if (!own_memory(args[0], into.codes) || !own_memory(args[1], into.refs))
        ;
    else if (!piece_of(&one, begin, most) || !piece_of(&other, more, most) || made < 0 ||
             into.n - made < one.n + other.n)
        PyErr_SetString(PyExc_IndexError, "these places are not in the runs");
    else {
        uint64_t *codes = (uint64_t *)into.codes + made;
        int64_t *refs = (int64_t *)into.refs + made;
        NPY_BEGIN_THREADS_DEF;
        NPY_BEGIN_THREADS_THRESHOLDED(one.n + other.n);
        /* Of a run that goes on, up to a code behind which nothing of it can come before what is taken of the other. */
        if (one.n && other.n) {
            uint64_t last = one.codes[one.n - 1], end = other.codes[other.n - 1];
            if (last <= end && one.n < n)
                other.n = seek(other.codes, other.n, last, other.n);
            else if (last > end && other.n < m)
                one.n = seek(one.codes, one.n, end + 1, one.n);
        }
        Sorted both = one;
        if (!floor || other.n) {
            merged(one, other, codes, refs);
            both = (Sorted){codes, refs, one.n + other.n};
        }
        made += floor ? purged(both, codes, refs, mask, floor) : both.n;
        NPY_END_THREADS;
        result = Py_BuildValue("LLL", (long long)made, (long long)(begin + one.n), (long long)(more + other.n));
    }
    let_go(&held);
    return result;
}
