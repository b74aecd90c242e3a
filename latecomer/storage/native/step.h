/* A step: a batch's whole way through an engine, from its Arrow buffers to the matches that it changes, in one call.
 *
 * Rule: it does what `runtime/express.py` does with the other kernels one after another, or, where anything stands against
 * that (a row that is out of the ordinary or late, an id whose mark is taken, a column without room), nothing at all: then
 * the answer is None, and the batch goes that road. So all that may fail comes before anything that others see is changed.
 */

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

/* What a batch's rows are on their way. */
typedef struct {
    Plan *plan;
    Arena arena;
    Reading rows;
    const int64_t *times;
    int64_t clock, begin; /* begin: the first new reference */
    npy_intp counted;     /* rows of types that are asked for, */
    npy_intp known;       /* and those of them that count here: */
    int64_t *row, *refs, *places;
    uint64_t *ids;
    IdTable tables[2];
    int64_t first, done, base; /* of the tables */
    npy_intp entered;
    Arrivals *arrivals; /* for each stock */
    Run *runs;
    Source *views; /* for each stock and view */
    int64_t *latest;
    Column *columns;
} Step;

/* Read the rows; 0: they are out of the ordinary, or there is no memory for them. */
static int step_reads(Step *step, const ArrowSchema *schema, const ArrowArray *array, int64_t first)
{
    Plan *plan = step->plan;
    Reading *to = &step->rows;
    *to = plan->reading;
    to->n = array->length;
    to->first = first;
    size_t n = (size_t)to->n, hashed = 1, words;
    for (npy_intp i = 0; i < to->columns; i++)
        hashed += (plan->roles[i] & IS_HASHED) != 0;
    words = n * (9 + hashed + 7 + 4 * (size_t)plan->each) + 2 * (25 + hashed + 4 * (size_t)plan->stocks);
    size_t stocks = (size_t)plan->stocks, fields = (size_t)to->columns * sizeof *to->fields;
    size_t rest = stocks * (sizeof *step->arrivals + VIEWS * (sizeof *step->views + sizeof *step->latest)) +
                  (size_t)plan->columns * sizeof *step->columns;
    for (npy_intp i = 0; i < plan->stocks; i++)
        rest += plan->stock[i].filter ? (size_t)plan->stock[i].filter->columns * sizeof(Column) + 16 : 0;
    step->arena.memory = step->arena.at = malloc(8 * words + fields + rest + 256);
    if (step->arena.memory == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    to->fields = piece_of_arena(&step->arena, fields);
    if (!is_plain(to, schema, array, plan->roles))
        return 0;
    for (npy_intp i = 0; i < plan->columns; i++) {
        const Kept *kept = plan->column + i;
        const Field *field = to->fields + kept->field;
        if (kept->field >= 0 && ((field->valid && !kept->valid) || field->kind == OF_NOTHING ||
                                 is_text(field) != (kept->offsets != NULL) ||
                                 (field->kind == OF_BIT) != (kept->kind == BOOLEAN) ||
                                 (!is_text(field) && field->kind != OF_BIT && WIDTHS[field->kind] != kept->width)))
            return 0;
    }
    int as_is = to->factor == 1 && to->divisor == 1;
    to->numbers = piece_of_arena(&step->arena, 8 * n);
    to->contents = piece_of_arena(&step->arena, 8 * n);
    to->ids = piece_of_arena(&step->arena, 8 * n);
    to->words = piece_of_arena(&step->arena, 8 * n);
    to->ts = as_is ? NULL : piece_of_arena(&step->arena, 8 * n);
    for (npy_intp i = 0; i < to->columns; i++) {
        Field *field = to->fields + i;
        if (field->role & IS_ID)
            field->hashes = to->ids;
        else if (field->role & IS_HASHED) {
            if (field->kind == OF_NOTHING || field->kind == OF_F32 || field->kind == OF_F64)
                return 0;
            field->hashes = piece_of_arena(&step->arena, 8 * n);
        }
    }
    int plain;
    NPY_BEGIN_THREADS_DEF;
    NPY_BEGIN_THREADS_THRESHOLDED(to->n);
    plain = read_all(to);
    NPY_END_THREADS;
    if (!plain)
        return 0;
    step->times = as_is ? to->time->values : to->ts;
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
    npy_intp kept = 0;
    for (npy_intp i = 0; i < portion->keys; i++)
        if (step->rows.fields[portion->key[i]].valid)
            return 0;
    for (npy_intp j = 0; portion->of && j < step->known; j++) {
        int64_t row = step->row[j];
        step->row[kept] = row;
        kept += mix(key_hash(step, portion->key, portion->keys, row)) % (uint64_t)portion->of == (uint64_t)portion->rest;
    }
    step->counted = step->known;
    step->known = portion->of ? kept : step->known;
    return 1;
}

/* Bytes of texts of the rows that are kept. */
static int64_t bytes_kept(const Step *step, const Field *field)
{
    const int32_t *starts = field->values;
    int64_t bytes = 0;
    if (step->known == step->rows.n)
        return starts[step->rows.n] - starts[0];
    for (npy_intp i = 0; i < step->known; i++)
        bytes += starts[step->row[i] + 1] - starts[step->row[i]];
    return bytes;
}

/* Whether a span takes so many values of this width, perhaps after it has made room; 0, perhaps with an exception. */
static int makes_room(Span *span, npy_intp n, npy_intp width)
{
    if (span_takes(span, n, width))
        return 1;
    PyObject *made = PyObject_CallMethod((PyObject *)span, "reserve", "n", (Py_ssize_t)n);
    Py_XDECREF(made);
    return made != NULL && span_takes(span, n, width);
}

/* Whether the log takes the rows; 0, perhaps with an exception: not as it is. */
static int step_fits(const Step *step)
{
    const Plan *plan = step->plan;
    npy_intp n = step->known;
    if (!makes_room(plan->ts, n, 8) || !makes_room(plan->types, n, 4) || !makes_room(plan->content, n, 8))
        return 0;
    for (npy_intp i = 0; i < plan->columns; i++) {
        const Kept *kept = plan->column + i;
        if (kept->offsets == NULL ? !makes_room(kept->values, n, kept->width)
                                  : !makes_room(kept->offsets, n, 8) ||
                                        !makes_room(kept->values, (npy_intp)bytes_kept(step, step->rows.fields + kept->field), 1))
            return 0;
        if (kept->valid && !makes_room(kept->valid, n, 1))
            return 0;
    }
    return 1;
}

/* How others see a column of the log when it has so many more rows. */
static Column column_with(const Kept *kept, npy_intp more)
{
    Column column = {.kind = (enum Kind)kept->kind, .width = kept->width, .values = span_first(kept->values)};
    if (kept->offsets) {
        column.offsets = (const int64_t *)span_first(kept->offsets);
        column.n = span_length(kept->offsets) - 1 + more;
        column.first = (const char *)column.offsets;
        column.step = 8;
    } else {
        column.n = span_length(kept->values) + more;
        column.words = kept->kind <= FLOATING && kept->width == 8 ? (const int64_t *)column.values : NULL;
        column.first = column.values;
        column.step = kept->width;
    }
    if (kept->valid) {
        column.valid = (const npy_bool *)span_first(kept->valid);
        column.words = NULL;
    }
    return column;
}

/* Whether the log knows an event of this id hash among those with its mark: other hashes are other ids. */
static int id_is_known(const Step *step, const IdTable *table, uint64_t hash)
{
    const Plan *plan = step->plan;
    npy_intp at = id_home(id_mark(hash), table->size);
    if (plan->id < 0)
        return 1;
    Column column = column_with(plan->column + plan->id, 0);
    Bound bound = {.columns = &column};
    for (; table->words[at]; at = at + 1 == table->size ? 0 : at + 1) {
        if ((uint32_t)(table->words[at] >> 32) != id_mark(hash))
            continue;
        int64_t ref = id_ref(table, at, step->base), place = ref - (step->begin - span_length(plan->ts));
        if (place < 0) /* it is forgotten */
            continue;
        bind(&bound, 0, ref, 0, place);
        if ((ref < step->begin ? hash_of(&bound, 0, 0) : step->ids[ref - step->begin]) == hash)
            return 1;
    }
    return 0;
}

/* Enter the ids; 0: one is known, or it is that of two rows, or there is an exception. */
static int step_enters(Step *step)
{
    npy_intp n = step->known;
    step->refs = piece_of_arena(&step->arena, 8 * (size_t)n);
    step->places = piece_of_arena(&step->arena, 8 * (size_t)n);
    step->ids = piece_of_arena(&step->arena, 8 * (size_t)n);
    int64_t *open = piece_of_arena(&step->arena, 8 * (size_t)n);
    for (npy_intp i = 0; i < n; i++) {
        step->refs[i] = step->begin + i;
        step->ids[i] = step->rows.ids[step->row[i]];
    }
    npy_intp left = enter_ids(step->tables, step->first, step->done, step->ids, step->refs, n, 1, open, step->places);
    if (left >= 0)
        step->entered = n - left;
    for (npy_intp i = 0; i < left; i++) {
        uint64_t hash = step->ids[open[i]];
        const IdTable *table = id_table_of(id_mark(hash), step->tables, step->first, step->done);
        if (id_is_known(step, table, hash))
            return 0;
        npy_intp at = id_place(table, id_mark(hash), 0);
        if (at < 0)
            left = -1;
        else
            step->places[step->entered++] = take_place(step->tables, table, at, id_mark(hash), step->refs[open[i]]);
    }
    if (left < 0)
        PyErr_SetString(PyExc_ValueError, "the table is full");
    return left >= 0;
}

#define KEEP(type)                                              \
    for (npy_intp i = 0; i < step->known; i++)                  \
        ((type *)to)[i] = ((const type *)from)[step->row[i]];   \
    break

/* Copy the rows' values of this width. */
static void keep_values(const Step *step, const void *from, int width, void *to)
{
    if (step->known == step->rows.n) {
        memcpy(to, from, (size_t)step->known * (size_t)width);
        return;
    }
    switch (width) {
    case 1: KEEP(uint8_t);
    case 2: KEEP(uint16_t);
    case 4: KEEP(uint32_t);
    default: KEEP(uint64_t);
    }
}

/* Unpack the rows' bits, 0 where they are null. */
static void keep_bits(const Step *step, const Field *field, char *to)
{
    for (npy_intp i = 0; i < step->known; i++) {
        int64_t row = step->row[i], bit = field->skip + row;
        to[i] = ((const uint8_t *)field->values)[bit >> 3] >> (bit & 7) & (!field->valid || is_valid(field, row));
    }
}

/* Say which of the rows' values are not null. */
static void keep_valid(const Step *step, const Field *field, char *to)
{
    for (npy_intp i = 0; i < step->known; i++)
        to[i] = !field->valid || is_valid(field, step->row[i]);
}

/* Copy the rows' texts. */
static void keep_texts(const Step *step, const Field *field, const Kept *kept)
{
    const int32_t *starts = field->values;
    int64_t *edge = (int64_t *)span_next(kept->offsets), at = edge[-1];
    char *to = span_next(kept->values);
    if (step->known == step->rows.n && starts[step->rows.n] > starts[0])
        memcpy(to, field->bytes + starts[0], (size_t)(starts[step->rows.n] - starts[0]));
    for (npy_intp i = 0; i < step->known; i++) {
        int64_t row = step->row[i], length = starts[row + 1] - starts[row];
        if (step->known < step->rows.n && length) {
            memcpy(to, field->bytes + starts[row], (size_t)length);
            to += length;
        }
        edge[i] = at += length;
    }
}

/* Write the rows behind the log's end, which stays where it is, and tell of its columns as if it had moved. */
static void step_logs(Step *step)
{
    const Plan *plan = step->plan;
    keep_values(step, step->times, 8, span_next(plan->ts));
    keep_values(step, step->rows.contents, 8, span_next(plan->content));
    int32_t *types = (int32_t *)span_next(plan->types);
    for (npy_intp i = 0; i < step->known; i++)
        types[i] = (int32_t)step->rows.numbers[step->row[i]];
    step->columns = piece_of_arena(&step->arena, (size_t)plan->columns * sizeof *step->columns);
    for (npy_intp i = 0; i < plan->columns; i++) {
        const Kept *kept = plan->column + i;
        step->columns[i] = column_with(kept, step->known);
        if (kept->valid)
            keep_valid(step, step->rows.fields + kept->field, span_next(kept->valid));
        if (kept->kind == BOOLEAN) {
            keep_bits(step, step->rows.fields + kept->field, span_next(kept->values));
            continue;
        }
        if (kept->offsets) {
            keep_texts(step, step->rows.fields + kept->field, kept);
            continue;
        }
        int64_t *numbers = (int64_t *)span_next(kept->values);
        if (kept->field < 0)
            for (npy_intp j = 0; j < step->known; j++)
                numbers[j] = step->rows.first + step->row[j];
        else
            keep_values(step, step->rows.fields[kept->field].values, kept->width, numbers);
    }
}

/* Collect the new events of a stock, of which none are left out but those of other types. */
static void gather(const Step *step, const Stock *stock, Heap *heap)
{
    const uint64_t *hashes = stock->keys ? step->rows.fields[stock->key[0]].hashes : NULL;
    /* Whatever is written for a row of another type is written over by the next one. */
    for (npy_intp j = 0; j < step->known; j++) {
        int64_t row = step->row[j];
        drop_item(heap, hashes ? hashes[row] : 0, step->times[row], step->refs[j]);
        heap->n += step->rows.numbers[row] == stock->type;
    }
}

/* The same of a stock that leaves out those whose key is null, and those that do not pass its filter. */
static void gather_some(Step *step, const Stock *stock, Heap *heap)
{
    const Program *filter = stock->filter;
    Bound bound = {.texts = filter ? filter->text : NULL};
    bound.columns = filter ? piece_of_arena(&step->arena, (size_t)filter->columns * sizeof *bound.columns) : NULL;
    for (int64_t i = 0; filter && i < filter->columns; i++)
        bound.columns[i] = step->columns[stock->columns[i]];
    npy_intp end = span_length(step->plan->ts);
    for (npy_intp j = 0; j < step->known; j++) {
        int64_t row = step->row[j];
        int fine = step->rows.numbers[row] == stock->type;
        for (npy_intp i = 0; fine && i < stock->keys; i++) {
            const Field *field = step->rows.fields + stock->key[i];
            fine = !field->valid || is_valid(field, row);
        }
        if (fine && filter) {
            bind(&bound, 0, step->refs[j], step->times[row], end + j);
            fine = tested(&bound, &filter->first.look);
        }
        if (fine) {
            drop_item(heap, key_hash(step, stock->key, stock->keys, row), step->times[row], step->refs[j]);
            heap->n++;
        }
    }
}

/* Arrange the new events of each stock; 0: they are of too many slices. */
static int step_arranges(Step *step)
{
    Plan *plan = step->plan;
    Heap heap = {piece_of_arena(&step->arena, 2 * ((size_t)step->known + 1) * sizeof *heap.items), 0, plan->bits};
    step->arrivals = piece_of_arena(&step->arena, (size_t)plan->stocks * sizeof *step->arrivals);
    for (npy_intp i = 0; i < plan->stocks; i++) {
        const Stock *stock = plan->stock + i;
        Arrivals *new = step->arrivals + i;
        heap.n = 0;
        if (stock->filter || stock->keys > 1 || (stock->keys && step->rows.fields[stock->key[0]].valid))
            gather_some(step, stock, &heap);
        else
            gather(step, stock, &heap);
        new->n = heap.n;
        new->edges.count = new->edges.begin[0] = 0;
        new->latest = INT64_MIN;
        if (!heap.n)
            continue;
        int64_t base;
        new->codes = piece_of_arena(&step->arena, 8 * (size_t)heap.n);
        new->keys = piece_of_arena(&step->arena, 8 * (size_t)heap.n);
        new->refs = piece_of_arena(&step->arena, 8 * (size_t)heap.n);
        new->ts = piece_of_arena(&step->arena, 8 * (size_t)heap.n);
        const Item *order = settled(&heap, new->codes, new->ts, new->refs, new->keys, &base, &new->latest);
        for (npy_intp j = 0; j < heap.n; j++)
            if (j == 0 || order[j].slice != order[j - 1].slice) {
                if (new->edges.count == MOST_SLICES)
                    return 0;
                new->edges.slice[new->edges.count] = order[j].slice + base;
                new->edges.begin[new->edges.count++] = j;
            }
        new->edges.begin[new->edges.count] = heap.n;
    }
    return 1;
}

/* Let the stores tell of their runs where these have changed, and where there is no room for the new events. */
static int step_opens(Step *step)
{
    Plan *plan = step->plan;
    for (npy_intp i = 0; i < plan->stocks; i++) {
        Stock *stock = plan->stock + i;
        Recent *recent = stock->recent;
        if (recent->runs == Py_None || !recent_takes(recent, step->arrivals + i)) {
            PyObject *told = PyErr_Occurred() ? NULL : PyObject_CallMethod(stock->store, "expose", NULL);
            if (told == NULL)
                return 0;
            Py_DECREF(told);
            if (!recent_takes(recent, step->arrivals + i))
                return 0;
        }
        if (recent->runs != stock->seen) {
            source_done(&stock->known);
            Py_CLEAR(stock->seen);
            if (!source_of(recent->runs, plan->bits, &stock->known))
                return 0;
            stock->seen = Py_NewRef(recent->runs);
        }
    }
    return 1;
}

/* Put the runs of some events into a source, each behind those of its slice. */
static void show(Source *source, const Edges *edges, const uint64_t *codes, const int64_t *refs)
{
    npy_intp from = source->count, to = from + edges->count;
    source->count = to;
    for (npy_intp i = edges->count - 1; i >= 0; i--) {
        while (from > 0 && source->runs[from - 1].slice > edges->slice[i])
            source->runs[--to] = source->runs[--from];
        npy_intp begin = edges->begin[i];
        int64_t base = (int64_t)((uint64_t)edges->slice[i] << source->bits);
        source->runs[--to] = (Run){edges->slice[i], base, codes + begin, refs + begin, edges->begin[i + 1] - begin, 0, 0};
    }
}

/* What is seen of each stock in each view. */
static int step_shows(Step *step)
{
    Plan *plan = step->plan;
    size_t room = 0;
    for (npy_intp i = 0; i < plan->stocks; i++)
        room += (size_t)(2 * (plan->stock[i].known.count + 2 * MOST_SLICES) + MOST_SLICES);
    Run *next = step->runs = malloc((room + 1) * sizeof *next);
    if (next == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    step->views = piece_of_arena(&step->arena, VIEWS * (size_t)plan->stocks * sizeof *step->views);
    step->latest = piece_of_arena(&step->arena, VIEWS * (size_t)plan->stocks * sizeof *step->latest);
    for (npy_intp i = 0; i < plan->stocks; i++) {
        Source *known = &plan->stock[i].known, *view = step->views + VIEWS * i;
        const Recent *recent = plan->stock[i].recent;
        const Arrivals *new = step->arrivals + i;
        int64_t *latest = step->latest + VIEWS * i;
        for (int v = 0; v < VIEWS; v++) {
            view[v] = (Source){next, 0, plan->bits, known->mask};
            if (v != NEW_EVENTS) {
                memcpy(next, known->runs, (size_t)known->count * sizeof *next);
                view[v].count = known->count;
                show(view + v, &recent->edges, recent->codes, recent->refs);
            }
            if (v != OLD_EVENTS)
                show(view + v, &new->edges, new->codes, new->refs);
            next += view[v].count;
        }
        latest[OLD_EVENTS] = recent->latest;
        latest[NEW_EVENTS] = new->latest;
        latest[ALL_EVENTS] = recent->latest > new->latest ? recent->latest : new->latest;
    }
    return 1;
}

/* Follow an order from the new events of its stock to the end; 0: it finds too much, or there is an exception. */
static int step_follows(const Step *step, const Order *order, int64_t dense, Follow *f)
{
    const Program *program = order->program;
    const Arrivals *new = step->arrivals + order->seed;
    f->program = program;
    f->depth = -1;
    f->mask = (INT64_C(1) << step->plan->bits) - 1;
    f->width = 1 + 2 * (program->bound + program->moves);
    for (int64_t i = 0; i < program->moves; i++) {
        const int64_t *look = order->looks + 2 * program->move[i].look.source;
        if (nothing_in(step->views + VIEWS * look[0] + look[1]))
            return 1;
    }
    if (!roomy(f))
        return 0;
    f->n = new->n;
    f->keys = new->keys;
    f->seed_refs[0] = new->refs;
    f->seed_ts[0] = new->ts;
    f->bound.places = (Places){.number = -1, .dense = dense};
    for (int64_t i = 0; i < program->sources; i++) {
        npy_intp view = (npy_intp)(VIEWS * order->looks[2 * i] + order->looks[2 * i + 1]);
        f->sources[i] = step->views[view];
        f->latest[i] = step->latest[view];
        expect(f->sources + i, f->n);
    }
    for (int64_t i = 0; i < program->columns; i++)
        f->bound.columns[i] = step->columns[order->columns[i]];
    NPY_BEGIN_THREADS_DEF;
    NPY_BEGIN_THREADS_THRESHOLDED(f->n);
    follow_on(f, step->plan->most);
    NPY_END_THREADS;
    return sound_so_far(f) && f->depth < 0 && f->seed == f->n;
}

/* A time in the units of the output. */
static inline int64_t moment_of(const Asker *asker, int64_t ts)
{
    return asker->divisor == 1 ? ts * asker->factor : ts / asker->divisor - (ts % asker->divisor < 0);
}

/* Write a query's changes into its slot: `n` matches, with `refs` and `ts` for each of its parts. */
static int step_writes(const Step *step, Asker *asker, int64_t dense, PyObject *ops, npy_intp n, const int64_t *refs,
                       const int64_t *ts)
{
    const Column *column = step->columns + step->plan->id;
    Ids ids = {.n = n * asker->each, .size = column->n, .is_signed = asker->is_signed, .refs = refs, .shift = dense};
    npy_intp letters = 0;
    if (column->kind == TEXT) {
        ids.edges = column->offsets;
        ids.letters = (const uint8_t *)column->values;
        letters = (npy_intp)(column->offsets[column->n] - column->offsets[0]);
    } else {
        ids.width = column->width;
        ids.words = column->values;
    }
    if (!ids_lie_within(&ids, letters)) {
        PyErr_SetString(PyExc_IndexError, "a reference is not in the log");
        return 0;
    }
    int64_t *times = malloc((size_t)(2 * n + 1) * sizeof *times);
    if (times == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    for (npy_intp i = 0; i < n; i++) {
        times[i] = moment_of(asker, ts[i * asker->each]);
        times[n + i] = moment_of(asker, ts[(i + 1) * asker->each - 1]);
    }
    if (asker->slot.release) /* nobody took what is there */
        asker->slot.release(&asker->slot);
    int good = make_changes(&asker->slot, n, ops, asker->name, asker->length, asker->halves, &ids, times, times + n);
    free(times);
    return good;
}

/* What is found, put into `answers`: (number, [(whether matches come, how many)], address of the slot), or with refs and ts
 * in place of the address. 0: there is an exception. */
static int step_tells(const Step *step, Asker *asker, int64_t dense, const Follow *follows, npy_intp made, npy_intp n,
                      PyObject *answers)
{
    npy_intp size[2] = {n, asker->each};
    PyObject *ops = PyList_New(0), *answer = NULL;
    PyObject *refs = PyArray_SimpleNew(2, size, NPY_INT64), *ts = PyArray_SimpleNew(2, size, NPY_INT64);
    int fine = ops && refs && ts;
    int64_t *own_refs = fine ? DATA(refs) : NULL, *own_ts = fine ? DATA(ts) : NULL;
    for (npy_intp i = 0; fine && i < made; i++) {
        if (!follows[i].count)
            continue;
        fine = put_into(ops, Py_BuildValue("Nn", PyBool_FromLong(asker->order[i].gains), (Py_ssize_t)follows[i].count));
        if (fine && !(fine = take_found(follows + i, asker->parts, asker->each, &own_refs, &own_ts)))
            PyErr_SetString(PyExc_TypeError, "a component is asked for that an order does not bind");
    }
    if (fine && asker->name && step->plan->id >= 0) {
        if ((fine = step_writes(step, asker, dense, ops, n, DATA(refs), DATA(ts))))
            answer = Py_BuildValue("LOK", (long long)asker->number, ops, (unsigned long long)(uintptr_t)&asker->slot);
    } else if (fine)
        answer = Py_BuildValue("LOOO", (long long)asker->number, ops, refs, ts);
    fine = fine && put_into(answers, answer);
    Py_XDECREF(ops);
    Py_XDECREF(refs);
    Py_XDECREF(ts);
    return fine;
}

/* What a query finds is put into `answers`; 0: it is too much, or there is an exception. */
static int step_answers(const Step *step, Asker *asker, int64_t dense, PyObject *answers)
{
    Follow follows[MOST_ORDERS];
    npy_intp n = 0, made = 0;
    int fine = 1;
    for (; fine && made < asker->orders; made++) {
        Follow *f = memset(follows + made, 0, sizeof *f);
        if (step->arrivals[asker->order[made].seed].n)
            fine = step_follows(step, asker->order + made, dense, f);
        n += f->count;
    }
    if (fine && n)
        fine = step_tells(step, asker, dense, follows, made, n, answers);
    for (npy_intp i = 0; i < made; i++) {
        free(follows[i].sources); /* and all that lies behind them; their runs are the step's */
        free(follows[i].found);
    }
    return fine;
}

/* Now others see it: the log's ends move, and the new events are among the others. Nothing of this can fail. */
static void step_ends(Step *step)
{
    const Plan *plan = step->plan;
    npy_intp n = step->known;
    plan->ts->end += n;
    plan->types->end += n;
    plan->content->end += n;
    for (npy_intp i = 0; i < plan->columns; i++) {
        const Kept *kept = plan->column + i;
        if (kept->offsets) {
            kept->values->end += bytes_kept(step, step->rows.fields + kept->field);
            kept->offsets->end += n;
        } else
            kept->values->end += n;
        if (kept->valid)
            kept->valid->end += n;
    }
    for (npy_intp i = 0; i < plan->stocks; i++)
        if (step->arrivals[i].n)
            recent_add(plan->stock[i].recent, step->arrivals + i);
}

/* step(plan, schema, slot, first, clock, delay, dense, tables) -> (the clock after all rows, how many are of a type that is
 * asked for, how many of these count here, by how much each row is behind the clock, answers) | None
 *
 * `schema` is the capsule of a record batch's schema, and `slot` holds its struct ArrowArray, which is released; `first` is the number of its first row; no row may be later than
 * `delay`; `dense` is the number of the log's first event, which has no gaps behind it; `tables` are the first six arguments
 * of put(), in which there is room, and the least reference. Answers are those of the queries that find something, in their order. None: nothing has
 * been done. */
static PyObject *step(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held held = {{0}, 0};
    Step step = {0};
    int64_t first, delay, dense;
    if (!expects(count, 8) || !(step.plan = PyCapsule_GetPointer(args[0], "latecomer.plan")) || !integer(args[3], &first) ||
        !integer(args[4], &step.clock) || !integer(args[5], &delay) || !integer(args[6], &dense))
        return NULL;
    const ArrowSchema *schema = PyCapsule_GetPointer(args[1], "arrow_schema");
    PyObject **tables = schema ? items(args[7], 7, "parts of an index") : NULL;
    npy_intp room = -1;
    ArrowArray *rows = tables ? array(args[2], 8, &room, &held) : NULL;
    PyObject *behind = NULL, *answers = NULL, *result = NULL;
    if (rows && (room * 8 < (npy_intp)sizeof *rows || !rows->release)) {
        PyErr_SetString(PyExc_TypeError, "a slot is needed with rows in it");
        rows = NULL;
    }
    if (rows == NULL || !id_table(tables, &step.tables[0], &held) || !id_table(tables + 2, &step.tables[1], &held) ||
        !integer(tables[4], &step.first) || !integer(tables[5], &step.done) || !integer(tables[6], &step.base))
        goto done;
    step.begin = dense + span_length(step.plan->ts);
    if (rows->length > MOST_ROWS || !(behind = fresh(rows->length, NPY_INT64)) || !(answers = PyList_New(0)) ||
        !step_reads(&step, schema, rows, first) || !step_judges(&step, delay, DATA(behind)) || !step_shares(&step) ||
        !step_fits(&step) || !step_enters(&step))
        goto done;
    step_logs(&step);
    int fine = step_arranges(&step) && step_opens(&step) && step_shows(&step);
    for (npy_intp i = 0; fine && i < step.plan->askers; i++)
        fine = step_answers(&step, step.plan->asker + i, dense, answers);
    if (fine)
        result = Py_BuildValue("LnnOO", (long long)step.clock, (Py_ssize_t)step.counted, (Py_ssize_t)step.known, behind,
                               answers);
    if (result)
        step_ends(&step);
done:
    if (result == NULL)
        forget_ids(step.tables, step.places, step.entered);
    if (rows)
        rows->release(rows);
    Py_XDECREF(behind);
    Py_XDECREF(answers);
    free(step.arena.memory);
    free(step.runs);
    let_go(&held);
    if (result != NULL || PyErr_Occurred())
        return result;
    Py_RETURN_NONE;
}
