/* The stores of a step: the new events that each takes in, by slice and code, and what its views show. */

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
        new->earliest = INT64_MAX;
        new->latest = INT64_MIN;
        if (!heap.n)
            continue;
        int64_t base;
        new->codes = piece_of_arena(&step->arena, 8 * (size_t)heap.n);
        new->keys = piece_of_arena(&step->arena, 8 * (size_t)heap.n);
        new->refs = piece_of_arena(&step->arena, 8 * (size_t)heap.n);
        new->ts = piece_of_arena(&step->arena, 8 * (size_t)heap.n);
        const Item *order = settled(&heap, new->codes, new->ts, new->refs, new->keys, &base, &new->earliest, &new->latest);
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

/* Let a store tell of its runs where these have changed; `asked`: in any case. 0: there is an exception. */
static int stock_opens(Stock *stock, int64_t bits, int asked)
{
    Recent *recent = stock->recent;
    if (asked || recent->runs == Py_None) {
        PyObject *told = PyErr_Occurred() ? NULL : PyObject_CallMethod(stock->store, "expose", NULL);
        if (told == NULL)
            return 0;
        Py_DECREF(told);
    }
    if (recent->runs == stock->seen)
        return 1;
    source_done(&stock->known);
    Py_CLEAR(stock->seen);
    if (!source_of(recent->runs, bits, &stock->known))
        return 0;
    stock->seen = Py_NewRef(recent->runs);
    return 1;
}

/* Let all of them tell. */
static int step_opens(Plan *plan)
{
    int fine = 1;
    for (npy_intp i = 0; fine && i < plan->stocks; i++)
        fine = stock_opens(plan->stock + i, plan->bits, 0);
    return fine;
}

/* Whether the stores take the new events, perhaps after they have made what was recent a run of their own. */
static int step_stores(Step *step)
{
    Plan *plan = step->plan;
    int fine = 1;
    for (npy_intp i = 0; fine && i < plan->stocks; i++) {
        Stock *stock = plan->stock + i;
        if (recent_takes(stock->recent, step->arrivals + i))
            continue;
        PyGILState_STATE state = PyGILState_Ensure();
        fine = stock_opens(stock, plan->bits, 1);
        PyGILState_Release(state);
        fine = fine && recent_takes(stock->recent, step->arrivals + i);
    }
    return fine;
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
        room += 2 * (size_t)(plan->stock[i].known.count + plan->stock[i].recent->edges.count + step->arrivals[i].edges.count);
    Run *next = step->runs = malloc((room + 1) * sizeof *next);
    if (next == NULL) {
        complain(PyExc_MemoryError, "there is none for what is seen of stores");
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
