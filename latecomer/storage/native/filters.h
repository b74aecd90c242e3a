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

/* fuse_build(first, second, third, marks (16 bits), size) -> (cells (16 bits), booleans: whether the key is served):
 * peel keys that are alone in one of their cells, round by round, then fill these cells in the opposite order. */
static PyObject *fuse_build(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    const int64_t alone = INT64_C(1) << 40;
    Held held = {{0}, 0};
    npy_intp n = -1;
    int64_t size;
    if (!expects(count, 5) || !integer(args[4], &size))
        return NULL;
    const int64_t *cells[3];
    int whole = 1;
    for (int c = 0; c < 3 && whole; c++)
        whole = (cells[c] = array(args[c], 8, &n, &held)) != NULL;
    const uint16_t *marks = whole ? array(args[3], 2, &n, &held) : NULL;
    PyObject *content = NULL, *placed = NULL, *result = NULL;
    int64_t *sums = NULL, *homes = NULL, *order = NULL, *served = NULL, *claims = NULL;
    if (marks == NULL)
        goto done;
    if (size < 0 || n >= alone) {
        PyErr_SetString(PyExc_TypeError, "a size of 0 or more is needed, and fewer keys");
        goto done;
    }
    for (int c = 0; c < 3; c++)
        for (npy_intp i = 0; i < n; i++)
            if (cells[c][i] < 0 || cells[c][i] >= size) {
                PyErr_SetString(PyExc_IndexError, "a cell lies outside");
                goto done;
            }
    content = PyArray_ZEROS(1, (npy_intp[]){size}, NPY_UINT16, 0);
    placed = PyArray_ZEROS(1, &n, NPY_BOOL, 0);
    sums = calloc(size + 1, sizeof *sums);
    homes = malloc((size + 3 * n + 1) * sizeof *homes);
    order = malloc((n + 1) * sizeof *order);
    served = malloc((n + 1) * sizeof *served);
    claims = malloc((n + 1) * sizeof *claims);
    if (content == NULL || placed == NULL)
        goto done;
    if (!sums || !homes || !order || !served || !claims) {
        PyErr_NoMemory();
        goto done;
    }
    uint16_t *cell = DATA(content);
    uint8_t *is_placed = DATA(placed);
    NPY_BEGIN_THREADS_DEF;
    NPY_BEGIN_THREADS;
    for (int c = 0; c < 3; c++)
        for (npy_intp i = 0; i < n; i++)
            sums[cells[c][i]] += alone + i;
    npy_intp many = 0, peeled = 0;
    for (int64_t at = 0; at < size; at++)
        if (sums[at] >> 40 == 1)
            homes[many++] = at;
    while (many) {
        npy_intp begin = peeled;
        for (npy_intp i = 0; i < many; i++)
            claims[sums[homes[i]] - alone] = i;
        for (npy_intp i = 0; i < many; i++) { /* a key may be alone in two cells: one serves it */
            int64_t key = sums[homes[i]] - alone;
            if (claims[key] == i) {
                order[peeled] = key;
                served[peeled++] = homes[i];
            }
        }
        for (int c = 0; c < 3; c++)
            for (npy_intp i = begin; i < peeled; i++)
                sums[cells[c][order[i]]] -= alone + order[i];
        many = 0;
        for (int c = 0; c < 3; c++)
            for (npy_intp i = begin; i < peeled; i++)
                if (sums[cells[c][order[i]]] >> 40 == 1)
                    homes[many++] = cells[c][order[i]];
    }
    for (npy_intp i = peeled - 1; i >= 0; i--) {
        int64_t key = order[i];
        cell[served[i]] = marks[key] ^ cell[cells[0][key]] ^ cell[cells[1][key]] ^ cell[cells[2][key]];
        is_placed[key] = 1;
    }
    NPY_END_THREADS;
    result = PyTuple_Pack(2, content, placed);
done:
    free(sums), free(homes), free(order), free(served), free(claims);
    Py_XDECREF(content);
    Py_XDECREF(placed);
    let_go(&held);
    return result;
}

/* The word of a sieve of `size` words in which a key sets its bits, and these bits. */
static inline uint64_t sieve_word(uint64_t key, uint64_t size)
{
    return ((key >> 32) * size) >> 32;
}

static inline uint64_t sieve_bits(uint64_t key)
{
    return UINT64_C(1) << (key & 63) | UINT64_C(1) << (key >> 6 & 63) | UINT64_C(1) << (key >> 12 & 63);
}

#define COMING 32 /* keys whose words of a sieve are on their way while one is looked at */

/* sift(mixed, words) -> the numbers of the keys whose bits are all set in their words, ascending. */
static PyObject *sift(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held kept = {{0}, 0};
    npy_intp n = -1, size = -1, passing = 0;
    if (!expects(count, 2))
        return NULL;
    PyObject *result = NULL;
    const uint64_t *mixed = array(args[0], 8, &n, &kept), *words = mixed ? array(args[1], 8, &size, &kept) : NULL;
    int64_t *found = words ? malloc((n + 1) * sizeof *found) : NULL;
    if (words == NULL)
        ;
    else if (found == NULL)
        PyErr_NoMemory();
    else if (size < 1 || size >> 32)
        PyErr_SetString(PyExc_TypeError, "a sieve has a word, and less than 2**32 of them");
    else {
        NPY_BEGIN_THREADS_DEF;
        NPY_BEGIN_THREADS_THRESHOLDED(n);
        for (npy_intp i = 0; i < n && i < COMING; i++)
            PREFETCH(words + sieve_word(mixed[i], size));
        for (npy_intp i = 0; i < n; i++) {
            if (i + COMING < n)
                PREFETCH(words + sieve_word(mixed[i + COMING], size));
            uint64_t bits = sieve_bits(mixed[i]);
            found[passing] = i;
            passing += (words[sieve_word(mixed[i], size)] & bits) == bits;
        }
        NPY_END_THREADS;
        if ((result = fresh(passing, NPY_INT64)) && passing)
            memcpy(DATA(result), found, passing * sizeof *found);
    }
    free(found);
    let_go(&kept);
    return result;
}

/* sow(mixed, words): set the bits of the keys in their words, in place. */
static PyObject *sow(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held kept = {{0}, 0};
    npy_intp n = -1, size = -1;
    if (!expects(count, 2))
        return NULL;
    PyObject *result = NULL;
    const uint64_t *mixed = array(args[0], 8, &n, &kept);
    uint64_t *words = mixed ? array(args[1], 8, &size, &kept) : NULL;
    if (words == NULL)
        ;
    else if (size < 1 || size >> 32 || (void *)words != PyArray_DATA((PyArrayObject *)args[1]))
        PyErr_SetString(PyExc_TypeError, "a sieve is contiguous, has a word, and less than 2**32 of them");
    else {
        for (npy_intp i = 0; i < n; i++) {
            if (i + COMING < n)
                PREFETCH(words + sieve_word(mixed[i + COMING], size));
            words[sieve_word(mixed[i], size)] |= sieve_bits(mixed[i]);
        }
        result = Py_NewRef(Py_None);
    }
    let_go(&kept);
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

/* How many bits of a byte are set below one of them. */
static inline int bits_below(uint8_t byte, int bit)
{
    uint8_t below = byte & ((1u << bit) - 1);
    below -= below >> 1 & 0x55;
    below = (below & 0x33) + (below >> 2 & 0x33);
    return (below + (below >> 4)) & 15;
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
            places[i] = blocks[at >> block] + within[at] + bits_below(bytes[at], (int)(off & 7));
        }
        if (i < n) {
            PyErr_SetString(PyExc_IndexError, "a number is not in the set");
            Py_CLEAR(result);
        }
    }
    let_go(&kept);
    return result;
}
