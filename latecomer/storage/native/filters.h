/* Filters of keys, and sets of numbers as bitmaps. */

/* fuse(mixed, cells (16 bits), span, shard bits, segment bits) -> booleans: whether the three cells of each key give its
 * fingerprint. */
static PyObject *fuse(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held held = {{0}, 0};
    npy_intp n = -1, size = -1;
    int64_t span, shard_bits, segment_bits;
    if (!expects(count, 5) || !integer(args[2], &span) || !integer(args[3], &shard_bits) ||
        !integer(args[4], &segment_bits))
        return NULL;
    PyObject *result = NULL;
    const uint64_t *mixed = array(args[0], 8, &n, &held);
    const uint16_t *cells = mixed ? array(args[1], 2, &size, &held) : NULL;
    if (cells == NULL)
        ;
    else if (segment_bits < 0 || segment_bits > 31 || shard_bits < 0 || shard_bits > 31 || span < 0 || span >> 32 ||
             span % ((int64_t)1 << segment_bits) || (span << shard_bits) >> 32 ||
             size < (span + ((int64_t)2 << segment_bits)) << shard_bits)
        PyErr_SetString(PyExc_TypeError, "the cells are too few for the shape of the filter");
    else if ((result = fresh(n, NPY_BOOL))) {
        uint8_t *found = DATA(result);
        uint64_t length = UINT64_C(1) << segment_bits, mask = length - 1, whole = (uint64_t)span << shard_bits;
        NPY_BEGIN_THREADS_DEF;
        NPY_BEGIN_THREADS_THRESHOLDED(n);
        for (npy_intp i = 0; i < n; i++) {
            uint64_t key = mixed[i];
            uint64_t first = ((key >> 32) * whole) >> 32;
            if (shard_bits)
                first += (key >> (64 - shard_bits)) * 2 * length;
            uint64_t second = (first + length) ^ (key & mask);
            uint64_t third = (first + 2 * length) ^ ((key >> segment_bits) & mask);
            found[i] = (uint16_t)(cells[first] ^ cells[second] ^ cells[third]) ==
                       (uint16_t)((key * UINT64_C(0x9FB21C651E98DF25)) >> 48);
        }
        NPY_END_THREADS;
    }
    let_go(&held);
    return result;
}

/* held(bytes (8 bits), base, numbers) -> booleans: whether the bit at each number less the base is set. */
static PyObject *held(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held kept = {{0}, 0};
    npy_intp n = -1, size = -1;
    int64_t base;
    if (!expects(count, 3) || !integer(args[1], &base))
        return NULL;
    PyObject *result = NULL;
    const uint8_t *bytes = array(args[0], 1, &size, &kept);
    const int64_t *numbers = bytes ? array(args[2], 8, &n, &kept) : NULL;
    if (numbers && (result = fresh(n, NPY_BOOL))) {
        uint8_t *found = DATA(result);
        uint64_t bits = (uint64_t)size * 8;
        for (npy_intp i = 0; i < n; i++) {
            uint64_t off = (uint64_t)numbers[i] - (uint64_t)base;
            found[i] = off < bits && (bytes[off >> 3] >> (off & 7) & 1);
        }
    }
    let_go(&kept);
    return result;
}

/* ranks(bytes (8 bits), within (8 bits), blocks, block bits, base, numbers) -> for each number, which is in the set, how
 * many are below it: before its block, in the block before its byte, and in its byte. */
static PyObject *ranks(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held kept = {{0}, 0};
    npy_intp n = -1, size = -1, many = -1;
    int64_t base, block;
    if (!expects(count, 6) || !integer(args[3], &block) || !integer(args[4], &base))
        return NULL;
    PyObject *result = NULL;
    const uint8_t *bytes = array(args[0], 1, &size, &kept);
    const uint8_t *within = bytes ? array(args[1], 1, &size, &kept) : NULL;
    const int64_t *blocks = within ? array(args[2], 8, &many, &kept) : NULL;
    const int64_t *numbers = blocks ? array(args[5], 8, &n, &kept) : NULL;
    if (numbers == NULL)
        ;
    else if (block < 0 || block > 31 || size > many << block)
        PyErr_SetString(PyExc_TypeError, "the blocks are too few for the bytes");
    else if ((result = fresh(n, NPY_INT64))) {
        int64_t *places = DATA(result);
        npy_intp i = 0;
        for (; i < n; i++) {
            uint64_t off = (uint64_t)numbers[i] - (uint64_t)base, at = off >> 3;
            if (at >= (uint64_t)size)
                break;
            uint8_t below = bytes[at] & ((1u << (off & 7)) - 1);
            below -= below >> 1 & 0x55;
            below = (below & 0x33) + (below >> 2 & 0x33);
            places[i] = blocks[at >> block] + within[at] + ((below + (below >> 4)) & 15);
        }
        if (i < n) {
            PyErr_SetString(PyExc_IndexError, "a number is not in the set");
            Py_CLEAR(result);
        }
    }
    let_go(&kept);
    return result;
}
