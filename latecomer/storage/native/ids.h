/* The id index: an open-addressing table of (32-bit mark, reference relative to a base), probed from place to place. */

/* put(marks (32 bits), refs (32 or 64 bits), wanted (32 bits), own (64 bits), base, unique) -> (rows not entered, how
 * many were): enter references under marks; `unique`: only where the mark is new. The tables are written to. */
static PyObject *put(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held held = {{0}, 0};
    npy_intp size = -1, n = -1, left = 0, entered = 0;
    int64_t base;
    if (!expects(count, 6) || !integer(args[4], &base))
        return NULL;
    int unique = PyObject_IsTrue(args[5]);
    int width = PyArray_Check(args[1]) && PyArray_ITEMSIZE((PyArrayObject *)args[1]) == 4 ? 4 : 8;
    PyObject *rows = NULL, *result = NULL;
    int64_t *open = NULL;
    uint32_t *marks = array(args[0], 4, &size, &held);
    char *refs = marks ? array(args[1], width, &size, &held) : NULL;
    const uint32_t *wanted = refs ? array(args[2], 4, &n, &held) : NULL;
    const int64_t *own = wanted ? array(args[3], 8, &n, &held) : NULL;
    if (own == NULL)
        ;
    else if (size < 1 || (void *)marks != DATA(args[0]) || (void *)refs != DATA(args[1]) ||
             !PyArray_ISWRITEABLE((PyArrayObject *)args[0]) || !PyArray_ISWRITEABLE((PyArrayObject *)args[1]))
        PyErr_SetString(PyExc_TypeError, "the table must be whole and writable");
    else if ((open = malloc((n + 1) * sizeof *open)) == NULL)
        PyErr_NoMemory();
    else {
        int full = 0;
        NPY_BEGIN_THREADS_DEF;
        NPY_BEGIN_THREADS_THRESHOLDED(n);
        for (npy_intp i = 0; i < n && !full; i++) {
            if (i + 8 < n)
                PREFETCH(marks + (((uint64_t)wanted[i + 8] * (uint64_t)size) >> 32));
            npy_intp at = (npy_intp)(((uint64_t)wanted[i] * (uint64_t)size) >> 32), steps = 0;
            while (marks[at] && !(unique && marks[at] == wanted[i]) && ++steps <= size)
                at = at + 1 == size ? 0 : at + 1;
            if (steps > size)
                full = 1;
            else if (marks[at])
                open[left++] = i;
            else {
                marks[at] = wanted[i];
                if (width == 4)
                    ((uint32_t *)refs)[at] = (uint32_t)(own[i] - base);
                else
                    ((int64_t *)refs)[at] = own[i] - base;
                entered++;
            }
        }
        NPY_END_THREADS;
        if (full)
            PyErr_SetString(PyExc_ValueError, "the table is full");
        else if ((rows = fresh(left, NPY_INT64))) {
            memcpy(DATA(rows), open, left * sizeof *open);
            result = Py_BuildValue("Nn", rows, (Py_ssize_t)entered);
        }
    }
    free(open);
    let_go(&held);
    return result;
}
