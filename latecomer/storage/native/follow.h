/* Following a join order from seeds to matches: the compiled road of `runtime/sequence.py`, which is its twin.
 *
 * It goes depth first, but a group of rows at a time: of all rows of a group it is known what they will look at before
 * the first one looks, so that they wait for memory together. Matches come in the order of seeds, and of what is found
 * for each component, as if rows went alone.
 *
 * What depends on the batch comes with each call: where events are found (sources), the log's columns, and the seeds.
 */

#define GROUP AHEAD /* rows that go on at once */

/* How far the rows of a group are with the events of the next component. */
typedef struct {
    Search search;        /* the rows that may find something */
    npy_intp from[GROUP]; /* their numbers in the group */
    uint64_t open[GROUP]; /* negations that a negative of another key with the same hash left undecided */
    /* The group that goes on. */
    npy_intp owner[GROUP];
    int64_t ref[GROUP], ts[GROUP], place[GROUP];
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
    npy_intp n, seed;      /* `seed`: the next one */
    npy_intp group[GROUP]; /* numbers of the seeds under way */
    int64_t *seed_place;   /* of each component that they bind, where they are in the log */
    Level *level;          /* for each move */
    int64_t depth;         /* of the move under way; -1: none */
    uint64_t key;          /* of the seed that is bound */
    int64_t *found; /* rows of (seed, then reference and time of each bound component) */
    npy_intp count, room, width;
    int short_of_memory;
} Follow;

/* Whether the event of a component agrees on a link with the one that it is linked to. */
static int alike(Bound *bound, int64_t part, const Link *link)
{
    const Column *own = bound->columns + link->column, *other = bound->columns + link->other_column;
    int64_t a = 0, b = 0;
    if (link->column >= 0 && (a = value_at(bound, part, own)) < 0)
        return 0;
    if (link->other_column >= 0 && (b = value_at(bound, link->other, other)) < 0)
        return 0;
    if (link->column >= 0 && link->other_column >= 0)
        return same_value(own, a, other, b);
    int64_t left = link->column < 0 ? bound->ts[part] : whole(own, a);
    return left == (link->other_column < 0 ? bound->ts[link->other] : whole(other, b));
}

/* Whether the event of a look's component agrees on its links with what is bound. */
static inline int linked(Bound *bound, const Look *look)
{
    int64_t part = look->part;
    for (const Link *link = look->link; link < look->link + look->links; link++) {
        if (link->column >= 0 && link->other_column >= 0) { /* most keys are whole numbers */
            const Column *own = bound->columns + link->column, *other = bound->columns + link->other_column;
            uint64_t a = (uint64_t)bound->place[part], b = (uint64_t)bound->place[link->other];
            if (own->words && other->words && own->kind != FLOATING && a < (uint64_t)own->n && b < (uint64_t)other->n) {
                if (own->words[a] != other->words[b])
                    return 0;
                continue;
            }
        }
        if (!alike(bound, part, link))
            return 0;
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
        if (!passes_soon(bound, look->test + i))
            return 0;
    return 1;
}

/* Whether an event agrees on a look's links with what is bound, and passes its tests. What is bound stays: a negative may
 * be bound as the seed while others of its negation are looked at. */
static int agrees(Follow *f, const Look *look, int64_t ref, int64_t ts, int64_t place)
{
    int64_t part = look->part, kept_ref = f->bound.ref[part], kept_ts = f->bound.ts[part], kept_place = f->bound.place[part];
    bind(&f->bound, part, ref, ts, place);
    int fine = linked(&f->bound, look) && tested(&f->bound, look);
    f->bound.ref[part] = kept_ref;
    f->bound.ts[part] = kept_ts;
    f->bound.place[part] = kept_place;
    return fine;
}

/* Bind a row of the group that has come to a depth; -1: of seeds. */
static void bind_row(Follow *f, int64_t depth, npy_intp row)
{
    const Program *program = f->program;
    for (; depth >= 0; depth--) {
        const Level *level = f->level + depth;
        bind(&f->bound, program->move[depth].look.part, level->ref[row], level->ts[row], level->place[row]);
        row = level->from[level->owner[row]];
    }
    npy_intp seed = f->group[row];
    f->key = f->keys[seed];
    for (int64_t i = 0; i < program->bound; i++)
        bind(&f->bound, program->bind[i], f->seed_refs[i][seed], f->seed_ts[i][seed], f->seed_place[i * GROUP + row]);
}

/* Where an event is in the log, whose values there are fetched. */
static inline int64_t foresee_values(Follow *f, int64_t part, int64_t ref)
{
    uint64_t wanted = f->program->wanted[part];
    if (!wanted)
        return -1;
    int64_t place = place_of(&f->bound.places, ref);
    for (const Column *column = f->bound.columns; wanted; wanted >>= 1, column++)
        if (wanted & 1)
            PREFETCH(column->first + place * column->step);
    return place;
}

/* Bound the times of what is looked for by the negatives of the seeds' keys that are nearest to an anchor. */
static void cut(Follow *f, Level *level, const uint64_t *keys, const int64_t *anchor, const Negation *negation,
                uint64_t bit)
{
    Asked own, *asked = &level->search.asked;
    int64_t ts[GROUP], ref[GROUP], place[GROUP];
    const int64_t *found[GROUP];
    int below = negation->cut == 1;
    own.n = asked->n;
    for (npy_intp i = 0; i < own.n; i++) {
        own.key[i] = keys[i];
        own.lo[i] = (below ? asked->lo[i] : anchor[i]) + 1;
        own.hi[i] = (below ? anchor[i] : asked->hi[i]) - 1;
    }
    nearest_events(f->sources + negation->look.source, &own, below, found, ts);
    for (npy_intp i = 0; i < own.n; i++)
        if (found[i])
            place[i] = foresee_values(f, negation->look.part, ref[i] = *found[i]);
    for (npy_intp i = 0; i < own.n; i++) {
        if (!found[i])
            continue;
        bind_row(f, f->depth - 1, level->from[i]);
        if (!agrees(f, &negation->look, ref[i], ts[i], place[i]))
            level->open[i] |= bit;
        else if (below)
            asked->lo[i] = ts[i];
        else
            asked->hi[i] = ts[i];
    }
}

/* Begin to look for the events of the next component of so many rows. */
static void enter(Follow *f, npy_intp rows)
{
    const Move *move = f->program->move + ++f->depth;
    const Look *look = &move->look;
    Level *level = f->level + f->depth;
    Asked *asked = &level->search.asked;
    uint64_t keys[GROUP];
    int64_t anchors[MOST_PARTS][GROUP];
    uint64_t uncut = 0;
    npy_intp n = 0;
    for (int64_t i = 0; i < move->negations; i++)
        uncut |= (uint64_t)!move->negation[i].cut << i;
    for (npy_intp i = 0; i < rows; i++) {
        bind_row(f, f->depth - 1, i);
        int64_t lo = f->bound.ts[look->range.from] + look->range.add_from;
        if (lo > f->latest[look->source]) /* most new events are newer than all that is known */
            continue;
        for (int64_t j = 0; j < move->negations; j++)
            anchors[j][n] = f->bound.ts[move->negation[j].anchor];
        keys[n] = f->key;
        asked->lo[n] = lo;
        asked->hi[n] = f->bound.ts[look->range.to] + look->range.add_to;
        asked->key[n] = key_of(f, look);
        level->open[n] = uncut;
        level->from[n++] = i;
    }
    asked->n = n;
    for (int64_t i = 0; n && i < move->negations; i++)
        if (move->negation[i].cut)
            cut(f, level, keys, anchors[i], move->negation + i, UINT64_C(1) << i);
    search(&level->search);
}

/* Take the next events that are found, at most so many; how many they are. */
static npy_intp take(Follow *f, Level *level, npy_intp most)
{
    const Look *look = &f->program->move[f->depth].look;
    Source *source = f->sources + look->source;
    Stretch *own;
    npy_intp n = 0;
    while (n < most && (own = stretch_of(source, &level->search))) {
        const Run *run = own->run;
        for (; n < most && own->at < run->n && run->codes[own->at] < own->end; own->at++, n++) {
            level->owner[n] = own->row;
            level->ref[n] = run->refs[own->at];
            level->ts[n] = time_at(source, run, own->at);
            level->place[n] = foresee_values(f, look->part, level->ref[n]);
        }
        level->search.next += n < most;
    }
    return n;
}

/* A row of a group becomes the one of this number in it. */
static inline void put_row(Follow *f, int64_t depth, npy_intp row, npy_intp to)
{
    if (depth < 0) {
        f->group[to] = f->group[row];
        for (int64_t b = 0; b < f->program->bound; b++)
            f->seed_place[b * GROUP + to] = f->seed_place[b * GROUP + row];
        return;
    }
    Level *level = f->level + depth;
    level->owner[to] = level->owner[row];
    level->ref[to] = level->ref[row];
    level->ts[to] = level->ts[row];
    level->place[to] = level->place[row];
}

/* Drop the rows of a group in whose scope of a negation a negative falls, if they left it open (`bit`; 0: all did); how
 * many stay. */
static npy_intp spared(Follow *f, int64_t depth, npy_intp n, const Negation *negation, uint64_t bit)
{
    const Look *look = &negation->look;
    Source *source = f->sources + look->source;
    Search own;
    const Stretch *next;
    npy_intp from[GROUP], asked = 0, kept = 0;
    int dead[GROUP];
    for (npy_intp i = 0; i < n; i++) {
        dead[i] = 0;
        if (bit && !(f->level[depth].open[f->level[depth].owner[i]] & bit))
            continue;
        bind_row(f, depth, i);
        own.asked.lo[asked] = f->bound.ts[look->range.from] + look->range.add_from;
        own.asked.hi[asked] = f->bound.ts[look->range.to] + look->range.add_to;
        if (own.asked.lo[asked] > f->latest[look->source])
            continue;
        own.asked.key[asked] = key_of(f, look);
        from[asked++] = i;
    }
    own.asked.n = asked;
    if (!asked)
        return n;
    for (search(&own); (next = stretch_of(source, &own)); own.next++) {
        npy_intp row = from[next->row];
        const Run *run = next->run;
        bind_row(f, depth, row);
        for (npy_intp at = next->at; !dead[row] && at < run->n && run->codes[at] < next->end; at++)
            dead[row] = (negation->before < 0 || run->refs[at] < f->bound.ref[negation->before]) &&
                        agrees(f, look, run->refs[at], time_at(source, run, at), -1);
    }
    for (npy_intp i = 0; i < n; i++)
        if (!dead[i])
            put_row(f, depth, i, kept++);
    return kept;
}

/* Tell of complete matches. */
static void emit(Follow *f, npy_intp n)
{
    const Program *program = f->program;
    for (int64_t i = 0; n && i < program->lasts; i++)
        n = spared(f, program->moves - 1, n, program->last + i, 0);
    if (f->room - f->count < n) {
        npy_intp room = 2 * f->room + 4 * GROUP;
        int64_t *more = realloc(f->found, (size_t)room * (size_t)f->width * sizeof *more);
        if (more == NULL) {
            f->short_of_memory = 1;
            return;
        }
        f->found = more;
        f->room = room;
    }
    for (npy_intp i = 0; i < n; i++) {
        int64_t *own = f->found + f->count++ * f->width, *next = own + f->width;
        npy_intp row = i;
        for (int64_t depth = program->moves - 1; depth >= 0; depth--) {
            const Level *level = f->level + depth;
            *--next = level->ts[row];
            *--next = level->ref[row];
            row = level->from[level->owner[row]];
        }
        own[0] = f->group[row];
        for (int64_t b = 0; b < program->bound; b++) {
            own[1 + 2 * b] = f->seed_refs[b][own[0]];
            own[2 + 2 * b] = f->seed_ts[b][own[0]];
        }
    }
}

/* Take the next seeds that stand, at most so many; how many they are. */
static npy_intp take_seeds(Follow *f, npy_intp most)
{
    const Program *program = f->program;
    const Move *first = &program->first;
    npy_intp n = f->n - f->seed < most ? f->n - f->seed : most, kept = 0;
    for (npy_intp i = 0; i < n; i++) {
        f->group[i] = f->seed++;
        for (int64_t b = 0; b < program->bound; b++)
            f->seed_place[b * GROUP + i] = foresee_values(f, program->bind[b], f->seed_refs[b][f->group[i]]);
    }
    for (npy_intp i = 0; first->look.tests && i < n; i++) {
        bind_row(f, -1, i);
        if (tested(&f->bound, &first->look))
            put_row(f, -1, i, kept++);
    }
    n = first->look.tests ? kept : n;
    for (int64_t i = 0; n && i < first->negations; i++)
        n = spared(f, -1, n, first->negation + i, 0);
    return n;
}

/* Take the next group through the move under way; how many rows stand. */
static npy_intp step(Follow *f, npy_intp n)
{
    const Move *move = f->program->move + f->depth;
    const Level *level = f->level + f->depth;
    npy_intp kept = 0, owner = -1;
    for (npy_intp i = 0; i < n; i++) {
        if (owner != level->owner[i]) {
            owner = level->owner[i];
            bind_row(f, f->depth - 1, level->from[owner]);
        }
        bind(&f->bound, move->look.part, level->ref[i], level->ts[i], level->place[i]);
        if (linked(&f->bound, &move->look) && tested(&f->bound, &move->look))
            put_row(f, f->depth, i, kept++);
    }
    for (int64_t i = 0; kept && i < move->negations; i++)
        kept = spared(f, f->depth, kept, move->negation + i, UINT64_C(1) << i);
    return kept;
}

/* Go on until `most` rows are found, or there are no more. */
static void follow_on(Follow *f, npy_intp most)
{
    int64_t moves = f->program->moves;
    while (f->count < most && !f->bound.lost && !f->short_of_memory && (f->depth >= 0 || f->seed < f->n)) {
        npy_intp few = most - f->count < GROUP ? most - f->count : GROUP, n;
        if (f->depth < 0)
            n = take_seeds(f, few);
        else if ((n = take(f, f->level + f->depth, few)))
            n = step(f, n);
        else {
            f->depth--;
            continue;
        }
        if (n && f->depth + 1 < moves)
            enter(f, n);
        else if (n)
            emit(f, n);
    }
}

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

/* The memory of a call, in one piece. 0: there is not as much. */
static int roomy(Follow *f)
{
    const Program *program = f->program;
    size_t sources = (size_t)program->sources * sizeof *f->sources, columns = (size_t)program->columns * sizeof(Column);
    size_t latest = (size_t)program->sources * sizeof *f->latest;
    size_t places = (size_t)program->bound * GROUP * sizeof *f->seed_place;
    char *memory = malloc(sources + columns + latest + places + (size_t)program->moves * sizeof *f->level);
    if (memory == NULL)
        return 0;
    memset(memory, 0, sources + columns);
    f->sources = (Source *)memory;
    f->bound.columns = (Column *)(memory + sources);
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
        PyErr_SetString(PyExc_IndexError, "a reference is not in the log");
    else if (f->short_of_memory)
        PyErr_NoMemory();
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
