/* Following a join order, seed by seed and depth first: the compiled road of `runtime/sequence.py`, which is its twin.
 *
 * What depends on the batch comes with each call: where events are found (sources), the log's columns, and the seeds.
 */

typedef struct {
    Walk walk;
    uint64_t open; /* negations that a negative of another key with the same hash left undecided */
} Level;

typedef struct {
    const Program *program;
    PyObject *arguments; /* all that the pointers below point into */
    int64_t mask;
    Source *sources;
    int64_t *latest; /* no event of the source is later */
    Bound bound;
    const uint64_t *keys;
    const int64_t *seed_refs[MOST_PARTS], *seed_ts[MOST_PARTS];
    npy_intp n, seed; /* `seed`: the next one */
    int64_t depth;    /* of the move under way; -1: none */
    uint64_t key;
    Level level[MOST_PARTS];
    int64_t *found; /* rows of (seed, then reference and time of each bound component) */
    npy_intp count, room, width;
    int short_of_memory;
} Follow;

static int linked(Bound *bound, const Look *look)
{
    for (int64_t i = 0; i < look->links; i++) {
        const Link *link = look->link + i;
        const Column *own = bound->columns + link->column, *other = bound->columns + link->other_column;
        int64_t a = 0, b = 0;
        if (link->column >= 0 && (a = value_at(bound, look->part, own)) < 0)
            return 0;
        if (link->other_column >= 0 && (b = value_at(bound, link->other, other)) < 0)
            return 0;
        if (link->column >= 0 && link->other_column >= 0) {
            if (!same_value(own, a, other, b))
                return 0;
        } else {
            int64_t left = link->column < 0 ? bound->ts[look->part] : whole(own, a);
            if (left != (link->other_column < 0 ? bound->ts[link->other] : whole(other, b)))
                return 0;
        }
    }
    return 1;
}

/* The key under which a look's events are stored. */
static inline uint64_t key_of(Follow *f, const Look *look)
{
    if (look->carried)
        return f->key;
    uint64_t hash = 0;
    for (int64_t i = 0; i < look->links; i++) {
        uint64_t own = hash_of(&f->bound, look->link[i].other, look->link[i].other_column);
        hash = i ? mix(hash * GOLDEN + own) : own;
    }
    return hash & (uint64_t)f->program->hashed & ~(uint64_t)f->mask & (UINT64_MAX >> 1);
}

static int tested(Bound *bound, const Look *look)
{
    for (int64_t i = 0; i < look->tests; i++)
        if (!passes(bound, look->test + i))
            return 0;
    return 1;
}

/* Whether an event agrees on a look's links with what is bound, and passes its tests. What is bound stays: a negative may
 * be bound as the seed while others of its negation are looked at. */
static int agrees(Follow *f, const Look *look, int64_t ref, int64_t ts)
{
    int64_t part = look->part, kept_ref = f->bound.ref[part], kept_ts = f->bound.ts[part], kept_place = f->bound.place[part];
    bind(&f->bound, part, ref, ts);
    int fine = linked(&f->bound, look) && tested(&f->bound, look);
    f->bound.ref[part] = kept_ref;
    f->bound.ts[part] = kept_ts;
    f->bound.place[part] = kept_place;
    return fine;
}

/* Whether a negative falls in the negation's scope. */
static int killed(Follow *f, const Negation *negation)
{
    const Look *look = &negation->look;
    Source *source = f->sources + look->source;
    Walk on;
    int64_t ref, ts;
    int64_t lo = f->bound.ts[look->range.from] + look->range.add_from, hi = f->bound.ts[look->range.to] + look->range.add_to;
    if (lo > f->latest[look->source])
        return 0;
    walk(source, key_of(f, look), lo, hi, &on);
    while (next_event(source, &on, &ref, &ts))
        if ((negation->before < 0 || ref < f->bound.ref[negation->before]) && agrees(f, look, ref, ts))
            return 1;
    return 0;
}

/* Whether what has just been bound may stay; `open`: the negations that are not decided yet. */
static int stands(Follow *f, const Move *move, uint64_t open)
{
    if (!tested(&f->bound, &move->look))
        return 0;
    for (int64_t i = 0; i < move->negations; i++)
        if ((open >> i & 1) && killed(f, move->negation + i))
            return 0;
    return 1;
}

/* Begin to look for the events of the next component. */
static void enter(Follow *f)
{
    const Move *move = f->program->move + f->depth;
    const Look *look = &move->look;
    Level *level = f->level + f->depth;
    int64_t lo = f->bound.ts[look->range.from] + look->range.add_from, hi = f->bound.ts[look->range.to] + look->range.add_to;
    level->open = 0;
    if (lo > f->latest[look->source]) { /* most new events are newer than all that is known */
        walk(f->sources + look->source, 0, 1, 0, &level->walk);
        return;
    }
    for (int64_t i = 0; i < move->negations; i++) {
        const Negation *negation = move->negation + i;
        Source *source = f->sources + negation->look.source;
        int64_t ref = 0, ts = 0, anchor = f->bound.ts[negation->anchor];
        if (!negation->cut) {
            level->open |= UINT64_C(1) << i;
            continue;
        }
        int backward = negation->cut == 1;
        if (!nearest_event(source, f->key, backward ? lo + 1 : anchor + 1, backward ? anchor - 1 : hi - 1, backward,
                           &ref, &ts))
            continue;
        if (!agrees(f, &negation->look, ref, ts))
            level->open |= UINT64_C(1) << i;
        else if (backward)
            lo = ts;
        else
            hi = ts;
    }
    walk(f->sources + look->source, key_of(f, look), lo, hi, &level->walk);
}

static int emit(Follow *f)
{
    for (int64_t i = 0; i < f->program->lasts; i++)
        if (killed(f, f->program->last + i))
            return 1;
    if (f->count == f->room) {
        npy_intp room = f->room ? 2 * f->room : 64;
        int64_t *more = realloc(f->found, (size_t)room * (size_t)f->width * sizeof *more);
        if (more == NULL) {
            f->short_of_memory = 1;
            return 0;
        }
        f->found = more;
        f->room = room;
    }
    const Program *program = f->program;
    int64_t *row = f->found + f->count++ * f->width;
    *row++ = f->seed - 1;
    for (int64_t i = 0; i < program->bound; i++) {
        *row++ = f->bound.ref[program->bind[i]];
        *row++ = f->bound.ts[program->bind[i]];
    }
    for (int64_t i = 0; i < program->moves; i++) {
        *row++ = f->bound.ref[program->move[i].look.part];
        *row++ = f->bound.ts[program->move[i].look.part];
    }
    return 1;
}

/* Fetch what the next seeds will look at first, in a range of time about them. */
static void foresee_look(Follow *f, const Look *look, const Range *range)
{
    const int64_t *from = NULL, *to = NULL;
    for (int64_t i = 0; i < f->program->bound; i++) {
        from = f->program->bind[i] == range->from ? f->seed_ts[i] + f->seed : from;
        to = f->program->bind[i] == range->to ? f->seed_ts[i] + f->seed : to;
    }
    if (!look->carried || from == NULL || to == NULL)
        return;
    int64_t lo[AHEAD], hi[AHEAD];
    npy_intp n = f->n - f->seed < AHEAD ? f->n - f->seed : AHEAD;
    for (npy_intp i = 0; i < n; i++) {
        lo[i] = from[i] + range->add_from;
        hi[i] = to[i] + range->add_to;
    }
    foresee_rows(f->sources + look->source, f->keys + f->seed, lo, hi, n);
}

static void foresee_seeds(Follow *f)
{
    const Program *program = f->program;
    for (int64_t i = 0; i < program->first.negations; i++)
        foresee_look(f, &program->first.negation[i].look, &program->first.negation[i].look.range);
    if (!program->moves)
        return;
    const Move *move = program->move;
    foresee_look(f, &move->look, &move->look.range);
    for (int64_t i = 0; i < move->negations; i++)
        if (move->negation[i].cut)
            foresee_look(f, &move->negation[i].look, &move->look.range);
}

/* Go on until `most` rows are found, or there are no more. */
static void follow_on(Follow *f, npy_intp most)
{
    const Program *program = f->program;
    while (f->count < most && !f->bound.lost) {
        if (f->depth < 0) {
            if (f->seed == f->n)
                return;
            if (f->seed % AHEAD == 0)
                foresee_seeds(f);
            f->key = f->keys[f->seed];
            for (int64_t i = 0; i < program->bound; i++)
                bind(&f->bound, program->bind[i], f->seed_refs[i][f->seed], f->seed_ts[i][f->seed]);
            f->seed++;
            if (!stands(f, &program->first, UINT64_MAX))
                continue;
            if (!program->moves) {
                if (!emit(f))
                    return;
                continue;
            }
            f->depth = 0;
            enter(f);
        }
        const Move *move = program->move + f->depth;
        Level *level = f->level + f->depth;
        int64_t ref, ts;
        if (!next_event(f->sources + move->look.source, &level->walk, &ref, &ts)) {
            f->depth--;
            continue;
        }
        bind(&f->bound, move->look.part, ref, ts);
        if (!linked(&f->bound, &move->look) || !stands(f, move, level->open))
            continue;
        if (f->depth + 1 < program->moves) {
            f->depth++;
            enter(f);
        } else if (!emit(f))
            return;
    }
}

static void follow_done(Follow *f)
{
    if (f->sources)
        for (int64_t i = 0; i < f->program->sources; i++)
            source_done(f->sources + i);
    free(f->sources);
    free(f->latest);
    free(f->bound.columns);
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
    return part[2] == Py_None || (column->valid = lent(part[2], 1, &column->n)) != NULL;
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

/* Sources, columns, places and seeds of a call. 0: not usable, or (`nothing`) without matches whatever the seeds. */
static int prepared(Follow *f, PyObject *const *args, int64_t bits, int *nothing)
{
    const Program *program = f->program;
    PyObject **sources = items(args[1], program->sources, "sources");
    PyObject **latest = sources ? items(args[9], program->sources, "times") : NULL;
    if (!latest || !(f->sources = calloc((size_t)program->sources + 1, sizeof *f->sources)) ||
        !(f->latest = calloc((size_t)program->sources + 1, sizeof *f->latest)))
        return 0;
    for (int64_t i = 0; i < program->sources; i++)
        if (!source_of(sources[i], bits, f->sources + i) || !integer(latest[i], f->latest + i))
            return 0;
    for (int64_t i = 0; i < program->moves; i++)
        if ((*nothing = nothing_in(f->sources + program->move[i].look.source)))
            return 0;
    PyObject **columns = items(args[3], program->columns, "columns");
    if (!columns || !(f->bound.columns = calloc((size_t)program->columns + 1, sizeof *f->bound.columns)))
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

/* What has been found so far, as (seeds, keys, refs, ts, rest); the follow is handed to `rest`, or done. */
static PyObject *piece(Follow *f, int64_t most)
{
    const Program *program = f->program;
    NPY_BEGIN_THREADS_DEF;
    NPY_BEGIN_THREADS;
    follow_on(f, most);
    NPY_END_THREADS;
    if (f->bound.lost || f->short_of_memory) {
        if (f->bound.lost)
            PyErr_SetString(PyExc_IndexError, "a reference is not in the log");
        else
            PyErr_NoMemory();
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

/* follow(program, sources, bits, columns, places, keys, refs, ts, most, latest) -> the first `most` matches or fewer, or None
 *
 * `latest` are times that no event of a source is later than. Seeds are rows of keys, and of refs and ts for each
 * component that the program says they bind. Matches are (numbers of their seeds, keys, references and times as a list
 * with None for components not bound, and what `resume` needs to go on, or None). */
static PyObject *follow(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    int64_t bits, most;
    if (!expects(count, 10) || !integer(args[2], &bits) || !integer(args[8], &most))
        return NULL;
    Program *program = PyCapsule_GetPointer(args[0], "latecomer.program");
    if (program == NULL)
        return NULL;
    Follow *f = calloc(1, sizeof *f);
    if (f == NULL)
        return PyErr_NoMemory();
    f->program = program;
    f->depth = -1;
    f->mask = (INT64_C(1) << (bits & 63)) - 1;
    f->width = 1 + 2 * (program->bound + program->moves);
    int nothing = 0;
    if (!prepared(f, args, bits, &nothing)) {
        follow_done(f);
        if (nothing)
            Py_RETURN_NONE;
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "a source, a column or a seed does not fit");
        return NULL;
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
