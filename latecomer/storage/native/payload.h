/* Values of the event log, compared where they lie. */

/* equal_words(left, refs, shift, right, others, right shift) -> whether left[refs - shift] are right[others - shift];
 * values of 1, 2, 4 or 8 bytes */
static PyObject *equal_words(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held held = {{0}, 0};
    npy_intp n = -1, lengths[2] = {-1, -1};
    int64_t shifts[2];
    const char *values[2];
    const int64_t *places[2];
    if (!expects(count, 6) || !integer(args[2], &shifts[0]) || !integer(args[5], &shifts[1]))
        return NULL;
    if (!PyArray_Check(args[0]))
        return PyErr_Format(PyExc_TypeError, "an array is needed, not %R", args[0]);
    int width = (int)PyArray_ITEMSIZE((PyArrayObject *)args[0]);
    PyObject *result = NULL;
    if ((values[0] = array(args[0], width, &lengths[0], &held)) && (places[0] = array(args[1], 8, &n, &held)) &&
        (values[1] = array(args[3], width, &lengths[1], &held)) && (places[1] = array(args[4], 8, &n, &held)) &&
        (result = fresh(n, NPY_BOOL))) {
        npy_bool *out = DATA(result);
        for (npy_intp i = 0; i < n; i++) {
            int64_t a = places[0][i] - shifts[0], b = places[1][i] - shifts[1];
            if (a < 0 || a >= lengths[0] || b < 0 || b >= lengths[1]) {
                PyErr_SetString(PyExc_IndexError, "a reference is not in the log");
                Py_CLEAR(result);
                break;
            }
            out[i] = width == 8 ? ((const uint64_t *)values[0])[a] == ((const uint64_t *)values[1])[b]
                                : memcmp(values[0] + a * width, values[1] + b * width, width) == 0;
        }
    }
    let_go(&held);
    return result;
}

/* equal_texts(offsets, bytes, refs, shift, other offsets, other bytes, others, other shift), offsets of 64 bits that
 * count from any byte on: the first text is where the bytes begin */
static PyObject *equal_texts(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held held = {{0}, 0};
    npy_intp n = -1, edges[2] = {-1, -1}, sizes[2] = {-1, -1};
    int64_t shifts[2];
    const int64_t *offsets[2], *places[2];
    const uint8_t *bytes[2];
    if (!expects(count, 8) || !integer(args[3], &shifts[0]) || !integer(args[7], &shifts[1]))
        return NULL;
    PyObject *result = NULL;
    for (int side = 0; side < 2; side++)
        if (!(offsets[side] = array(args[4 * side], 8, &edges[side], &held)) ||
            !(bytes[side] = array(args[4 * side + 1], 1, &sizes[side], &held)) ||
            !(places[side] = array(args[4 * side + 2], 8, &n, &held))) {
            let_go(&held);
            return NULL;
        }
    if ((result = fresh(n, NPY_BOOL))) {
        npy_bool *out = DATA(result);
        for (npy_intp i = 0; i < n; i++) {
            int64_t start[2], length[2];
            int inside = 1;
            for (int side = 0; side < 2; side++) {
                int64_t at = places[side][i] - shifts[side];
                inside = inside && at >= 0 && at < edges[side] - 1;
                if (!inside)
                    break;
                start[side] = offsets[side][at] - offsets[side][0];
                length[side] = offsets[side][at + 1] - offsets[side][at];
                inside = start[side] >= 0 && length[side] >= 0 && start[side] + length[side] <= sizes[side];
            }
            if (!inside) {
                PyErr_SetString(PyExc_IndexError, "a reference is not in the log");
                Py_CLEAR(result);
                break;
            }
            out[i] = length[0] == length[1] && memcmp(bytes[0] + start[0], bytes[1] + start[1], length[0]) == 0;
        }
    }
    let_go(&held);
    return result;
}

/* reached(refs, first, ts, types (32 bits), floors) -> which events, of those from number `first` on whose times and types
 * these are, are there and not older than the floor of their type */
static PyObject *reached(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held held = {{0}, 0};
    npy_intp n = -1, events = -1, kinds = -1;
    int64_t first;
    const int64_t *refs, *ts, *floors;
    const int32_t *types;
    PyObject *result = NULL;
    if (!expects(count, 5) || !integer(args[1], &first))
        return NULL;
    if ((refs = array(args[0], 8, &n, &held)) && (ts = array(args[2], 8, &events, &held)) &&
        (types = array(args[3], 4, &events, &held)) && (floors = array(args[4], 8, &kinds, &held)) &&
        (result = fresh(n, NPY_BOOL))) {
        npy_bool *out = DATA(result);
        int within = 1;
        NPY_BEGIN_THREADS_DEF;
        NPY_BEGIN_THREADS_THRESHOLDED(n);
        for (npy_intp i = 0; i < n && within; i++) {
            int64_t at = refs[i] - first, soon = i + 16 < n ? refs[i + 16] - first : -1;
            if (soon >= 0 && soon < events) {
                PREFETCH(ts + soon);
                PREFETCH(types + soon);
            }
            within = at < events && (at < 0 || (types[at] >= 0 && types[at] < kinds));
            out[i] = within && at >= 0 && ts[at] >= floors[types[at]];
        }
        NPY_END_THREADS;
        if (!within) {
            PyErr_SetString(PyExc_IndexError, "a reference is not in the log");
            Py_CLEAR(result);
        }
    }
    let_go(&held);
    return result;
}

#define BLOCK 64 /* values that are looked at without a branch */

/* below(ts, floor) -> how many values there are before the first one that is not below `floor` */
static PyObject *below(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held held = {{0}, 0};
    npy_intp n = -1, at = 0;
    int64_t floor;
    if (!expects(count, 2) || !integer(args[1], &floor))
        return NULL;
    const int64_t *ts = array(args[0], 8, &n, &held);
    PyObject *result = NULL;
    if (ts != NULL) {
        for (int kept = 0; at + BLOCK <= n; at += BLOCK) {
            for (int i = 0; i < BLOCK; i++)
                kept |= ts[at + i] >= floor;
            if (kept)
                break;
        }
        while (at < n && ts[at] < floor)
            at++;
        result = PyLong_FromSsize_t(at);
    }
    let_go(&held);
    return result;
}
