/* Source: where the events of one view of a store are found, by key and time range.
 *
 * A Walk goes through the events of one key from one time to another, a stretch of memory at a time; whoever joins asks
 * nothing else of a source but walks and nearest events. Rows that come one after another are foreseen: what they will
 * look at in large runs is fetched at once.
 */

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
    int64_t slice, base;
    const uint64_t *codes;
    const int64_t *refs;
    npy_intp n, begin, end; /* begin, end: where the last one was found, the next one is likely near */
    double density;         /* codes in two units of code, were they spread evenly */
    int guessed;            /* whether places are guessed rather than sought from where the last one was; see expect() */
} Run;

typedef struct {
    Run *runs; /* ascending by slice */
    Py_ssize_t count;
    int64_t bits, mask;
} Source;

typedef struct {
    uint64_t key;
    int64_t lo, hi;
    Py_ssize_t run; /* where to look next */
    const uint64_t *codes; /* the stretch: events from `at` up to `stop`; see event() */
    const int64_t *refs;
    int64_t base;
    uint64_t mask;
    npy_intp at, stop;
} Walk;

static void source_done(Source *source)
{
    free(source->runs);
    source->runs = NULL;
}

/* The source of a list of (slice, codes, refs), ascending by slice; the caller keeps the list. 0: not usable, with an
 * exception. */
static int source_of(PyObject *given, int64_t bits, Source *source)
{
    source->runs = NULL;
    source->bits = bits;
    if (bits < 1 || bits > 62 || !PyList_Check(given)) {
        PyErr_SetString(PyExc_TypeError, "a list of runs is needed, of slices of 2 to 2**62 units");
        return 0;
    }
    source->mask = (INT64_C(1) << bits) - 1;
    source->count = PyList_GET_SIZE(given);
    Run *runs = source->runs = malloc((source->count + 1) * sizeof *runs);
    if (runs == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    for (Py_ssize_t i = 0; i < source->count; i++) {
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
            source_done(source);
            return 0;
        }
        runs[i].base = (int64_t)((uint64_t)runs[i].slice << bits);
        runs[i].codes = PyArray_DATA(own[0]);
        runs[i].refs = PyArray_DATA(own[1]);
        runs[i].n = PyArray_DIM(own[0], 0);
        runs[i].begin = runs[i].end = 0;
        runs[i].density = (double)runs[i].n / (double)(INT64_C(1) << 62);
        runs[i].guessed = 0;
    }
    return 1;
}

/* The first run of a slice that is not below `slice`. */
static inline Py_ssize_t first_run(const Source *source, int64_t slice)
{
    Py_ssize_t low = 0, high = source->count;
    while (low < high) {
        Py_ssize_t middle = low + (high - low) / 2;
        if (source->runs[middle].slice < slice)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Where a code should be, judged by what is at a place (of a run that is not empty): codes begin with hashes, which are
 * spread evenly. */
static inline npy_intp guess(const Run *run, uint64_t code, npy_intp place)
{
    if (place >= run->n)
        place = run->n - 1;
    double away = (double)((int64_t)(code >> 1) - (int64_t)(run->codes[place] >> 1)) * run->density;
    if (away <= -(double)place)
        return 0;
    return away >= (double)(run->n - 1 - place) ? run->n - 1 : place + (npy_intp)away;
}

#define WIDTH 16                 /* codes about a guess */
#define LARGE (INT64_C(1) << 16) /* codes of a run that a cache hardly holds */
#define APART 64                 /* codes between one row's and the next one's */

/* So many rows will be looked up, in order of their keys. A guess is cheaper than a search from where the last row was
 * found if memory is slow, or if that is far away. */
static inline void expect(Source *source, npy_intp rows)
{
    for (Py_ssize_t r = 0; r < source->count; r++) {
        Run *run = source->runs + r;
        run->guessed = run->n >= LARGE || run->n >= APART * (rows + 1);
    }
}

/* The first place of a run from which on codes are not below `code`; `hint`: a place that was looked at before. */
static inline npy_intp find(const Run *run, uint64_t code, npy_intp hint)
{
    if (!run->guessed)
        return seek(run->codes, run->n, code, hint);
    npy_intp place = guess(run, code, guess(run, code, hint)), low = place - WIDTH / 2;
    if (low > 0 && low + WIDTH < run->n && run->codes[low - 1] < code && run->codes[low + WIDTH - 1] >= code) {
        for (int step = WIDTH / 2; step; step >>= 1) /* without a branch that could be foreseen wrongly */
            low += step & -(npy_intp)(run->codes[low + step - 1] < code);
        return low;
    }
    return seek(run->codes, run->n, code, place);
}

#define AHEAD 16 /* rows whose memory is fetched at once */

/* Fetch what rows will look at in large runs, all at once: each look would wait for memory alone. At most AHEAD keys;
 * `first` to `last`: the slices of all of them. */
static inline void foresee(const Source *source, const uint64_t *keys, npy_intp n, int64_t first, int64_t last)
{
    npy_intp places[AHEAD];
    for (Py_ssize_t r = first_run(source, first); r < source->count && source->runs[r].slice <= last; r++) {
        const Run *run = source->runs + r;
        if (!run->guessed)
            continue;
        for (npy_intp i = 0; i < n; i++) {
            places[i] = guess(run, keys[i], run->begin);
            PREFETCH(run->codes + places[i]);
        }
        for (npy_intp i = 0; i < n; i++) {
            places[i] = guess(run, keys[i], places[i]);
            PREFETCH(run->codes + places[i]);
            PREFETCH(run->codes + places[i] + 8);
        }
    }
}

/* The same of rows with a time range each. */
static inline void foresee_rows(const Source *source, const uint64_t *keys, const int64_t *lo, const int64_t *hi,
                                npy_intp n)
{
    int64_t first = INT64_MAX, last = INT64_MIN;
    for (npy_intp i = 0; i < n; i++) {
        first = lo[i] < first ? lo[i] : first;
        last = hi[i] > last ? hi[i] : last;
    }
    foresee(source, keys, n, first >> source->bits, last >> source->bits);
}

static inline int nothing_in(const Source *source)
{
    return !source->count;
}

/* The codes of a key in a run's slice, from `lo` to `hi`: those from `begin` on and below `end`. */
static inline void codes_between(const Run *run, uint64_t key, int64_t lo, int64_t hi, int64_t mask, uint64_t *begin,
                                 uint64_t *end)
{
    int64_t from = lo <= run->base ? 0 : lo - run->base, to = hi - run->base >= mask ? mask : hi - run->base;
    *begin = key + (uint64_t)from;
    *end = key + (uint64_t)to + 1;
}

/* Begin to walk through the events of `key` with lo <= time <= hi, in no order. */
static inline void walk(const Source *source, uint64_t key, int64_t lo, int64_t hi, Walk *walk)
{
    walk->key = key;
    walk->lo = lo;
    walk->hi = hi;
    walk->codes = NULL;
    walk->refs = NULL;
    walk->base = 0;
    walk->mask = 0;
    walk->at = walk->stop = 0;
    walk->run = lo > hi ? source->count : first_run(source, lo >> source->bits);
}

/* Go on to the next stretch, which is not empty; 0: there is none. */
static inline int next_stretch(Source *source, Walk *walk)
{
    int64_t last = walk->hi >> source->bits;
    while (walk->run < source->count && source->runs[walk->run].slice <= last) {
        Run *run = source->runs + walk->run++;
        uint64_t begin, end;
        codes_between(run, walk->key, walk->lo, walk->hi, source->mask, &begin, &end);
        run->begin = find(run, begin, run->begin);
        if (run->begin == run->n || run->codes[run->begin] >= end)
            continue;
        walk->codes = run->codes;
        walk->refs = run->refs;
        walk->base = run->base;
        walk->mask = (uint64_t)source->mask;
        walk->at = run->begin;
        walk->stop = seek(run->codes, run->n, end, run->begin);
        return 1;
    }
    return 0;
}

/* Reference and time of the event at a place of the stretch. */
static inline void event(const Walk *walk, npy_intp at, int64_t *ref, int64_t *ts)
{
    *ref = walk->refs[at];
    *ts = (int64_t)(walk->codes[at] & walk->mask) + walk->base;
}

/* The next event of a walk; 0: there is none. */
static inline int next_event(Source *source, Walk *walk, int64_t *ref, int64_t *ts)
{
    if (walk->at == walk->stop && !next_stretch(source, walk))
        return 0;
    event(walk, walk->at++, ref, ts);
    return 1;
}

/* The last event of `key` (else the first) with lo <= time <= hi; 0: there is none. */
static inline int nearest_event(Source *source, uint64_t key, int64_t lo, int64_t hi, int backward, int64_t *ref,
                                int64_t *ts)
{
    if (lo > hi)
        return 0;
    int64_t first = lo >> source->bits, last = hi >> source->bits;
    int64_t done = 0; /* the slice in which something was found: those beyond it are farther */
    int found = 0;
    Py_ssize_t r = backward ? first_run(source, last + 1) - 1 : first_run(source, first);
    for (; r >= 0 && r < source->count && source->runs[r].slice >= first && source->runs[r].slice <= last;
         r += backward ? -1 : 1) {
        Run *run = source->runs + r;
        uint64_t begin, end;
        npy_intp at;
        if (found && run->slice != done)
            break;
        codes_between(run, key, lo, hi, source->mask, &begin, &end);
        if (backward) {
            run->end = find(run, end, run->end);
            at = run->end - 1;
        } else
            at = run->begin = find(run, begin, run->begin);
        if (at < 0 || at == run->n || run->codes[at] < begin || run->codes[at] >= end)
            continue;
        int64_t time = (int64_t)(run->codes[at] & (uint64_t)source->mask) + run->base;
        if (found && (backward ? time <= *ts : time >= *ts))
            continue;
        *ref = run->refs[at];
        *ts = time;
        done = run->slice;
        found = 1;
    }
    return found;
}

typedef struct {
    npy_intp row;
    Walk found; /* at one of its stretches */
} Hit;

/* join(runs, bits, keys, lo, hi, most) -> (rows, refs, ts) of all events of a row's key from `lo` to `hi`, by row; the
 * number of pairs where they are more than `most` */
static PyObject *join(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held held = {{0}, 0};
    npy_intp n = -1, total = 0, hits = 0, room = 64;
    int64_t bits, most;
    const uint64_t *keys;
    const int64_t *lo, *hi;
    Source source;
    if (!expects(count, 6) || !integer(args[1], &bits) || !integer(args[5], &most) || !source_of(args[0], bits, &source))
        return NULL;
    PyObject *owner = NULL, *refs = NULL, *ts = NULL, *result = NULL;
    Hit *found = malloc(room * sizeof *found);
    if ((keys = array(args[2], 8, &n, &held)) && (lo = array(args[3], 8, &n, &held)) &&
        (hi = array(args[4], 8, &n, &held)) && found) {
        int short_of_memory = 0;
        NPY_BEGIN_THREADS_DEF;
        NPY_BEGIN_THREADS_THRESHOLDED(n);
        expect(&source, n);
        for (npy_intp i = 0; i < n && !short_of_memory; i++) {
            Walk own;
            if (i % AHEAD == 0)
                foresee_rows(&source, keys + i, lo + i, hi + i, n - i < AHEAD ? n - i : AHEAD);
            for (walk(&source, keys[i], lo[i], hi[i], &own); next_stretch(&source, &own);) {
                if (hits == room) {
                    Hit *more = realloc(found, 2 * room * sizeof *found);
                    if (more == NULL) {
                        short_of_memory = 1;
                        break;
                    }
                    found = more;
                    room *= 2;
                }
                found[hits++] = (Hit){i, own};
                total += own.stop - own.at;
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
            for (npy_intp h = 0; h < hits; h++)
                for (npy_intp at = found[h].found.at; at < found[h].found.stop; at++) {
                    *own++ = found[h].row;
                    event(&found[h].found, at, out++, times++);
                }
            result = Py_BuildValue("OOO", owner, refs, ts);
        }
    } else if (!PyErr_Occurred())
        PyErr_NoMemory();
    free(found);
    source_done(&source);
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
    const uint64_t *keys;
    const int64_t *lo, *hi;
    Source source;
    if (!expects(count, 6) || !integer(args[1], &bits))
        return NULL;
    int backward = PyObject_IsTrue(args[5]);
    if (!source_of(args[0], bits, &source))
        return NULL;
    PyObject *refs = NULL, *ts = NULL, *result = NULL;
    if ((keys = array(args[2], 8, &n, &held)) && (lo = array(args[3], 8, &n, &held)) &&
        (hi = array(args[4], 8, &n, &held)) && (ts = fresh(n, NPY_INT64)) && (refs = fresh(n, NPY_INT64))) {
        int64_t *out = DATA(refs), *times = DATA(ts);
        NPY_BEGIN_THREADS_DEF;
        NPY_BEGIN_THREADS_THRESHOLDED(n);
        expect(&source, n);
        for (npy_intp i = 0; i < n; i++) {
            if (i % AHEAD == 0)
                foresee_rows(&source, keys + i, lo + i, hi + i, n - i < AHEAD ? n - i : AHEAD);
            out[i] = -1;
            times[i] = 0;
            nearest_event(&source, keys[i], lo[i], hi[i], backward, out + i, times + i);
        }
        NPY_END_THREADS;
        result = Py_BuildValue("OO", ts, refs);
    }
    source_done(&source);
    Py_XDECREF(refs);
    Py_XDECREF(ts);
    let_go(&held);
    return result;
}
