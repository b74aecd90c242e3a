/* The answers of a step: what each query finds from the new events on, and how it is told. All of it goes without the
 * interpreter's lock, which is taken to make what is handed to Python alone. */

/* Follow an order from seeds, but for those that are later than `until`, to the end; 0: it finds too much, or there is an
 * exception. */
static int step_follows(const Step *step, const Order *order, const Seeds *seeds, int64_t until, int64_t dense, Follow *f)
{
    const Program *program = order->program;
    f->program = program;
    f->depth = -1;
    f->until = until;
    f->mask = (INT64_C(1) << step->plan->bits) - 1;
    f->width = 1 + 2 * (program->bound + program->moves);
    for (int64_t i = 0; i < program->moves; i++) {
        const int64_t *look = order->looks + 2 * program->move[i].look.source;
        if (nothing_in(step->views + VIEWS * look[0] + look[1]))
            return 1;
    }
    if (!roomy(f))
        return 0;
    f->n = seeds->n;
    f->keys = seeds->keys;
    for (int64_t i = 0; i < program->bound; i++) {
        f->seed_refs[i] = seeds->refs[i];
        f->seed_ts[i] = seeds->ts[i];
    }
    f->bound.places = (Places){.number = -1, .dense = dense};
    for (int64_t i = 0; i < program->sources; i++) {
        npy_intp view = (npy_intp)(VIEWS * order->looks[2 * i] + order->looks[2 * i + 1]);
        f->sources[i] = step->views[view];
        f->latest[i] = step->latest[view];
        expect(f->sources + i, f->n);
    }
    for (int64_t i = 0; i < program->columns; i++)
        f->bound.columns[i] = step->columns[order->columns[i]];
    follow_on(f, step->plan->most);
    return sound_so_far(f) && f->depth < 0 && f->seed == f->n;
}

/* A time in the units of the output. */
static inline int64_t moment_of(const Asker *asker, int64_t ts)
{
    return asker->divisor == 1 ? ts * asker->factor : ts / asker->divisor - (ts % asker->divisor < 0);
}

/* Write a query's changes into its slot: `n` matches, with `refs` and `ts` for each of its parts. */
static int step_writes(const Step *step, Asker *asker, int64_t dense, const Gain *ops, npy_intp count, npy_intp n,
                       const int64_t *refs, const int64_t *ts)
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
        complain(PyExc_IndexError, "a reference is not in the log");
        return 0;
    }
    int64_t *times = malloc((size_t)(2 * n + 1) * sizeof *times);
    if (times == NULL) {
        complain(PyExc_MemoryError, "there is none for the times of changes");
        return 0;
    }
    for (npy_intp i = 0; i < n; i++) {
        times[i] = moment_of(asker, ts[i * asker->each]);
        times[n + i] = moment_of(asker, ts[(i + 1) * asker->each - 1]);
    }
    if (asker->slot.release) /* nobody took what is there */
        asker->slot.release(&asker->slot);
    int good = make_changes(&asker->slot, n, ops, count, asker->name, asker->length, asker->halves, &ids, times, times + n);
    free(times);
    return good;
}

/* Put what is found into `answers`: (number, [(whether matches come, how many)], address of the slot), or with refs and ts
 * in place of the address. */
static int step_hands(const Asker *asker, const Gain *ops, npy_intp count, PyObject *refs, PyObject *ts, PyObject *answers)
{
    PyObject *list = PyList_New(0), *answer = NULL;
    int fine = list != NULL;
    for (npy_intp i = 0; fine && i < count; i++)
        fine = put_into(list, Py_BuildValue("Nn", PyBool_FromLong(ops[i].insert), ops[i].rows));
    if (fine && refs)
        answer = Py_BuildValue("LOOO", (long long)asker->number, list, refs, ts);
    else if (fine)
        answer = Py_BuildValue("LOK", (long long)asker->number, list, (unsigned long long)(uintptr_t)&asker->slot);
    fine = fine && put_into(answers, answer);
    Py_XDECREF(list);
    return fine;
}

/* Bring together what a query's orders have found, and tell it. 0: there is an exception. */
static int step_tells(const Step *step, Asker *asker, int64_t dense, npy_intp n, PyObject *answers)
{
    int writes = asker->name && step->plan->id >= 0, fine = 1;
    npy_intp size[2] = {n, asker->each}, count = 0;
    Gain ops[MOST_ORDERS];
    PyObject *arrays[2] = {NULL, NULL};
    int64_t *memory = NULL, *refs, *ts;
    PyGILState_STATE state;
    if (writes) {
        memory = malloc((size_t)(2 * n * asker->each + 1) * sizeof *memory);
        refs = memory;
        ts = memory + n * asker->each;
        if (memory == NULL)
            complain(PyExc_MemoryError, "there is none for matches");
        fine = memory != NULL;
    } else {
        state = PyGILState_Ensure();
        for (int i = 0; fine && i < 2; i++)
            fine = (arrays[i] = PyArray_SimpleNew(2, size, NPY_INT64)) != NULL;
        refs = fine ? DATA(arrays[0]) : NULL;
        ts = fine ? DATA(arrays[1]) : NULL;
        PyGILState_Release(state);
    }
    int64_t *next_ref = refs, *next_ts = ts;
    for (npy_intp i = 0; fine && i < asker->orders; i++) {
        const Follow *f = asker->follows + i;
        if (!f->count)
            continue;
        ops[count++] = (Gain){asker->order[i].gains, (Py_ssize_t)f->count};
        if (!(fine = take_found(f, asker->parts, asker->each, &next_ref, &next_ts)))
            complain(PyExc_TypeError, "a component is asked for that an order does not bind");
    }
    fine = fine && (!writes || step_writes(step, asker, dense, ops, count, n, refs, ts));
    state = PyGILState_Ensure();
    fine = fine && step_hands(asker, ops, count, arrays[0], arrays[1], answers);
    Py_XDECREF(arrays[0]);
    Py_XDECREF(arrays[1]);
    PyGILState_Release(state);
    free(memory);
    return fine;
}

static Seeds new_events(const Arrivals *new)
{
    return (Seeds){.n = new->n, .keys = new->keys, .refs = {new->refs}, .ts = {new->ts}};
}

/* The matches that an order of a wider query has found, as seeds; 0, with an exception: there is no memory. */
static int step_found(const Step *step, const Asker *asker, const Order *order, Follow *f, Seeds *seeds)
{
    const Asker *wider = step->plan->asker + order->wider;
    const Follow *other = wider->follows + order->origin;
    npy_intp n = seeds->n = other->count;
    if (!n)
        return 1;
    int64_t *own = f->own = malloc((size_t)n * (size_t)(1 + 2 * asker->each) * sizeof *own);
    if (own == NULL) {
        complain(PyExc_MemoryError, "there is none for matches that are found");
        return 0;
    }
    for (npy_intp i = 0; i < n; i++)
        own[i] = (int64_t)other->keys[other->found[i * other->width]];
    seeds->keys = (const uint64_t *)own;
    for (npy_intp j = 0; j < asker->each; j++) {
        npy_intp place = found_at(other->program, wider->parts[j]);
        int64_t *refs = own + (1 + 2 * j) * n, *ts = refs + n;
        for (npy_intp i = 0; i < n; i++) {
            refs[i] = other->found[i * other->width + place];
            ts[i] = other->found[i * other->width + place + 1];
        }
        seeds->refs[j] = refs;
        seeds->ts[j] = ts;
    }
    return 1;
}

/* Where an order starts; 0, perhaps with an exception: it cannot. */
static int step_seeds(const Step *step, const Asker *asker, const Order *order, int64_t dense, Waits *waits, Follow *f,
                      Seeds *seeds)
{
    if (order->seed == DUE)
        return step_due(step, asker, dense, waits, seeds);
    if (order->seed == FOUND)
        return step_found(step, asker, order, f, seeds);
    *seeds = new_events(step->arrivals + order->seed);
    return 1;
}

/* What a query finds is put into `answers`; 0: it is too much, or there is an exception. */
static int step_answers(const Step *step, Asker *asker, int64_t dense, PyObject *answers)
{
    Waits *waits = step->waits + (asker - step->plan->asker);
    npy_intp n = 0;
    int fine = 1;
    for (npy_intp i = 0; fine && i < asker->orders; i++) {
        const Order *order = asker->order + i;
        Follow *f = memset(asker->follows + i, 0, sizeof *f);
        Seeds seeds;
        fine = step_seeds(step, asker, order, dense, waits, f, &seeds);
        if (fine && seeds.n)
            fine = step_follows(step, order, &seeds, step_until(step, asker, order), dense, f);
        if (fine && f->count && asker->waiting && order->seed != DUE)
            fine = step_holds(step, asker, order, f, waits);
        n += f->count;
    }
    if (fine && asker->waiting) { /* now that nothing else comes there */
        step_queues(waits, row_width(asker->waiting));
        fine = waiting_room(asker->waiting, waits->more + waits->due); /* should that come back */
    }
    return fine && (!n || step_tells(step, asker, dense, n, answers));
}

/* Forget what was found. */
static void step_forgets(Plan *plan)
{
    for (npy_intp i = 0; i < plan->askers; i++)
        for (npy_intp j = 0; j < plan->asker[i].orders; j++) {
            Follow *f = plan->asker[i].follows + j;
            free(f->own);
            free(f->sources); /* and all that lies behind them; their runs are the step's */
            free(f->found);
            f->own = f->found = NULL;
            f->sources = NULL;
        }
}
