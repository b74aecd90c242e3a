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
    int64_t until;         /* seeds that are later find nothing that is wanted */
    npy_intp group[GROUP]; /* numbers of the seeds under way */
    int64_t *seed_place;   /* of each component that they bind, where they are in the log */
    Level *level;          /* for each move */
    int64_t depth;         /* of the move under way; -1: none */
    uint64_t key;          /* of the seed that is bound */
    int64_t *own;   /* memory of the seeds, where it is that of the follow */
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

/* Take the next seeds that may find something first, at most so many, into the group; how many they are. Most are newer than
 * all that is known, or than all that has left. */
static npy_intp gather_seeds(Follow *f, npy_intp most)
{
    const Program *program = f->program;
    const Look *look = program->moves ? &program->move->look : NULL;
    int bounded = look && program->bound == 1 && look->range.from == program->bind[0];
    int64_t latest = bounded ? f->latest[look->source] : 0, add = bounded ? look->range.add_from : 0;
    npy_intp n = 0, seed = f->seed;
    for (; seed < f->n && n < most; seed++) {
        f->group[n] = seed;
        n += (!bounded || f->seed_ts[0][seed] + add <= latest) & (f->seed_ts[0][seed] <= f->until);
    }
    f->seed = seed;
    return n;
}

/* Take the next seeds that stand, at most so many; how many they are. */
static npy_intp take_seeds(Follow *f, npy_intp most)
{
    const Program *program = f->program;
    const Move *first = &program->first;
    npy_intp n = gather_seeds(f, most), kept = 0;
    for (npy_intp i = 0; i < n; i++)
        for (int64_t b = 0; b < program->bound; b++)
            f->seed_place[b * GROUP + i] = foresee_values(f, program->bind[b], f->seed_refs[b][f->group[i]]);
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
static npy_intp move_on(Follow *f, npy_intp n)
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
            n = move_on(f, n);
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
