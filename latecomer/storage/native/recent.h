/* Recent: what some batches have brought to a store since it last made runs of its own of them (`storage/store.py`), by
 * slice and code. Each batch puts its events among the others, which takes less than a run of its own would. */

#define LEAST_ROOM 1024 /* events of many small batches, */
#define BATCHES 3       /* or of so many larger ones, */
#define MOST_ROOM 3072  /* but not more, unless a single one brings them */
#define MOST_SLICES 128 /* that they may be of */

/* Events of so many slices, ascending: those of slice[i] are at begin[i] to begin[i + 1]. */
typedef struct {
    npy_intp count;
    int64_t slice[MOST_SLICES];
    npy_intp begin[MOST_SLICES + 1];
} Edges;

typedef struct {
    PyObject_HEAD
    PyObject *runs;   /* the store's others, as a list of (slice, codes, refs); None: to be asked for */
    int64_t latest;   /* no event of either is later, */
    int64_t earliest; /* and no recent one earlier */
    int64_t count, room, nbytes;
    uint64_t *codes;
    int64_t *refs;
    Edges edges;
} Recent;

static PyObject *recent_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    Recent *self = (Recent *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->runs = Py_NewRef(Py_None);
    self->latest = INT64_MIN;
    self->earliest = INT64_MAX;
    return (PyObject *)self;
}

static void recent_gone(PyObject *self)
{
    Recent *recent = (Recent *)self;
    free(recent->codes);
    Py_XDECREF(recent->runs);
    Py_TYPE(self)->tp_free(self);
}

/* Make room where there are no events, and the first batch brings so many; 0: there is no memory. */
static int recent_room(Recent *recent, npy_intp n)
{
    npy_intp some = BATCHES * n < MOST_ROOM ? BATCHES * n : MOST_ROOM;
    some = some > LEAST_ROOM ? some : LEAST_ROOM;
    n = n > some ? n : some;
    if (recent->room >= n && recent->room <= 2 * n)
        return 1;
    free(recent->codes);
    recent->room = recent->nbytes = 0;
    recent->codes = malloc((size_t)n * (sizeof *recent->codes + sizeof *recent->refs));
    if (recent->codes == NULL) {
        complain(PyExc_MemoryError, "there is none for a store's events");
        return 0;
    }
    recent->refs = (int64_t *)(recent->codes + n);
    recent->room = n;
    recent->nbytes = n * (int64_t)(sizeof *recent->codes + sizeof *recent->refs);
    return 1;
}

/* What is there, as a list of (slice, codes, refs), and no longer is. */
static PyObject *recent_take(PyObject *self, PyObject *unused)
{
    Recent *recent = (Recent *)self;
    const Edges *edges = &recent->edges;
    PyObject *list = PyList_New(edges->count);
    for (npy_intp i = 0; list && i < edges->count; i++) {
        npy_intp n = edges->begin[i + 1] - edges->begin[i];
        PyObject *codes = fresh(n, NPY_UINT64), *refs = fresh(n, NPY_INT64);
        PyObject *run = codes && refs ? Py_BuildValue("LOO", (long long)edges->slice[i], codes, refs) : NULL;
        if (run) {
            memcpy(DATA(codes), recent->codes + edges->begin[i], n * sizeof *recent->codes);
            memcpy(DATA(refs), recent->refs + edges->begin[i], n * sizeof *recent->refs);
            PyList_SET_ITEM(list, i, run);
        } else
            Py_CLEAR(list);
        Py_XDECREF(codes);
        Py_XDECREF(refs);
    }
    if (list) {
        recent->count = recent->edges.count = 0;
        recent->earliest = INT64_MAX;
    }
    return list;
}

static PyMemberDef recent_members[] = {
    {"runs", T_OBJECT, offsetof(Recent, runs), 0, "the store's other events; None: to be asked for"},
    {"latest", T_LONGLONG, offsetof(Recent, latest), 0, "no committed event is later"},
    {"earliest", T_LONGLONG, offsetof(Recent, earliest), READONLY, "no event is earlier"},
    {"count", T_LONGLONG, offsetof(Recent, count), READONLY, "events"},
    {"nbytes", T_LONGLONG, offsetof(Recent, nbytes), READONLY, "bytes in memory"},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef recent_methods[] = {
    {"take", recent_take, METH_NOARGS, "Take out all events, as a list of (slice, codes, refs)."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject RecentType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "latecomer.storage._compiled.Recent",
    .tp_doc = "Events that small batches have brought to a store.",
    .tp_basicsize = sizeof(Recent),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = recent_new,
    .tp_dealloc = recent_gone,
    .tp_members = recent_members,
    .tp_methods = recent_methods,
};

/* New events of a store, by slice and code. */
typedef struct {
    npy_intp n;
    uint64_t *codes, *keys;
    int64_t *refs, *ts;
    int64_t earliest, latest;
    Edges edges;
} Arrivals;

/* How many slices there are in either. */
static npy_intp slices_of_both(const Edges *one, const Edges *other)
{
    npy_intp count = one->count + other->count;
    for (npy_intp i = 0, j = 0; i < one->count && j < other->count;) {
        count -= one->slice[i] == other->slice[j];
        if (one->slice[i] <= other->slice[j])
            i++;
        else
            j++;
    }
    return count;
}

/* Whether they may be put among the others; 0, perhaps with an exception: not as it is. */
static int recent_takes(Recent *recent, const Arrivals *new)
{
    if (recent->count == 0)
        return recent_room(recent, new->n);
    return recent->count + new->n <= recent->room && slices_of_both(&recent->edges, &new->edges) <= MOST_SLICES;
}

/* Put new events among the others, from the last on, so that nothing is in the way; there is room for them. Of equal
 * codes the older events come first. */
static void recent_add(Recent *recent, const Arrivals *new)
{
    Edges *old = &recent->edges;
    npy_intp i = old->count - 1, k = slices_of_both(old, &new->edges), to = recent->count + new->n;
    uint64_t *codes = recent->codes;
    int64_t *refs = recent->refs;
    old->begin[k] = to;
    npy_intp slices = k, last = recent->count;
    for (npy_intp p = new->edges.count - 1; p >= 0;) {
        int64_t slice = new->edges.slice[p];
        npy_intp own = 0, first = last, begin = new->edges.begin[p], end = new->edges.begin[p + 1];
        if (i >= 0 && old->slice[i] >= slice) {
            first = old->begin[i];
            own = last - first;
            slice = old->slice[i--];
        }
        if (slice == new->edges.slice[p])
            p--;
        else
            begin = end;
        npy_intp at = to;
        while (own && end > begin) { /* without a branch, since which comes next is anybody's guess */
            uint64_t code = codes[first + own - 1], other = new->codes[end - 1];
            int64_t ref = refs[first + own - 1], other_ref = new->refs[end - 1], older = code > other;
            codes[--at] = older ? code : other;
            refs[at] = older ? ref : other_ref;
            own -= older;
            end -= 1 - older;
        }
        at -= end - begin;
        memcpy(codes + at, new->codes + begin, (size_t)(end - begin) * sizeof *codes);
        memcpy(refs + at, new->refs + begin, (size_t)(end - begin) * sizeof *refs);
        if (at - own != first) {
            memmove(codes + at - own, codes + first, own * sizeof *codes);
            memmove(refs + at - own, refs + first, own * sizeof *refs);
        }
        to = at - own;
        last = first;
        old->slice[--k] = slice;
        old->begin[k] = to;
    }
    old->count = slices;
    recent->count += new->n;
    recent->latest = new->latest > recent->latest ? new->latest : recent->latest;
    recent->earliest = new->earliest < recent->earliest ? new->earliest : recent->earliest;
}
