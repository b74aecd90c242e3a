/* Changes as a record batch, through Arrow's C data interface: the fixed columns of matches that come or go.
 *
 * Its twin is not in `twins/`: it is what `ChangeWriter` does column by column.
 */

/* A leaf is one block: pointers to its buffers, and these. */
static void release_leaf(ArrowArray *leaf)
{
    free(leaf->private_data);
    leaf->release = NULL;
}

/* Room for up to two buffers of so many bytes behind an absent bitmap; NULL where there is no memory. */
static char *make_leaf(ArrowArray *leaf, int64_t n, int64_t first, int64_t second)
{
    int64_t head = 3 * sizeof(void *), begin = head + (first + 15) / 8 * 8;
    char *block = malloc(begin + (second < 0 ? 0 : second) + 8);
    memset(leaf, 0, sizeof *leaf);
    if (block == NULL) {
        complain(PyExc_MemoryError, "there is none for a column of changes");
        return NULL;
    }
    const void **buffers = (const void **)block;
    buffers[0] = NULL;
    buffers[1] = block + head;
    buffers[2] = block + begin;
    leaf->length = n;
    leaf->n_buffers = second < 0 ? 2 : 3;
    leaf->buffers = buffers;
    leaf->private_data = block;
    leaf->release = release_leaf;
    return block + head;
}

/* Room for `n` texts of `bytes` bytes together; their offsets. */
static int32_t *make_texts(ArrowArray *leaf, int64_t n, int64_t bytes, char **letters)
{
    if (bytes > INT32_MAX) {
        complain(PyExc_MemoryError, "the texts of one piece of changes are longer than 2 GiB");
        leaf->release = NULL;
        return NULL;
    }
    int32_t *edges = (int32_t *)make_leaf(leaf, n, (n + 1) * sizeof *edges, bytes);
    if (edges != NULL) {
        *letters = (char *)leaf->buffers[2];
        edges[0] = 0;
    }
    return edges;
}

static int make_words(ArrowArray *leaf, int64_t n, int width, const void *values)
{
    char *own = make_leaf(leaf, n, n * width, -1);
    if (own != NULL && n)
        memcpy(own, values, n * width);
    return own != NULL;
}

enum { OP, QUERY, MATCH_ID, EVENTS, FIRST_TS, LAST_TS, COLUMNS };

/* The batch's own block: its columns, the elements of the lists, and pointers to all of them. */
typedef struct {
    ArrowArray columns[COLUMNS], element;
    ArrowArray *pointers[COLUMNS], *of_list[1];
    const void *buffers[1];
} Changes;

static void release_list(ArrowArray *list)
{
    if (list->children[0]->release != NULL)
        list->children[0]->release(list->children[0]);
    release_leaf(list);
}

static void release_changes(ArrowArray *batch)
{
    for (int i = 0; i < COLUMNS; i++)
        if (batch->children[i]->release != NULL)
            batch->children[i]->release(batch->children[i]);
    free(batch->private_data);
    batch->release = NULL;
}

/* A column of ids, words of a width or texts, and the `n` events of it that are constituents: their references, too large
 * by `shift`. */
typedef struct {
    npy_intp n, size;
    int width, is_signed; /* width 0: texts */
    const void *words;
    const int64_t *edges; /* of texts: they begin at the first */
    const uint8_t *letters;
    const int64_t *refs;
    int64_t shift;
} Ids;

#define PLACE(ids, i) ((ids)->refs[i] - (ids)->shift)

static inline int64_t id_length(const Ids *ids, int64_t place)
{
    return ids->edges[place + 1] - ids->edges[place];
}

static inline const uint8_t *id_letters(const Ids *ids, int64_t place)
{
    return ids->letters + (ids->edges[place] - ids->edges[0]);
}

/* Whether all that is referred to lies in the column, and its texts in their bytes. */
static int ids_lie_within(const Ids *ids, npy_intp letters)
{
    for (npy_intp i = 0; i < ids->n; i++) {
        int64_t at = PLACE(ids, i);
        if (at < 0 || at >= ids->size)
            return 0;
        if (!ids->width && (ids->edges[at] < ids->edges[0] || id_length(ids, at) < 0 ||
                            ids->edges[at + 1] - ids->edges[0] > letters))
            return 0;
    }
    return 1;
}

#define SOON 16 /* events: by then memory has answered */

#define GATHER(type)                                                          \
    for (npy_intp i = 0; own != NULL && i < ids->n; i++) {                    \
        if (i + SOON < ids->n)                                                \
            PREFETCH((const type *)ids->words + PLACE(ids, i + SOON));        \
        ((type *)own)[i] = ((const type *)ids->words)[PLACE(ids, i)];         \
    }                                                                         \
    break

/* The constituents' ids, one after another. */
static int make_elements(ArrowArray *leaf, const Ids *ids)
{
    if (ids->width) {
        char *own = make_leaf(leaf, ids->n, ids->n * ids->width, -1);
        switch (ids->width) {
        case 1: GATHER(uint8_t);
        case 2: GATHER(uint16_t);
        case 4: GATHER(uint32_t);
        default: GATHER(uint64_t);
        }
        return own != NULL;
    }
    char *letters;
    int64_t size = 0;
    for (npy_intp i = 0; i < ids->n; i++)
        size += id_length(ids, PLACE(ids, i));
    int32_t *edges = make_texts(leaf, ids->n, size, &letters);
    for (npy_intp i = 0; edges && i < ids->n; i++) {
        int64_t at = PLACE(ids, i), length = id_length(ids, at);
        memcpy(letters + edges[i], id_letters(ids, at), length);
        edges[i + 1] = (int32_t)(edges[i] + length);
    }
    return edges != NULL;
}

/* The hash of one of them. */
static inline uint64_t id_hash(const ArrowArray *leaf, const Ids *ids, npy_intp i, uint64_t salt)
{
    const void *words = leaf->buffers[1];
    const int32_t *edges = words;
    uint64_t word;
    switch (ids->width) {
    case 0: return text_hash((const uint8_t *)leaf->buffers[2] + edges[i], edges[i + 1] - edges[i], salt);
    case 1: word = ids->is_signed ? (uint64_t)((const int8_t *)words)[i] : ((const uint8_t *)words)[i]; break;
    case 2: word = ids->is_signed ? (uint64_t)((const int16_t *)words)[i] : ((const uint16_t *)words)[i]; break;
    case 4: word = ids->is_signed ? (uint64_t)((const int32_t *)words)[i] : ((const uint32_t *)words)[i]; break;
    default: word = ((const uint64_t *)words)[i];
    }
    return mix((word ^ salt) + GOLDEN);
}

/* Whether matches come, and how many of them. */
typedef struct {
    int insert;
    Py_ssize_t rows;
} Gain;

static int make_ops(ArrowArray *leaf, npy_intp n, const Gain *ops, npy_intp count)
{
    char *letters;
    int32_t *edges = make_texts(leaf, n, 6 * n, &letters);
    npy_intp at = 0;
    for (npy_intp i = 0; edges && i < count && ops[i].rows >= 0 && at + ops[i].rows <= n; i++)
        for (npy_intp end = at + ops[i].rows; at < end; at++) {
            memcpy(letters + 6 * at, ops[i].insert ? "insert" : "delete", 6);
            edges[at + 1] = (int32_t)(6 * (at + 1));
        }
    if (edges != NULL && at != n)
        complain(PyExc_TypeError, "the ops are not so many as the matches");
    return edges != NULL && at == n;
}

static int make_names(ArrowArray *leaf, npy_intp n, const char *name, Py_ssize_t length)
{
    char *letters;
    int32_t *edges = make_texts(leaf, n, n * length, &letters);
    for (npy_intp i = 0; edges && i < n; i++) {
        memcpy(letters + i * length, name, length);
        edges[i + 1] = (int32_t)((i + 1) * length);
    }
    return edges != NULL;
}

/* The sixteen hexadecimal digits of a word. */
static inline void put_digits(uint64_t value, char *to)
{
#ifdef LOADED
    for (int half = 0; half < 2; half++) {
        uint64_t word = value >> (half ? 0 : 32) & UINT32_MAX; /* its bytes, the highest first, are spread over 64 bits, */
        word = word >> 24 | (word >> 8 & 0xFF00) | (word & 0xFF00) << 8 | (word & 0xFF) << 24;
        word = (word | word << 16) & UINT64_C(0x0000FFFF0000FFFF);
        word = (word | word << 8) & UINT64_C(0x00FF00FF00FF00FF);
        word = (word >> 4 | word << 8) & UINT64_C(0x0F0F0F0F0F0F0F0F); /* then each one's halves */
        word += UINT64_C(0x3030303030303030) + ((word + UINT64_C(0x0606060606060606)) >> 4 & UINT64_C(0x0101010101010101)) * 39;
        memcpy(to + 8 * half, &word, sizeof word);
    }
#else
    for (int shift = 60; shift >= 0; shift -= 4)
        *to++ = "0123456789abcdef"[(value >> shift) & 15];
#endif
}

static int make_match_ids(ArrowArray *leaf, npy_intp n, npy_intp each, const ArrowArray *elements, const Ids *ids,
                          const uint64_t *name)
{
    char *letters;
    int32_t *edges = make_texts(leaf, n, 32 * n, &letters);
    for (npy_intp row = 0; edges && row < n; row++) {
        for (int half = 0; half < 2; half++) {
            uint64_t value = name[half];
            for (npy_intp i = row * each; i < (row + 1) * each; i++)
                value = mix(value * GOLDEN + id_hash(elements, ids, i, (uint64_t)(half + 1) * GOLDEN));
            put_digits(value, letters);
            letters += 16;
        }
        edges[row + 1] = (int32_t)(32 * (row + 1));
    }
    return edges != NULL;
}

static int make_lists(ArrowArray *leaf, npy_intp n, npy_intp each, Changes *changes, const Ids *ids)
{
    int32_t *edges = (int32_t *)make_leaf(leaf, n, (n + 1) * sizeof *edges, -1);
    for (npy_intp i = 0; edges && i <= n; i++)
        edges[i] = (int32_t)(i * each);
    if (edges == NULL || !make_elements(&changes->element, ids))
        return 0;
    changes->of_list[0] = &changes->element;
    leaf->n_children = 1;
    leaf->children = changes->of_list;
    leaf->release = release_list;
    return 1;
}

/* The fixed columns of changes as rows of `slot`; 0, with an exception and an empty slot: there is no memory for them, or
 * `ops` do not tell of all. `first` and `last` are their first and last times. The interpreter's lock is not needed. */
static int make_changes(ArrowArray *slot, npy_intp n, const Gain *ops, npy_intp count, const char *name, Py_ssize_t length,
                        const uint64_t *halves, const Ids *ids, const int64_t *first, const int64_t *last)
{
    Changes *changes = calloc(1, sizeof *changes);
    if (changes == NULL) {
        complain(PyExc_MemoryError, "there is none for changes");
        return 0;
    }
    for (int i = 0; i < COLUMNS; i++)
        changes->pointers[i] = changes->columns + i;
    ArrowArray *to = changes->columns;
    *slot = (ArrowArray){.length = n, .n_buffers = 1, .n_children = COLUMNS, .buffers = changes->buffers};
    slot->children = changes->pointers;
    slot->private_data = changes;
    slot->release = release_changes;
    int good = make_ops(to + OP, n, ops, count) && make_names(to + QUERY, n, name, length) &&
               make_lists(to + EVENTS, n, n > 0 ? ids->n / n : 1, changes, ids) &&
               make_match_ids(to + MATCH_ID, n, n > 0 ? ids->n / n : 1, &changes->element, ids, halves) &&
               make_words(to + FIRST_TS, n, 8, first) && make_words(to + LAST_TS, n, 8, last);
    if (!good)
        release_changes(slot);
    return good;
}

/* The (insert, rows) of a list; NULL, with an exception: it has others, or there is no memory. */
static Gain *ops_of(PyObject *list)
{
    Py_ssize_t count = PyList_GET_SIZE(list);
    Gain *ops = malloc((size_t)(count + 1) * sizeof *ops);
    if (ops == NULL)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; ops && i < count; i++)
        if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "pn", &ops[i].insert, &ops[i].rows)) {
            free(ops);
            ops = NULL;
        }
    return ops;
}

/* write_changes(slot, ops, name, ids, is_signed, refs, shift, first, last, name_high, name_low)
 *
 * Fills `slot`, room for a struct ArrowArray, with the fixed columns of changes, for one import. `ops` is a list of
 * (insert, rows) for as many matches as `first` and `last`, their first and last times, have; `refs`, too large by `shift`,
 * are as many for every match, and lead into `ids`: words of any width, or (offsets, bytes) of texts, of which the first
 * is where the bytes begin.
 */
static PyObject *write_changes(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held held = {{0}, 0};
    npy_intp n = -1, room = -1, letters = -1;
    uint64_t halves[2];
    Py_ssize_t length;
    Ids ids = {.n = -1, .size = -1};
    if (!expects(count, 11) || !integer(args[6], &ids.shift) || !word(args[9], &halves[0]) || !word(args[10], &halves[1]))
        return NULL;
    const char *name = PyUnicode_AsUTF8AndSize(args[2], &length);
    if (name == NULL)
        return NULL;
    ids.is_signed = PyObject_IsTrue(args[4]);
    ArrowArray *slot = array(args[0], 8, &room, &held);
    const int64_t *first = slot ? array(args[7], 8, &n, &held) : NULL, *last = first ? array(args[8], 8, &n, &held) : NULL;
    int good = last != NULL && (ids.refs = array(args[5], 8, &ids.n, &held));
    if (good && PyTuple_Check(args[3]) && PyTuple_GET_SIZE(args[3]) == 2) {
        good = (ids.edges = array(PyTuple_GET_ITEM(args[3], 0), 8, &ids.size, &held)) &&
               (ids.letters = array(PyTuple_GET_ITEM(args[3], 1), 1, &letters, &held));
        ids.size--;
    } else if (good) {
        ids.width = PyArray_Check(args[3]) ? (int)PyArray_ITEMSIZE((PyArrayObject *)args[3]) : 8;
        good = (ids.width == 1 || ids.width == 2 || ids.width == 4 || ids.width == 8) &&
               (ids.words = array(args[3], ids.width, &ids.size, &held));
    }
    npy_intp each = good && n > 0 ? ids.n / n : 1;
    good = good && each > 0 && ids.n == n * each && ids.n <= INT32_MAX && room * 8 >= (npy_intp)sizeof *slot &&
           (void *)slot == DATA(args[0]) && PyArray_ISWRITEABLE((PyArrayObject *)args[0]) && PyList_Check(args[1]);
    if (!good && !PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "the arguments do not fit each other");
    if (good && !ids_lie_within(&ids, letters)) {
        PyErr_SetString(PyExc_IndexError, "a reference is not in the log");
        good = 0;
    }
    if (!good) {
        let_go(&held);
        return NULL;
    }
    Gain *ops = ops_of(args[1]);
    npy_intp count_ops = PyList_GET_SIZE(args[1]);
    NPY_BEGIN_THREADS_DEF;
    NPY_BEGIN_THREADS_THRESHOLDED(n);
    good = ops && make_changes(slot, n, ops, count_ops, name, length, halves, &ids, first, last);
    NPY_END_THREADS;
    free(ops);
    let_go(&held);
    if (!good)
        return NULL;
    Py_RETURN_NONE;
}
