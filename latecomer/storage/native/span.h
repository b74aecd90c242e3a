/* Span: what a growable column (`storage/columns.py`) and compiled code both know of it, as fields of one object, so that
 * either may append. Its twin is in `twins/span.py`. */

typedef struct {
    PyObject_HEAD
    PyObject *data; /* an array */
    PyObject *next; /* not None: its values are on the way to other memory */
    int64_t start, end, limit, spare;
} Span;

static int span_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((Span *)self)->data);
    Py_VISIT(((Span *)self)->next);
    return 0;
}

static int span_clear(PyObject *self)
{
    Py_CLEAR(((Span *)self)->data);
    Py_CLEAR(((Span *)self)->next);
    return 0;
}

static void span_gone(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    span_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef span_members[] = {
    {"_data", T_OBJECT, offsetof(Span, data), 0, "where the values lie"},
    {"_next", T_OBJECT, offsetof(Span, next), 0, "where they are on their way to; None: nowhere"},
    {"_start", T_LONGLONG, offsetof(Span, start), 0, "the first live value"},
    {"_end", T_LONGLONG, offsetof(Span, end), 0, "the place behind the last one"},
    {"_limit", T_LONGLONG, offsetof(Span, limit), 0, "the end from which on they must go over to other memory"},
    {"_spare", T_LONGLONG, offsetof(Span, spare), 0, "so many values behind the end are memory that may be read"},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject SpanType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "latecomer.storage._compiled.Span",
    .tp_doc = "The live part of a growable array.",
    .tp_basicsize = sizeof(Span),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = span_gone,
    .tp_traverse = span_traverse,
    .tp_clear = span_clear,
    .tp_members = span_members,
};

static inline npy_intp span_width(const Span *span)
{
    return PyArray_ITEMSIZE((PyArrayObject *)span->data);
}

static inline npy_intp span_length(const Span *span)
{
    return (npy_intp)(span->end - span->start);
}

/* The memory of the first live value. */
static inline char *span_first(const Span *span)
{
    return PyArray_BYTES((PyArrayObject *)span->data) + span->start * span_width(span);
}

/* The memory of the value that comes next. */
static inline char *span_next(const Span *span)
{
    return PyArray_BYTES((PyArrayObject *)span->data) + span->end * span_width(span);
}

/* Whether so many values of this width may be written behind the end without anything else to be done. */
static inline int span_takes(const Span *span, npy_intp n, npy_intp width)
{
    int64_t end = span->end + n;
    return span->data && PyArray_Check(span->data) && span->next == Py_None && span_width(span) == width &&
           end <= span->limit && end + span->spare <= PyArray_DIM((PyArrayObject *)span->data, 0);
}
