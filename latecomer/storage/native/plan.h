/* A plan: what there is to know of an engine before its next batch comes, made once: how rows are read, which columns
 * the log keeps, what stores take in, and which orders queries follow. `runtime/step.py` writes it.
 */

enum { OLD_EVENTS, NEW_EVENTS, ALL_EVENTS, VIEWS };

/* A column of the log: which field of the batch it keeps (-1: the number of the row). */
typedef struct {
    int64_t field;
    int kind;
    int width;
    Span *values, *offsets, *valid; /* offsets: of texts; valid: which are, NULL: all */
} Kept;

/* A store that takes the rows of a type, by the hashes of fields (none: without a key). */
typedef struct {
    PyObject *store;
    Recent *recent;
    int64_t type;
    npy_intp keys;
    const int64_t *key;    /* fields */
    const Program *filter; /* what they must pass, as the seed's tests; NULL: nothing */
    int64_t *columns;      /* of the log, that it reads */
    PyObject *seen; /* the list that `known` was made of */
    Source known;
} Stock;

enum { DUE = -1, FOUND = -2 };

/* A join order that starts from the new events of a stock, or from the matches that are due, or from those that an order
 * (`origin`) of an earlier query (`wider`) finds; and what it looks at: pairs of (stock, view). */
typedef struct {
    const Program *program;
    int gains;
    int64_t seed, wider, origin;
    int64_t *looks, *columns;
} Order;

/* A query. Where it has a name here its changes are written at once: with the hash of the name in two halves, times that are
 * multiplied by `factor` or divided by `divisor`, and ids that may be signed; into `slot`, until they are taken. Where its
 * matches wait, each does until the clock has passed the scopes of its negations, which `check` knows, by `patience`. */
typedef struct {
    int64_t number;
    const int64_t *parts;
    npy_intp each, orders; /* each: parts */
    Order *order;
    Follow *follows; /* what each of them finds in the step that is under way */
    const char *name;
    Py_ssize_t length;
    uint64_t halves[2];
    int64_t factor, divisor;
    int is_signed;
    ArrowArray slot;
    PyObject *holding;
    Waiting *waiting; /* NULL: matches leave at once */
    const Program *check;
    int64_t patience;
} Asker;

/* The rows that count here: those whose key, the hashes of fields, has this rest after division by `of` (0: all count). */
typedef struct {
    int64_t rest, of;
    npy_intp keys;
    const int64_t *key;
} Portion;

typedef struct {
    PyObject *arguments; /* all that the pointers below point into */
    const int64_t *roles;
    Reading reading; /* what does not depend on the batch */
    Span *ts, *types, *content;
    npy_intp columns, stocks, askers, id, each; /* id: its column, or -1; each: the most stocks that take the rows of one type */
    Kept *column;
    Stock *stock;
    Asker *asker;
    Portion portion;
    int64_t bits, most;
} Plan;

static void plan_done(Plan *plan)
{
    for (npy_intp i = 0; plan->stock && i < plan->stocks; i++) {
        source_done(&plan->stock[i].known);
        free(plan->stock[i].columns);
        Py_XDECREF(plan->stock[i].seen);
    }
    for (npy_intp i = 0; plan->asker && i < plan->askers; i++) {
        Asker *asker = plan->asker + i;
        for (npy_intp j = 0; asker->order && j < asker->orders; j++) {
            free(asker->order[j].looks);
            free(asker->order[j].columns);
        }
        free(asker->order);
        free(asker->follows);
        if (asker->slot.release)
            asker->slot.release(&asker->slot);
    }
    free(plan->column);
    free(plan->stock);
    free(plan->asker);
    Py_XDECREF(plan->arguments);
    free(plan);
}

static void plan_gone(PyObject *capsule)
{
    plan_done(PyCapsule_GetPointer(capsule, "latecomer.plan"));
}

/* A number from 0 on and below `end`. */
static int place_below(PyObject *given, npy_intp end, int64_t *place)
{
    if (!integer(given, place))
        return 0;
    if (*place < 0 || *place >= end)
        PyErr_Format(PyExc_TypeError, "%R is no place among %zd", given, (Py_ssize_t)end);
    return *place >= 0 && *place < end;
}

/* As many entries of a size, all 0, as a tuple has items. */
static void *entries(PyObject *given, npy_intp *count, size_t size)
{
    if (!items(given, -1, "entries"))
        return NULL;
    *count = PyTuple_GET_SIZE(given);
    void *memory = calloc((size_t)*count + 1, size);
    if (memory == NULL)
        PyErr_NoMemory();
    return memory;
}

static int is_span(PyObject *given)
{
    if (!PyObject_TypeCheck(given, &SpanType))
        PyErr_Format(PyExc_TypeError, "a span is needed, not %R", given);
    return PyObject_TypeCheck(given, &SpanType);
}

/* (roles, edges, letters, factor, divisor, most, types) */
static int plan_reading(Plan *plan, PyObject *given)
{
    Reading *to = &plan->reading;
    npy_intp edges = -1, letters = -1;
    PyObject **part = items(given, 7, "parts of reading");
    to->columns = -1;
    int fine = part && (plan->roles = lent(part[0], 8, &to->columns)) && (to->edges = lent(part[1], 4, &edges)) &&
               (to->letters = lent(part[2], 1, &letters)) && integer(part[3], &to->factor) &&
               integer(part[4], &to->divisor) && integer(part[5], &to->most) && integer(part[6], &to->types);
    to->names = edges - 1;
    return fine;
}

/* Each (field, kind, width, values, offsets or None, valid or None). */
static int plan_columns(Plan *plan, PyObject *given)
{
    if (!(plan->column = entries(given, &plan->columns, sizeof *plan->column)))
        return 0;
    plan->id = -1;
    for (npy_intp i = 0; i < plan->columns; i++) {
        Kept *kept = plan->column + i;
        PyObject **part = items(PyTuple_GET_ITEM(given, i), 6, "parts of a column");
        int64_t kind, width;
        if (!part || !integer(part[0], &kept->field) || !integer(part[1], &kind) || !integer(part[2], &width) ||
            !is_span(part[3]) || (part[4] != Py_None && !is_span(part[4])) || (part[5] != Py_None && !is_span(part[5])))
            return 0;
        kept->kind = (int)kind;
        kept->width = (int)width;
        kept->values = (Span *)part[3];
        kept->offsets = part[4] == Py_None ? NULL : (Span *)part[4];
        kept->valid = part[5] == Py_None ? NULL : (Span *)part[5];
        if (kept->field < -1 || kept->field >= plan->reading.columns || (kind == TEXT) != (kept->offsets != NULL) ||
            (kept->field < 0 && kept->valid)) {
            PyErr_SetString(PyExc_TypeError, "a column keeps no field of the batch");
            return 0;
        }
        if (kept->field < 0 || plan->roles[kept->field] & IS_ID)
            plan->id = i;
    }
    return 1;
}

/* Where in the log the columns are that a program reads; NULL, with an exception: it reads them as what they are not. */
static int64_t *plan_program(const Plan *plan, const Program *program, PyObject *given)
{
    PyObject **columns = items(given, program->columns, "columns");
    int64_t *places = calloc((size_t)(program->columns + 1), sizeof *places);
    int fine = columns && places;
    for (int64_t i = 0; fine && i < program->columns; i++)
        if ((fine = place_below(columns[i], plan->columns, places + i))) {
            const Kept *kept = plan->column + places[i];
            fine = kept->kind == program->layout[2 * i] && kept->width == program->layout[2 * i + 1];
        }
    if (fine)
        return places;
    free(places);
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "a program reads a column as what it is not");
    return NULL;
}

/* Whether there is a hash of each of the fields. */
static int are_hashed(const Plan *plan, const int64_t *fields, npy_intp n)
{
    int fine = 1;
    for (npy_intp i = 0; i < n; i++)
        fine = fine && fields[i] >= 0 && fields[i] < plan->reading.columns && plan->roles[fields[i]] & (IS_HASHED | IS_ID);
    return fine;
}

/* (rest, of, fields), or None: all rows. */
static int plan_portion(Plan *plan, PyObject *given)
{
    Portion *portion = &plan->portion;
    portion->keys = -1;
    if (given == Py_None)
        return 1;
    PyObject **part = items(given, 3, "parts of a portion");
    if (!part || !integer(part[0], &portion->rest) || !integer(part[1], &portion->of) ||
        !(portion->key = lent(part[2], 8, &portion->keys)))
        return 0;
    int fine = portion->of > 0 && portion->keys > 0 && are_hashed(plan, portion->key, portion->keys);
    if (!fine)
        PyErr_SetString(PyExc_TypeError, "a portion is one of several, by the hashes of a key");
    return fine;
}

/* Each (store, recent, type, fields, program of the filter or None, its columns). */
static int plan_stocks(Plan *plan, PyObject *given)
{
    if (!(plan->stock = entries(given, &plan->stocks, sizeof *plan->stock)))
        return 0;
    for (npy_intp i = 0; i < plan->stocks; i++) {
        Stock *stock = plan->stock + i;
        PyObject **part = items(PyTuple_GET_ITEM(given, i), 6, "parts of a store");
        stock->keys = -1;
        if (!part || !integer(part[2], &stock->type) || !(stock->key = lent(part[3], 8, &stock->keys)))
            return 0;
        if (!PyObject_TypeCheck(part[1], &RecentType) || !are_hashed(plan, stock->key, stock->keys)) {
            PyErr_SetString(PyExc_TypeError, "a store has recent events and the hashes of a key");
            return 0;
        }
        if (part[4] != Py_None &&
            (!(stock->filter = PyCapsule_GetPointer(part[4], "latecomer.program")) ||
             !(stock->columns = plan_program(plan, stock->filter, part[5]))))
            return 0;
        stock->store = part[0];
        stock->recent = (Recent *)part[1];
        npy_intp each = 1;
        for (npy_intp j = 0; j < i; j++)
            each += plan->stock[j].type == stock->type;
        plan->each = each > plan->each ? each : plan->each;
    }
    return 1;
}

/* Whether a program starts from whole matches. */
static int checks(const Program *program, const Asker *asker)
{
    int fine = program->bound == asker->each;
    for (npy_intp i = 0; fine && i < asker->each; i++)
        fine = program->bind[i] == asker->parts[i];
    return fine;
}

/* Where an order starts: at a stock, or DUE, or FOUND, and then (query, order), of which all parts are bound. */
static int plan_seed(const Plan *plan, PyObject *seed, PyObject *origin, const Asker *asker, Order *order)
{
    if (!integer(seed, &order->seed))
        return 0;
    if (order->seed == DUE)
        return asker->waiting != NULL;
    if (order->seed != FOUND)
        return place_below(seed, plan->stocks, &order->seed);
    PyObject **pair = items(origin, 2, "parts of an origin");
    if (!pair || !place_below(pair[0], asker - plan->asker, &order->wider))
        return 0;
    const Asker *wider = plan->asker + order->wider;
    if (!place_below(pair[1], wider->orders, &order->origin))
        return 0;
    int fine = !asker->waiting && !wider->waiting && wider->each == asker->each;
    for (npy_intp i = 0; fine && i < wider->each; i++)
        fine = found_at(wider->order[order->origin].program, wider->parts[i]) > 0;
    return fine;
}

/* (program, whether matches come, where it starts, stocks, views, columns, origin) */
static int plan_order(const Plan *plan, PyObject *given, Asker *asker, Order *order)
{
    PyObject **part = items(given, 7, "parts of an order");
    const Program *program = part ? PyCapsule_GetPointer(part[0], "latecomer.program") : NULL;
    int starts = program && plan_seed(plan, part[2], part[6], asker, order);
    if (program == NULL || PyErr_Occurred())
        return 0;
    PyObject **stocks = items(part[3], program->sources, "stocks");
    PyObject **views = stocks ? items(part[4], program->sources, "views") : NULL;
    order->program = program;
    order->gains = PyObject_IsTrue(part[1]);
    order->looks = calloc((size_t)(2 * program->sources + 1), sizeof *order->looks);
    order->columns = views ? plan_program(plan, program, part[5]) : NULL;
    if (order->looks == NULL || order->columns == NULL || !starts ||
        !(order->seed < 0 ? checks(program, asker) : program->bound == 1)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "an order starts from one component, or from matches that wait or are found");
        return 0;
    }
    asker->check = order->seed == DUE ? program : asker->check;
    for (int64_t i = 0; i < program->sources; i++)
        if (!place_below(stocks[i], plan->stocks, order->looks + 2 * i) ||
            !place_below(views[i], VIEWS, order->looks + 2 * i + 1))
            return 0;
    return 1;
}

/* How a query's changes are written: (name, half, half, whether ids are signed, factor, divisor), or None: elsewhere. */
static int plan_output(Asker *asker, PyObject *given)
{
    if (given == Py_None)
        return 1;
    PyObject **part = items(given, 6, "parts of output");
    if (!part || !(asker->name = PyUnicode_AsUTF8AndSize(part[0], &asker->length)) || !word(part[1], &asker->halves[0]) ||
        !word(part[2], &asker->halves[1]) || !integer(part[4], &asker->factor) || !integer(part[5], &asker->divisor))
        return 0;
    asker->is_signed = PyObject_IsTrue(part[3]);
    if (asker->factor < 1 || asker->divisor < 1)
        PyErr_SetString(PyExc_TypeError, "times are scaled by whole numbers from 1 on");
    return !PyErr_Occurred();
}

/* How a query's matches wait: (holding, what waits, patience), or None: they do not. */
static int plan_waits(Asker *asker, PyObject *given)
{
    if (given == Py_None)
        return 1;
    PyObject **part = items(given, 3, "parts of waiting");
    if (!part || !integer(part[2], &asker->patience))
        return 0;
    if (!PyObject_TypeCheck(part[1], &WaitingType) || ((Waiting *)part[1])->parts != asker->each) {
        PyErr_SetString(PyExc_TypeError, "what waits has the parts of a query's matches");
        return 0;
    }
    asker->holding = part[0];
    asker->waiting = (Waiting *)part[1];
    return 1;
}

/* Each (number, parts, orders, output, waits). */
static int plan_askers(Plan *plan, PyObject *given)
{
    if (!(plan->asker = entries(given, &plan->askers, sizeof *plan->asker)))
        return 0;
    for (npy_intp i = 0; i < plan->askers; i++) {
        Asker *asker = plan->asker + i;
        PyObject **part = items(PyTuple_GET_ITEM(given, i), 5, "parts of a query");
        asker->each = -1;
        if (!part || !integer(part[0], &asker->number) || !(asker->parts = lent(part[1], 8, &asker->each)) ||
            !(asker->order = entries(part[2], &asker->orders, sizeof *asker->order)) || !plan_output(asker, part[3]) ||
            !plan_waits(asker, part[4]))
            return 0;
        for (npy_intp j = 0; j < asker->orders; j++)
            if (!plan_order(plan, PyTuple_GET_ITEM(part[2], j), asker, asker->order + j))
                return 0;
        if (asker->orders > MOST_ORDERS || asker->each > MOST_PARTS || (asker->waiting && !asker->check)) {
            PyErr_SetString(PyExc_TypeError, "too many orders, or components, or none to look again at matches that wait");
            return 0;
        }
        if (!(asker->follows = calloc((size_t)asker->orders + 1, sizeof *asker->follows))) {
            PyErr_NoMemory();
            return 0;
        }
    }
    return 1;
}

/* plan(reading, log, columns, stores, queries, portion, bits, most) -> what step() needs of an engine
 *
 * `reading` is what read_rows() is given of a stream; `log` the spans of times, types and contents; for the other tuples see
 * above. A query that finds `most` matches or more is not answered. */
static PyObject *plan(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (!expects(count, 8))
        return NULL;
    Plan *made = calloc(1, sizeof *made);
    if (made == NULL)
        return PyErr_NoMemory();
    made->arguments = PyTuple_New(6);
    for (int i = 0; made->arguments && i < 6; i++)
        PyTuple_SET_ITEM(made->arguments, i, Py_NewRef(args[i]));
    PyObject **log = items(args[1], 3, "spans");
    PyObject *capsule = NULL;
    if (made->arguments && log && is_span(log[0]) && is_span(log[1]) && is_span(log[2]) &&
        plan_reading(made, args[0]) && plan_columns(made, args[2]) && plan_stocks(made, args[3]) &&
        plan_askers(made, args[4]) && plan_portion(made, args[5]) && integer(args[6], &made->bits) &&
        integer(args[7], &made->most)) {
        made->ts = (Span *)log[0];
        made->types = (Span *)log[1];
        made->content = (Span *)log[2];
        if (made->bits < 1 || made->bits > 62)
            PyErr_SetString(PyExc_TypeError, "slices have 2 to 2**62 units");
        else
            capsule = PyCapsule_New(made, "latecomer.plan", plan_gone);
    }
    if (capsule == NULL)
        plan_done(made);
    return capsule;
}
