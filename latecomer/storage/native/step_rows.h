/* The rows of a step: what a batch says, where the clock is behind it, and which rows count. */

#define MOST_ROWS 65536 /* of a batch */

/* Memory that is taken piece by piece. */
typedef struct {
    char *memory, *at;
} Arena;

static void *piece_of_arena(Arena *arena, size_t bytes)
{
    void *piece = arena->at;
    arena->at += (bytes + 15) & ~(size_t)15;
    return piece;
}

/* What an order starts from: keys, and references and times of each component that it binds. */
typedef struct {
    npy_intp n;
    const uint64_t *keys;
    const int64_t *refs[MOST_PARTS], *ts[MOST_PARTS];
} Seeds;

/* Of a query whose matches wait: rows of its Waiting that are due, which are taken out, and such that are to be put in. */
typedef struct {
    npy_intp due, due_room, more, more_room;
    int64_t *due_rows, *more_rows;
    int64_t *seeds; /* what is due, column by column */
} Waits;

/* What a batch's rows are on their way. */
typedef struct {
    Plan *plan;
    Arena arena;
    Reading rows;
    const int64_t *times;
    int64_t before, clock, begin; /* begin: the first new reference */
    npy_intp counted;     /* rows of types that are asked for, */
    npy_intp known;       /* and those of them that count here: */
    int64_t *row, *refs, *places;
    uint64_t *ids;
    IdTable tables[2];
    int64_t first, done, base, room; /* of the tables */
    npy_intp entered;
    Arrivals *arrivals; /* for each stock */
    Run *runs;
    Source *views; /* for each stock and view */
    int64_t *latest;
    Column *columns;
    Waits *waits; /* for each query */
} Step;

/* Find room for what is read of the rows; 0: they are out of the ordinary. */
static int reading_begins(const Plan *plan, Reading *to, Arena *arena, const ArrowSchema *schema, const ArrowArray *array)
{
    size_t n = (size_t)to->n;
    to->fields = piece_of_arena(arena, (size_t)to->columns * sizeof *to->fields);
    if (!is_plain(to, schema, array, plan->roles))
        return 0;
    to->numbers = piece_of_arena(arena, 8 * n);
    to->contents = piece_of_arena(arena, 8 * n);
    to->ids = piece_of_arena(arena, 8 * n);
    to->words = piece_of_arena(arena, 8 * n);
    to->ts = is_as_is(to) ? NULL : piece_of_arena(arena, 8 * n);
    for (npy_intp i = 0; i < to->columns; i++) {
        Field *field = to->fields + i;
        if (field->role & IS_ID)
            field->hashes = to->ids;
        else if (field->role & IS_HASHED) {
            if (!is_hashable(field))
                return 0;
            field->hashes = piece_of_arena(arena, 8 * n);
        }
    }
    return 1;
}

/* Whether the log can keep what was read. */
static int step_keeps(const Step *step)
{
    const Plan *plan = step->plan;
    for (npy_intp i = 0; i < plan->columns; i++) {
        const Kept *kept = plan->column + i;
        const Field *field = step->rows.fields + kept->field;
        if (kept->field >= 0 && ((field->valid && !kept->valid) || field->kind == OF_NOTHING ||
                                 is_text(field) != (kept->offsets != NULL) ||
                                 (field->kind == OF_BIT) != (kept->kind == BOOLEAN) ||
                                 (!is_text(field) && field->kind != OF_BIT && WIDTHS[field->kind] != kept->width)))
            return 0;
    }
    return 1;
}

/* Find room for a batch of so many rows. */
static int step_begins(Step *step, npy_intp length, int64_t first)
{
    Plan *plan = step->plan;
    Reading *to = &step->rows;
    *to = plan->reading;
    to->n = length;
    to->first = first;
    size_t n = (size_t)to->n, hashed = 1, words;
    for (npy_intp i = 0; i < to->columns; i++)
        hashed += (plan->roles[i] & IS_HASHED) != 0;
    words = n * (9 + hashed + 7 + 4 * (size_t)plan->each) + 2 * (25 + hashed + 4 * (size_t)plan->stocks);
    size_t stocks = (size_t)plan->stocks, fields = (size_t)to->columns * sizeof *to->fields;
    size_t rest = stocks * (sizeof *step->arrivals + VIEWS * (sizeof *step->views + sizeof *step->latest)) +
                  (size_t)plan->columns * sizeof *step->columns + (size_t)plan->askers * sizeof *step->waits;
    for (npy_intp i = 0; i < plan->stocks; i++)
        rest += plan->stock[i].filter ? (size_t)plan->stock[i].filter->columns * sizeof(Column) + 16 : 0;
    step->arena.memory = step->arena.at = malloc(8 * words + fields + rest + 256);
    if (step->arena.memory == NULL) {
        complain(PyExc_MemoryError, "there is none for a batch");
        return 0;
    }
    size_t waits = (size_t)plan->askers * sizeof *step->waits;
    step->waits = memset(piece_of_arena(&step->arena, waits), 0, waits);
    return 1;
}

/* Read the rows; 0: they are out of the ordinary. */
static int step_reads(Step *step, const ArrowSchema *schema, const ArrowArray *array)
{
    if (!reading_begins(step->plan, &step->rows, &step->arena, schema, array) || !step_keeps(step) ||
        !read_rows_from(&step->rows, 0, step->rows.n))
        return 0;
    step->times = times_of(&step->rows);
    return 1;
}

/* Move the clock on; 0: a row of a type that is asked for is later than `delay`. */
static int step_judges(Step *step, int64_t delay, int64_t *behind)
{
    int64_t clock = step->clock;
    int late = 0;
    step->row = piece_of_arena(&step->arena, 8 * (size_t)step->rows.n);
    for (npy_intp i = 0; i < step->rows.n; i++) {
        int64_t ts = step->times[i];
        clock = ts > clock ? ts : clock;
        behind[i] = (int64_t)((uint64_t)clock - (uint64_t)ts);
        step->row[step->known] = i;
        step->known += step->rows.numbers[i] >= 0;
        late |= step->rows.numbers[i] >= 0 && ts < clock - delay;
    }
    step->clock = clock;
    return !late;
}

/* The hash of a row's key. */
static inline uint64_t key_hash(const Step *step, const int64_t *key, npy_intp keys, int64_t row)
{
    uint64_t hash = 0;
    for (npy_intp i = 0; i < keys; i++) {
        uint64_t own = step->rows.fields[key[i]].hashes[row];
        hash = i ? mix(hash * GOLDEN + own) : own;
    }
    return hash;
}

/* Leave out the rows that do not count here; 0: some have no key. `runtime/share.py` says the same. */
static int step_shares(Step *step)
{
    const Portion *portion = &step->plan->portion;
    uint64_t of = (uint64_t)portion->of;
    int even = (of & (of - 1)) == 0; /* a division takes as long as all else */
    npy_intp kept = 0;
    for (npy_intp i = 0; i < portion->keys; i++)
        if (step->rows.fields[portion->key[i]].valid)
            return 0;
    for (npy_intp j = 0; portion->of && j < step->known; j++) {
        int64_t row = step->row[j];
        step->row[kept] = row;
        uint64_t hash = mix(key_hash(step, portion->key, portion->keys, row));
        kept += (even ? hash & (of - 1) : hash % of) == (uint64_t)portion->rest;
    }
    step->counted = step->known;
    step->known = portion->of ? kept : step->known;
    return 1;
}
