/* What waits in a step: matches whose negations are not decided leave when the clock has passed their scopes, if they are still
 * alive then. `runtime/holding.py` says the same, and keeps those that wait elsewhere.
 */

/* Another row behind so many; NULL, with an exception: there is no memory. */
static int64_t *row_behind(int64_t **rows, npy_intp n, npy_intp *room, npy_intp width)
{
    if (n == *room) {
        npy_intp more = 2 * n + 64;
        int64_t *own = realloc(*rows, (size_t)more * (size_t)width * sizeof *own);
        if (own == NULL) {
            complain(PyExc_MemoryError, "there is none for matches that wait");
            return NULL;
        }
        *rows = own;
        *room = more;
    }
    return *rows + n * width;
}

/* Let what is due until then, and waits elsewhere, be put in; 0, with an exception: that failed. */
static int waiting_drawn(const Asker *asker, int64_t horizon)
{
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *drawn = PyObject_CallMethod(asker->holding, "draw", "L", (long long)horizon);
    int fine = drawn != NULL;
    Py_XDECREF(drawn);
    PyGILState_Release(state);
    return fine;
}

/* Take out what is due; 0, perhaps with an exception: it cannot be, or is too much. */
static int step_due(const Step *step, const Asker *asker, int64_t dense, Waits *waits, Seeds *seeds)
{
    Waiting *waiting = asker->waiting;
    npy_intp width = row_width(waiting), parts = waiting->parts;
    int64_t horizon = step->clock - asker->patience - 1;
    if (waiting->until < horizon && !waiting_drawn(asker, horizon))
        return 0;
    for (int64_t *row;; waits->due++) {
        if (!(row = row_behind(&waits->due_rows, waits->due, &waits->due_room, width)))
            return 0;
        if (!waiting_next(waiting, horizon, row))
            break;
        if (waits->due == step->plan->most) { /* too much */
            waits->due++;
            return 0;
        }
    }
    npy_intp n = waits->due, known = span_length(step->plan->ts);
    const int64_t *times = (const int64_t *)span_first(step->plan->ts);
    if (n && !(waits->seeds = malloc((size_t)n * (size_t)(1 + 2 * parts) * sizeof *waits->seeds))) {
        complain(PyExc_MemoryError, "there is none for matches that are due");
        return 0;
    }
    seeds->n = n;
    seeds->keys = (const uint64_t *)waits->seeds;
    for (npy_intp j = 0; j < parts; j++) {
        int64_t *refs = waits->seeds + (1 + 2 * j) * n, *ts = refs + n;
        seeds->refs[j] = refs;
        seeds->ts[j] = ts;
        for (npy_intp i = 0; i < n; i++) {
            int64_t ref = refs[i] = waits->due_rows[i * width + ROW_HEAD + j];
            if (ref < dense || ref - dense >= known) {
                complain(PyExc_IndexError, "a reference is not in the log");
                return 0;
            }
            ts[i] = times[ref - dense];
        }
    }
    for (npy_intp i = 0; i < n; i++)
        waits->seeds[i] = waits->due_rows[i * width + 2];
    return 1;
}

/* Where in a row of what was found the times are between which the scopes of negations lie, in pairs; 0, with an exception: not
 * there. */
static int scopes_at(const Program *found, const Program *check, npy_intp *place)
{
    int fine = 1;
    for (int64_t i = 0; i < check->first.negations; i++) {
        const Range *range = &check->first.negation[i].look.range;
        place[2 * i] = found_at(found, range->from) + 1;
        place[2 * i + 1] = found_at(found, range->to) + 1;
        fine = fine && place[2 * i] > 0 && place[2 * i + 1] > 0;
    }
    if (!fine)
        complain(PyExc_TypeError, "a component is asked for that an order does not bind");
    return fine;
}

/* The last moment that a match waits for: the end of a scope, unless that holds no time. */
static inline int64_t waits_until(const Program *check, const int64_t *row, const npy_intp *place)
{
    int64_t moment = INT64_MIN;
    for (int64_t i = 0; i < check->first.negations; i++) {
        const Range *range = &check->first.negation[i].look.range;
        int64_t end = row[place[2 * i + 1]] + range->add_to;
        if (row[place[2 * i]] + range->add_from <= end && end > moment)
            moment = end;
    }
    return moment;
}

/* Up to when what may leave, or had left, is over: its last moment. */
static inline int64_t step_horizon(const Step *step, const Asker *asker, const Order *order)
{
    return (order->gains ? step->clock : step->before) - asker->patience - 1;
}

/* The last seed that may change something: a negative that is later than all that had left has killed none of that. */
static inline int64_t step_until(const Step *step, const Asker *asker, const Order *order)
{
    return asker->waiting && !order->gains ? step_horizon(step, asker, order) : INT64_MAX;
}

/* Keep of what an order has found only those matches that leave now or, where they are lost, that had left before: the
 * others that come wait, and the others that are lost will be found dead when they are due. */
static int step_holds(const Step *step, const Asker *asker, const Order *order, Follow *f, Waits *waits)
{
    int64_t horizon = step_horizon(step, asker, order);
    npy_intp place[MOST_PARTS], ends[2 * MOST_PARTS], kept = 0, width = row_width(asker->waiting);
    if (!scopes_at(f->program, asker->check, ends))
        return 0;
    for (npy_intp i = 0; i < asker->each; i++)
        if ((place[i] = found_at(f->program, asker->parts[i])) < 0) {
            complain(PyExc_TypeError, "a component is asked for that an order does not bind");
            return 0;
        }
    for (npy_intp i = 0; i < f->count; i++) {
        int64_t *own = f->found + i * f->width, moment = waits_until(asker->check, own, ends);
        if (moment <= horizon) {
            memmove(f->found + kept++ * f->width, own, (size_t)f->width * sizeof *own);
            continue;
        }
        if (!order->gains)
            continue;
        int64_t *row = row_behind(&waits->more_rows, waits->more, &waits->more_room, width);
        if (row == NULL)
            return 0;
        waits->more++;
        row[0] = moment;
        row[2] = (int64_t)f->keys[own[0]];
        for (npy_intp j = 0; j < asker->each; j++)
            row[ROW_HEAD + j] = own[place[j]];
    }
    f->count = kept;
    return 1;
}

/* Bring what is to wait into the order of moments, those of one as they came, since in order it waits for less: it is left as
 * it is where there is no memory for that. */
static void step_queues(Waits *waits, npy_intp width)
{
    npy_intp n = waits->more;
    int64_t least = INT64_MAX, most = INT64_MIN;
    for (npy_intp i = 0; i < n; i++) {
        int64_t moment = waits->more_rows[i * width];
        least = moment < least ? moment : least;
        most = moment > most ? moment : most;
    }
    uint64_t span = (uint64_t)most - (uint64_t)least;
    if (n < 2 || !span || span >> 63)
        return;
    Item *items = malloc(2 * (size_t)n * sizeof *items);
    int64_t *rows = malloc((size_t)n * (size_t)width * sizeof *rows);
    if (items && rows) {
        int shift = 0; /* to the highest bits, by which they are sorted first */
        while (!(span << shift >> 62))
            shift++;
        for (npy_intp i = 0; i < n; i++)
            items[i] = (Item){((uint64_t)waits->more_rows[i * width] - (uint64_t)least) << shift, 0, i};
        const Item *order = sorted(items, items + n, n, 0);
        for (npy_intp i = 0; i < n; i++)
            copy_row(rows + i * width, waits->more_rows + order[i].ref * width, width);
        free(waits->more_rows);
        waits->more_rows = rows;
    } else
        free(rows);
    free(items);
}

/* Let what is new wait, or (`undone`) what was due; neither can fail. */
static void step_waited(const Asker *asker, Waits *waits, int undone)
{
    Waiting *waiting = asker->waiting;
    npy_intp width = waiting ? row_width(waiting) : 0;
    for (npy_intp i = waits->due; undone && i > 0;)
        waiting_back(waiting, waits->due_rows + --i * width);
    for (npy_intp i = 0; !undone && i < waits->more; i++) {
        waits->more_rows[i * width + 1] = waiting->last++;
        waiting_put(waiting, waits->more_rows + i * width);
    }
    free(waits->due_rows);
    free(waits->more_rows);
    free(waits->seeds);
}
