/* Arguments and results of kernels. */

/* Owned references of one call, so that every way out lets go of them. */
typedef struct {
    PyObject *held[MOST_ARRAYS];
    int count;
} Held;

static void let_go(Held *held)
{
    for (int i = 0; i < held->count; i++)
        Py_DECREF(held->held[i]);
    held->count = 0;
}

/* The memory of a one-dimensional array of this width; `n` becomes its length, or must be it where it is not -1. */
static void *array(PyObject *given, int width, npy_intp *n, Held *held)
{
    if (!PyArray_Check(given) || PyArray_NDIM((PyArrayObject *)given) != 1 ||
        PyArray_ITEMSIZE((PyArrayObject *)given) != width || held->count == MOST_ARRAYS) {
        PyErr_Format(PyExc_TypeError, "a one-dimensional array of %d-byte values is needed, not %R", width, given);
        return NULL;
    }
    PyArrayObject *whole = PyArray_GETCONTIGUOUS((PyArrayObject *)given);
    if (whole == NULL)
        return NULL;
    held->held[held->count++] = (PyObject *)whole;
    npy_intp length = PyArray_DIM(whole, 0);
    if (*n >= 0 && length != *n) {
        PyErr_Format(PyExc_TypeError, "arrays of one length are needed, not %zd and %zd", (Py_ssize_t)*n,
                     (Py_ssize_t)length);
        return NULL;
    }
    *n = length;
    return PyArray_DATA(whole);
}

/* Whether what is written to this memory is written to the given array; else an error is set. */
static int own_memory(PyObject *given, const void *memory)
{
    if (memory == PyArray_DATA((PyArrayObject *)given) && PyArray_ISWRITEABLE((PyArrayObject *)given))
        return 1;
    PyErr_SetString(PyExc_TypeError, "what is written to must be whole and writable");
    return 0;
}

static int integer(PyObject *given, int64_t *value)
{
    *value = PyLong_AsLongLong(given);
    return *value != -1 || !PyErr_Occurred();
}

static int word(PyObject *given, uint64_t *value)
{
    PyObject *number = PyNumber_Index(given);
    if (number == NULL)
        return 0;
    *value = PyLong_AsUnsignedLongLongMask(number);
    Py_DECREF(number);
    return !PyErr_Occurred();
}

static int expects(Py_ssize_t given, Py_ssize_t wanted)
{
    if (given != wanted)
        PyErr_Format(PyExc_TypeError, "%zd arguments are needed, not %zd", wanted, given);
    return given == wanted;
}

/* Raise an exception, with or without the interpreter's lock. */
static void complain(PyObject *type, const char *what)
{
    PyGILState_STATE state = PyGILState_Ensure();
    PyErr_SetString(type, what);
    PyGILState_Release(state);
}

static PyObject *fresh(npy_intp n, int type)
{
    return PyArray_SimpleNew(1, &n, type);
}

#define DATA(object) PyArray_DATA((PyArrayObject *)(object))
