/* Source: where the events of one view of a store are found, by key and time range.
 *
 * Rows are looked up a few at a time, in one run after another: what is looked at for each of them is fetched before the
 * first one looks, and no look has to wait for a branch that was foreseen wrongly. Whoever joins gives rows to a Search
 * and gets stretches of events, or asks for the nearest events of rows.
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
    npy_intp n, begin; /* begin: where the last one was found, the next one is likely near */
    int guessed;       /* whether places are guessed rather than sought from where the last one was; see expect() */
} Run;

typedef struct {
    Run *runs; /* ascending by slice */
    Py_ssize_t count;
    int64_t bits, mask;
} Source;

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
        runs[i].begin = 0;
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

#define AHEAD 16      /* rows that are looked up at once */
#define STRETCHES 128 /* looks of them at once */
#define WIDTH 32      /* codes about a guess */

/* So many rows will be looked up, in order of their keys. A guess is cheaper than a search from where the last row was
 * found unless most rows are found at the same place. */
static inline void expect(Source *source, npy_intp rows)
{
    for (Py_ssize_t r = 0; r < source->count; r++)
        source->runs[r].guessed = source->runs[r].n > WIDTH && 2 * source->runs[r].n >= rows;
}

/* Where a code should be, judged by what is at a place: codes begin with hashes of 63 bits, which are spread evenly. */
static inline npy_intp guess(const uint64_t *codes, npy_intp n, uint64_t code, npy_intp place)
{
    int64_t away = (int64_t)(code - codes[place]) >> 32;
    place += (npy_intp)(away * n >> 31);
    place = place < n - 1 ? place : n - 1;
    return place > 0 ? place : 0;
}

/* The first place from which on codes are not below `code`, near a guess; where it is that near, it is found without a
 * branch that could be foreseen wrongly. */
static inline npy_intp settle(const uint64_t *codes, npy_intp n, uint64_t code, npy_intp place)
{
    npy_intp low = place - WIDTH / 2;
    low = low < n - WIDTH ? low : n - WIDTH;
    low = low > 1 ? low : 1;
    const uint64_t *at = codes + low;
    if (!((at[-1] < code) & (at[WIDTH - 1] >= code)))
        return seek(codes, n, code, place);
    at += 4 * ((npy_intp)(at[3] < code) + (at[7] < code) + (at[11] < code) + (at[15] < code) + (at[19] < code) +
               (at[23] < code) + (at[27] < code));
    at += (npy_intp)(at[0] < code) + (at[1] < code) + (at[2] < code);
    return at - codes;
}

/* For each code the first place of a run from which on codes are not below it, step by step for all of them, so that
 * they wait for memory together. */
static inline void find_all(Run *run, const uint64_t *code, npy_intp count, npy_intp *at)
{
    const uint64_t *codes = run->codes;
    npy_intp n = run->n, hint = run->begin < n ? run->begin : n - 1;
    if (run->guessed) {
        for (npy_intp i = 0; i < count; i++) {
            at[i] = guess(codes, n, code[i], hint);
            PREFETCH(codes + at[i]);
        }
        for (npy_intp i = 0; i < count; i++) {
            at[i] = guess(codes, n, code[i], at[i]);
            PREFETCH(codes + at[i]);
        }
        for (npy_intp i = 0; i < count; i++)
            at[i] = settle(codes, n, code[i], at[i]);
    } else
        for (npy_intp i = 0; i < count; i++)
            at[i] = i && code[i] == code[i - 1] ? at[i - 1] : (hint = seek(codes, n, code[i], hint));
    run->begin = at[count - 1];
}

static inline int nothing_in(const Source *source)
{
    return !source->count;
}

/* The codes of a key in a run's slice, from `lo` to `hi`: those from `begin` on and below `end`, which are none where the
 * slice is earlier or later. */
static inline void codes_between(const Run *run, uint64_t key, int64_t lo, int64_t hi, int64_t mask, uint64_t *begin,
                                 uint64_t *end)
{
    int64_t last = run->base + mask;
    int64_t from = lo <= run->base ? 0 : lo > last ? mask + 1 : lo - run->base;
    int64_t to = hi < run->base ? 0 : hi >= last ? mask + 1 : hi - run->base + 1;
    *begin = key + (uint64_t)from;
    *end = key + (uint64_t)to;
}

/* Rows that are looked up together. */
typedef struct {
    npy_intp n;
    uint64_t key[AHEAD];
    int64_t lo[AHEAD], hi[AHEAD];
} Asked;

/* How many rows from `row` on to look up in the same runs, those from `first` on and before `last`: fewer where their
 * times lie apart, since each of them is looked up in all these runs. */
static inline npy_intp together(const Source *source, const Asked *asked, npy_intp row, Py_ssize_t *first,
                                Py_ssize_t *last)
{
    for (npy_intp count = asked->n - row;; count = (count + 1) / 2) {
        int64_t lo = asked->lo[row], hi = asked->hi[row];
        for (npy_intp i = row + 1; i < row + count; i++) {
            lo = asked->lo[i] < lo ? asked->lo[i] : lo;
            hi = asked->hi[i] > hi ? asked->hi[i] : hi;
        }
        *first = first_run(source, lo >> source->bits);
        *last = first_run(source, (hi >> source->bits) + 1);
        if (count == 1 || (*last - *first) * count <= STRETCHES)
            return count;
    }
}

/* What rows want of a run: codes from `begin` on and below `end`. */
static inline void codes_of(const Source *source, const Run *run, const Asked *asked, npy_intp row, npy_intp count,
                            uint64_t *begin, uint64_t *end)
{
    for (npy_intp i = 0; i < count; i++)
        codes_between(run, asked->key[row + i], asked->lo[row + i], asked->hi[row + i], source->mask, begin + i, end + i);
}

/* Events of a run that are of one row's key, from `at` on while codes are below `end`. */
typedef struct {
    const Run *run;
    npy_intp row, at;
    uint64_t end;
} Stretch;

/* Rows, and where their events are: a part of the stretches at a time, in the order of rows. */
typedef struct {
    Asked asked;
    npy_intp row;         /* the next one to look up */
    Py_ssize_t run;       /* -1, or where to go on in the runs for it */
    npy_intp count, next; /* stretches that are found, the next one to use */
    Stretch found[STRETCHES + 1]; /* one too many: looks are written before it is known whether they find something */
    uint8_t order[STRETCHES];     /* of rows */
} Search;

/* Begin to look up the rows that are asked for. */
static inline void search(Search *search)
{
    search->row = search->count = search->next = 0;
    search->run = -1;
}

/* Find the next stretches, which are not empty; 0: there are none. */
static npy_intp find_stretches(Source *source, Search *search)
{
    uint64_t begin[AHEAD], end[AHEAD];
    npy_intp at[AHEAD], count = 0, many[AHEAD + 1];
    while (!count && search->row < search->asked.n) {
        Py_ssize_t r, last;
        npy_intp row = search->row, rows = together(source, &search->asked, row, &r, &last);
        r = search->run < 0 ? r : search->run;
        if (last - r > STRETCHES)
            search->run = last = r + STRETCHES;
        else {
            search->row += rows;
            search->run = -1;
        }
        for (npy_intp i = 0; i <= rows; i++)
            many[i] = 0;
        for (; r < last; r++) {
            Run *run = source->runs + r;
            if (!run->n)
                continue;
            codes_of(source, run, &search->asked, row, rows, begin, end);
            find_all(run, begin, rows, at);
            for (npy_intp i = 0; i < rows; i++) {
                int some = (at[i] < run->n) & (run->codes[at[i] < run->n ? at[i] : run->n - 1] < end[i]);
                search->found[count] = (Stretch){run, row + i, at[i], end[i]};
                count += some;
            }
        }
        for (npy_intp i = 0; i < count; i++)
            many[search->found[i].row - row + 1]++;
        for (npy_intp i = 1; i <= rows; i++)
            many[i] += many[i - 1];
        for (npy_intp i = 0; i < count; i++)
            search->order[many[search->found[i].row - row]++] = (uint8_t)i;
    }
    search->count = count;
    search->next = 0;
    return count;
}

/* The next stretch that may have events left; NULL: there is none. */
static inline Stretch *stretch_of(Source *source, Search *search)
{
    if (search->next == search->count && !find_stretches(source, search))
        return NULL;
    return search->found + search->order[search->next];
}

static inline int64_t time_at(const Source *source, const Run *run, npy_intp at)
{
    return (int64_t)(run->codes[at] & (uint64_t)source->mask) + run->base;
}

/* The last event of each row (`backward`; else the first): `found` is where its reference is, NULL where there is none. */
static void nearest_events(Source *source, const Asked *asked, int backward, const int64_t **found, int64_t *ts)
{
    uint64_t begin[AHEAD], end[AHEAD];
    npy_intp at[AHEAD], rows;
    for (npy_intp i = 0; i < asked->n; i++) {
        found[i] = NULL;
        ts[i] = backward ? INT64_MIN : INT64_MAX;
    }
    for (npy_intp row = 0; row < asked->n; row += rows) {
        Py_ssize_t r, last;
        rows = together(source, asked, row, &r, &last);
        for (; r < last; r++) {
            Run *run = source->runs + r;
            if (!run->n)
                continue;
            codes_of(source, run, asked, row, rows, begin, end);
            find_all(run, backward ? end : begin, rows, at);
            for (npy_intp i = 0; i < rows; i++) { /* beyond the run are no codes of the row */
                npy_intp own = at[i] - backward;
                own = own < run->n ? own : run->n - 1;
                own = own > 0 ? own : 0;
                uint64_t code = run->codes[own];
                int64_t time = time_at(source, run, own), best = ts[row + i];
                int nearer = (code >= begin[i]) & (code < end[i]) & (backward ? time >= best : time < best);
                ts[row + i] = nearer ? time : best;
                found[row + i] = nearer ? run->refs + own : found[row + i];
            }
        }
    }
}

/* Rows from `row` on, of all of them, to look up together. */
static inline void ask(Asked *asked, const uint64_t *keys, const int64_t *lo, const int64_t *hi, npy_intp row, npy_intp n)
{
    asked->n = n - row < AHEAD ? n - row : AHEAD;
    size_t bytes = (size_t)asked->n * 8;
    memcpy(asked->key, keys + row, bytes);
    memcpy(asked->lo, lo + row, bytes);
    memcpy(asked->hi, hi + row, bytes);
}

typedef struct {
    const Run *run;
    npy_intp row, at, stop;
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
        for (npy_intp row = 0; row < n && !short_of_memory; row += AHEAD) {
            Search own;
            const Stretch *next;
            ask(&own.asked, keys, lo, hi, row, n);
            for (search(&own); (next = stretch_of(&source, &own)); own.next++) {
                if (hits == room) {
                    Hit *more = realloc(found, 2 * room * sizeof *found);
                    if (more == NULL) {
                        short_of_memory = 1;
                        break;
                    }
                    found = more;
                    room *= 2;
                }
                npy_intp stop = seek(next->run->codes, next->run->n, next->end, next->at);
                found[hits++] = (Hit){next->run, row + next->row, next->at, stop};
                total += stop - next->at;
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
            for (const Hit *hit = found; hit < found + hits; hit++)
                for (npy_intp at = hit->at; at < hit->stop; at++) {
                    *own++ = hit->row;
                    *out++ = hit->run->refs[at];
                    *times++ = time_at(&source, hit->run, at);
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
        for (npy_intp row = 0; row < n; row += AHEAD) {
            Asked own;
            const int64_t *found[AHEAD];
            ask(&own, keys, lo, hi, row, n);
            nearest_events(&source, &own, backward, found, times + row);
            for (npy_intp i = 0; i < own.n; i++) {
                out[row + i] = found[i] ? *found[i] : -1;
                times[row + i] = found[i] ? times[row + i] : 0;
            }
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
