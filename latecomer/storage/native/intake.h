/* Reading a batch: all that is asked of every row before anything else, in one pass over its Arrow buffers.
 *
 * The batch comes through Arrow's C data interface (https://arrow.apache.org/docs/format/CDataInterface.html), whose
 * two structs are declared here as it says. Its twin is not in `twins/`: it is what `Intake` and `hashing.py` do
 * column by column. A batch in which anything is out of the ordinary is left to them: the answer is None.
 */

typedef struct ArrowSchema {
    const char *format, *name, *metadata;
    int64_t flags, n_children;
    struct ArrowSchema **children, *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data;
} ArrowSchema;

typedef struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct ArrowArray **children, *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
} ArrowArray;

/* What a column is to the stream: bits of its role. */
enum { IS_TYPE = 1, IS_TIME = 2, IS_ID = 4, IS_SAID = 8, IS_HASHED = 16, IS_KEPT = 32 };

enum { OF_NOTHING, OF_BIT, OF_I8, OF_U8, OF_I16, OF_U16, OF_I32, OF_U32, OF_I64, OF_F32, OF_F64, OF_TEXT, OF_BYTES, OF_STRANGE };
static const int WIDTHS[] = {0, 0, 1, 1, 2, 2, 4, 4, 8, 4, 8, 4, 4};

/* A column's values from its first row on; `valid` is a bitmap from bit `skip` on, NULL where there is no null. */
typedef struct {
    int kind, role;
    const uint8_t *valid;
    int64_t skip;
    const void *values;
    const uint8_t *bytes;
    uint64_t *hashes; /* where they go, or NULL */
} Field;

static int kind_of(const char *format)
{
    static const char plain[] = "nbcCsSiIlLfguz";
    static const int kinds[] = {OF_NOTHING, OF_BIT, OF_I8, OF_U8, OF_I16, OF_U16, OF_I32, OF_U32, OF_I64, OF_I64, OF_F32, OF_F64, OF_TEXT, OF_BYTES};
    if (format[0] != 0 && format[1] == 0) {
        const char *at = strchr(plain, format[0]);
        return at == NULL ? OF_STRANGE : kinds[at - plain];
    }
    if (strncmp(format, "ts", 2) == 0 || strncmp(format, "tD", 2) == 0 || strcmp(format, "tdm") == 0 ||
        strcmp(format, "ttu") == 0 || strcmp(format, "ttn") == 0)
        return OF_I64;
    return strcmp(format, "tdD") == 0 || strcmp(format, "tts") == 0 || strcmp(format, "ttm") == 0 ? OF_I32 : OF_STRANGE;
}

static inline int is_valid(const Field *field, int64_t row)
{
    int64_t bit = field->skip + row;
    return field->valid[bit >> 3] >> (bit & 7) & 1;
}

static inline int is_text(const Field *field)
{
    return field->kind == OF_TEXT || field->kind == OF_BYTES;
}

/* Whether there are hashes that stand for values in joins. */
static inline int is_hashable(const Field *field)
{
    return field->kind != OF_NOTHING && field->kind != OF_F32 && field->kind != OF_F64;
}

/* Whether each value has one. */
static inline int has_hashes(const Field *field)
{
    return !field->valid && is_hashable(field);
}

/* Fills `field`; 0 where the column is not as it can be read here. */
static int open_field(Field *field, const ArrowSchema *schema, const ArrowArray *parent, const ArrowArray *array,
                      int64_t role)
{
    int64_t n = parent->length, offset = array->offset + parent->offset;
    int kind = field->kind = kind_of(schema->format);
    field->role = (int)role;
    field->valid = field->bytes = NULL;
    field->values = field->hashes = NULL;
    field->skip = offset;
    if (kind == OF_STRANGE || schema->dictionary != NULL || array->length < n + parent->offset)
        return 0;
    if (kind == OF_NOTHING)
        return 1;
    field->valid = array->null_count == 0 ? NULL : array->buffers[0];
    int64_t row = 0;
    while (field->valid != NULL && row < n && is_valid(field, row))
        row++;
    if (row == n)
        field->valid = NULL;
    const char *values = array->buffers[1];
    if (values == NULL || (uintptr_t)values % (WIDTHS[kind] ? WIDTHS[kind] : 1))
        return 0;
    field->values = values + offset * WIDTHS[kind];
    if (is_text(field)) {
        const int32_t *starts = field->values;
        field->bytes = array->buffers[2];
        for (row = 0; row < n; row++)
            if (starts[row] > starts[row + 1])
                return 0;
        if (starts[0] < 0 || (field->bytes == NULL && starts[n] > 0))
            return 0;
    }
    return 1;
}

#define EACH_WORD(type, expression)                     \
    for (int64_t i = 0; i < n; i++) {                   \
        type value = ((const type *)field->values)[i];  \
        out[i] = (uint64_t)(int64_t)(expression);       \
    }                                                   \
    break

static inline uint64_t word_of_float(double value)
{
    uint64_t word;
    value += 0.0; /* -0.0 becomes 0.0 */
    memcpy(&word, &value, sizeof word);
    return word;
}

/* A word for each value, as `hash_contents` sums them (`whole`: a hash for each text); whatever under nulls. */
static void words_of(const Field *field, int64_t n, int whole, uint64_t *out)
{
    switch (field->kind) {
    case OF_NOTHING: memset(out, 0, n * sizeof *out); break;
    case OF_BIT:
        for (int64_t i = 0; i < n; i++)
            out[i] = ((const uint8_t *)field->values)[(field->skip + i) >> 3] >> ((field->skip + i) & 7) & 1;
        break;
    case OF_I8: EACH_WORD(int8_t, value);
    case OF_U8: EACH_WORD(uint8_t, value);
    case OF_I16: EACH_WORD(int16_t, value);
    case OF_U16: EACH_WORD(uint16_t, value);
    case OF_I32: EACH_WORD(int32_t, value);
    case OF_U32: EACH_WORD(uint32_t, value);
    case OF_I64: memcpy(out, field->values, n * sizeof *out); break;
    case OF_F32: EACH_WORD(float, word_of_float(value));
    case OF_F64: EACH_WORD(double, word_of_float(value));
    default: {
        const int32_t *starts = field->values;
        whole |= field->kind == OF_BYTES;
        for (int64_t i = 0; i < n; i++) {
            int64_t length = starts[i + 1] - starts[i];
            const uint8_t *bytes = length ? field->bytes + starts[i] : NULL;
            out[i] = whole ? text_hash(bytes, length, 0) : text_word(bytes, length);
        }
    }
    }
}

/* Adds the column, the `number`-th of what an event says, to the sums of contents. */
static void add_words(const Field *field, int64_t n, uint64_t number, const uint64_t *words, uint64_t *sums)
{
    const uint64_t weight = (number * UINT64_C(0xD1342543DE82EF95)) | 1, null = UINT64_C(0xA0761D6478BD642F);
    if (field->kind == OF_NOTHING)
        for (int64_t i = 0; i < n; i++)
            sums[i] += null * weight;
    else if (field->valid == NULL)
        for (int64_t i = 0; i < n; i++)
            sums[i] += words[i] * weight;
    else
        for (int64_t i = 0; i < n; i++)
            sums[i] += (is_valid(field, i) ? words[i] : null) * weight;
}

#define SOME_NAMES 64
#define FEW_NAMES 16 /* so many are all looked at for each row, which is cheaper than to foresee where to stop */

/* The first letters of a row's text as one word, without a branch where more letters follow in memory. */
static inline uint64_t first_word(const Field *field, int64_t row, int64_t last)
{
    const int32_t *starts = field->values;
    int64_t at = starts[row], length = starts[row + 1] - at;
#ifdef LOADED
    if (at + 8 <= last) {
        uint64_t value;
        LOADED(uint64_t, field->bytes + at, value);
        return length > 7 ? value : value & ((UINT64_C(1) << (8 * length)) - 1);
    }
#endif
    return word_of(length ? field->bytes + at : NULL, length);
}

/* The number of each text among a few `known` names, whose first letters are all they have; -1 where it is none. */
static void number_few(const Field *field, int64_t n, const uint64_t *words, const int32_t *edges, npy_intp known,
                       int64_t *out)
{
    const int32_t *starts = field->values;
    int64_t last = starts[n];
    for (int64_t i = 0; i < n; i++) {
        int64_t number = -1;
        int32_t length = starts[i + 1] - starts[i];
        uint64_t own = first_word(field, i, last);
        for (npy_intp j = 0; j < known; j++)
            number = (words[j] == own) & (edges[j + 1] - edges[j] == length) ? j : number;
        out[i] = number;
    }
}

/* The number of each text among `known` names, -1 where it is none. */
static void number_types(const Field *field, int64_t n, const int32_t *edges, const uint8_t *names, npy_intp known,
                         int64_t *out)
{
    const int32_t *starts = field->values;
    uint64_t words[SOME_NAMES]; /* their first letters, as one word: most names are told apart by these */
    int few = known <= FEW_NAMES;
    for (npy_intp j = 0; j < known && j < SOME_NAMES; j++) {
        words[j] = word_of(names + edges[j], edges[j + 1] - edges[j]);
        few &= edges[j + 1] - edges[j] <= 8;
    }
    if (few) {
        number_few(field, n, words, edges, known, out);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t length = starts[i + 1] - starts[i];
        const uint8_t *bytes = length ? field->bytes + starts[i] : NULL;
        uint64_t own = word_of(bytes, length);
        out[i] = -1;
        for (npy_intp j = 0; j < known && out[i] < 0; j++)
            if (edges[j + 1] - edges[j] == length && (j >= SOME_NAMES || words[j] == own) &&
                (length <= 8 - 8 * (j >= SOME_NAMES) || memcmp(bytes, names + edges[j], length) == 0))
                out[i] = j;
    }
}

/* Event times as they are (`divisor` and `factor` 1) or in another unit; whether all lie within `most` of 0. */
static int scale_times(const Field *field, int64_t n, int64_t factor, int64_t divisor, int64_t most, int64_t *out)
{
    const int64_t *values = field->values;
    int within = 1;
    if (factor == 1 && divisor == 1) {
        for (int64_t i = 0; i < n; i++)
            within &= values[i] <= most && values[i] >= -most;
        return within;
    }
    for (int64_t i = 0; i < n && within; i++) {
        int64_t value = values[i], cut = value / divisor - (value % divisor < 0);
        within = cut <= most / factor && cut >= -(most / factor);
        out[i] = within ? cut * factor : 0;
    }
    return within;
}

/* What is worked out for each of `n` rows. */
typedef struct {
    npy_intp n, columns, names; /* names: of event types */
    Field *fields;
    const Field *type, *time, *id;
    const int32_t *edges; /* of the names */
    const uint8_t *letters;
    int64_t factor, divisor, most, first, types;
    int64_t *numbers, *ts;
    uint64_t *contents, *ids, *words;
} Reading;

/* Whether the batch is as it can be read here; fills `fields`. */
static int is_plain(Reading *to, const ArrowSchema *schema, const ArrowArray *rows, const int64_t *roles)
{
    if (to->n == 0 || rows->null_count != 0 || rows->n_children != to->columns || schema->n_children != to->columns)
        return 0;
    for (npy_intp i = 0; i < to->columns; i++) {
        Field *field = to->fields + i;
        if (!open_field(field, schema->children[i], rows, rows->children[i], roles[i]))
            return 0;
        to->type = field->role & IS_TYPE ? field : to->type;
        to->time = field->role & IS_TIME ? field : to->time;
        to->id = field->role & IS_ID ? field : to->id;
    }
    return to->type && to->type->kind == OF_TEXT && !to->type->valid && to->time && to->time->kind == OF_I64 &&
           !to->time->valid && (!to->id || has_hashes(to->id));
}

/* Whether times are taken as they lie in the batch. */
static inline int is_as_is(const Reading *to)
{
    return to->factor == 1 && to->divisor == 1;
}

/* Event times in the stream's units. */
static inline const int64_t *times_of(const Reading *to)
{
    return is_as_is(to) ? to->time->values : to->ts;
}

/* A column from a row on. */
static Field field_from(const Field *field, npy_intp row)
{
    Field own = *field;
    own.skip += row;
    if (own.values && own.kind != OF_BIT)
        own.values = (const char *)own.values + row * WIDTHS[own.kind];
    if (own.hashes)
        own.hashes += row;
    return own;
}

/* Fills the outputs of `n` rows from `begin` on; whether all times lie within bounds. */
static int read_rows_from(const Reading *to, npy_intp begin, npy_intp n)
{
    uint64_t said = 0, *contents = to->contents + begin, *words = to->words + begin;
    int64_t *numbers = to->numbers + begin;
    Field time = field_from(to->time, begin), type = field_from(to->type, begin);
    if (!scale_times(&time, n, to->factor, to->divisor, to->most, to->ts ? to->ts + begin : NULL))
        return 0;
    const int64_t *ts = times_of(to) + begin;
    number_types(&type, n, to->edges, to->letters, to->names, numbers);
    for (npy_intp i = 0; i < n; i++)
        contents[i] = ((uint64_t)ts[i] * ((uint64_t)to->types + 1) + (uint64_t)numbers[i]) * GOLDEN;
    for (npy_intp i = 0; !to->id && i < n; i++)
        to->ids[begin + i] = mix((uint64_t)(to->first + begin + i) + GOLDEN);
    for (npy_intp i = 0; i < to->columns; i++) {
        Field field = field_from(to->fields + i, begin);
        if (field.role & IS_SAID) {
            words_of(&field, n, 0, words);
            add_words(&field, n, ++said, words, contents);
        }
        if (field.hashes != NULL) {
            words_of(&field, n, 1, field.hashes);
            for (npy_intp j = 0; !is_text(&field) && j < n; j++)
                field.hashes[j] = mix(field.hashes[j] + GOLDEN);
        }
    }
    for (npy_intp i = 0; i < n; i++)
        contents[i] = mix(contents[i]);
    return 1;
}

/* `n` values where they lie, for reading; `owner` keeps them. */
static PyObject *view(const void *values, npy_intp n, int type, PyObject *owner)
{
    static const uint64_t nothing;
    PyObject *result = PyArray_New(&PyArray_Type, 1, &n, type, NULL, (void *)(values ? values : &nothing), 0,
                                   NPY_ARRAY_CARRAY_RO, NULL);
    if (result != NULL) {
        Py_INCREF(owner);
        if (PyArray_SetBaseObject((PyArrayObject *)result, owner) < 0)
            Py_CLEAR(result);
    }
    return result;
}

/* A column as the event log takes it: an array, or (offsets, bytes) of texts; None where it has nulls, or is of bits. */
static PyObject *view_of(const Field *field, npy_intp n, PyObject *owner)
{
    if (field->valid != NULL || field->kind == OF_NOTHING || field->kind == OF_BIT)
        Py_RETURN_NONE;
    int width = WIDTHS[field->kind];
    if (!is_text(field)) /* whatever they are, as words of their width */
        return view(field->values, n, width == 1   ? NPY_UINT8
                                      : width == 2 ? NPY_UINT16
                                      : width == 4 ? NPY_UINT32
                                                   : NPY_UINT64,
                    owner);
    PyObject *edges = view(field->values, n + 1, NPY_INT32, owner);
    PyObject *bytes = edges ? view(field->bytes, ((const int32_t *)field->values)[n], NPY_UINT8, owner) : NULL;
    PyObject *result = bytes ? PyTuple_Pack(2, edges, bytes) : NULL;
    Py_XDECREF(edges);
    Py_XDECREF(bytes);
    return result;
}

/* Append to a list, which takes over `item`; 0 where either failed. */
static int put_into(PyObject *list, PyObject *item)
{
    int failed = list == NULL || item == NULL || PyList_Append(list, item) < 0;
    Py_XDECREF(item);
    return !failed;
}

/* read_rows(schema, array, roles, edges, letters, factor, divisor, most, types, first) -> (numbers, ts, contents, ids,
 * hashes, kept) | None
 *
 * `schema` and `array` are the capsules of a record batch, `roles` says what each of its columns is. `edges` and
 * `letters` are offsets (32 bits) and bytes of the names of event types; times are multiplied by `factor`, or divided
 * by `divisor`, and lie within `most` of 0; ids count from `first` where no column has any; contents begin with a word
 * that tells `types` types apart. `hashes` has one entry for each HASHED column, None where it has nulls or is of
 * floats; `kept` a view of each KEPT one.
 */
static PyObject *read_rows(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held held = {{0}, 0};
    Reading to = {0};
    npy_intp edges = -1, letters = -1;
    if (!expects(count, 10) || !integer(args[5], &to.factor) || !integer(args[6], &to.divisor) ||
        !integer(args[7], &to.most) || !integer(args[8], &to.types) || !integer(args[9], &to.first))
        return NULL;
    const ArrowSchema *schema = PyCapsule_GetPointer(args[0], "arrow_schema");
    const ArrowArray *rows = schema ? PyCapsule_GetPointer(args[1], "arrow_array") : NULL;
    to.columns = -1;
    const int64_t *roles = rows ? array(args[2], 8, &to.columns, &held) : NULL;
    PyObject *numbers = NULL, *ts = NULL, *contents = NULL, *ids = NULL, *hashes = NULL, *kept = NULL, *result = NULL;
    if (roles == NULL || (to.edges = array(args[3], 4, &edges, &held)) == NULL ||
        (to.letters = array(args[4], 1, &letters, &held)) == NULL)
        goto done;
    to.names = edges - 1;
    to.n = rows->length;
    to.fields = malloc((to.columns + 1) * sizeof *to.fields);
    to.words = malloc((to.n + 1) * sizeof *to.words);
    if (to.fields == NULL || to.words == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    if (!is_plain(&to, schema, rows, roles))
        goto done;
    int as_is = is_as_is(&to);
    if (!(numbers = fresh(to.n, NPY_INT64)) || !(contents = fresh(to.n, NPY_UINT64)) ||
        !(ids = fresh(to.n, NPY_UINT64)) || !(ts = fresh(as_is ? 0 : to.n, NPY_INT64)) || !(hashes = PyList_New(0)) ||
        !(kept = PyList_New(0)))
        goto done;
    to.numbers = DATA(numbers), to.ts = DATA(ts), to.contents = DATA(contents), to.ids = DATA(ids);
    for (npy_intp i = 0; i < to.columns; i++) {
        Field *field = to.fields + i;
        if (field->role & IS_ID)
            field->hashes = to.ids;
        if (!(field->role & IS_HASHED))
            continue;
        PyObject *own = field->role & IS_ID ? Py_NewRef(ids)
                        : has_hashes(field) ? fresh(to.n, NPY_UINT64)
                                            : Py_NewRef(Py_None);
        if (own != NULL && own != Py_None)
            field->hashes = DATA(own);
        if (!put_into(hashes, own))
            goto done;
    }
    int within;
    NPY_BEGIN_THREADS_DEF;
    NPY_BEGIN_THREADS_THRESHOLDED(to.n);
    within = read_rows_from(&to, 0, to.n);
    NPY_END_THREADS;
    if (!within)
        goto done;
    for (npy_intp i = 0; i < to.columns; i++)
        if (to.fields[i].role & IS_KEPT && !put_into(kept, view_of(to.fields + i, to.n, args[1])))
            goto done;
    if (as_is) {
        Py_DECREF(ts);
        ts = view(to.time->values, to.n, NPY_INT64, args[1]);
    }
    if (ts != NULL)
        result = PyTuple_Pack(6, numbers, ts, contents, ids, hashes, kept);
done:
    Py_XDECREF(numbers);
    Py_XDECREF(ts);
    Py_XDECREF(contents);
    Py_XDECREF(ids);
    Py_XDECREF(hashes);
    Py_XDECREF(kept);
    free(to.fields);
    free(to.words);
    let_go(&held);
    if (result != NULL || PyErr_Occurred())
        return result;
    Py_RETURN_NONE;
}

/* pick(types, number, mask, hashes, ts, refs) -> (hashes, ts, refs) of the rows of this type, of which `mask` (bools, or
 * None) marks some; hashes are 0 where they are None */
static PyObject *pick(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held held = {{0}, 0};
    npy_intp n = -1, chosen = 0;
    int64_t number;
    const npy_bool *mask = NULL;
    const uint64_t *hashes = NULL;
    const int64_t *types, *ts, *refs;
    PyObject *own[3] = {NULL}, *result = NULL;
    if (!expects(count, 6) || !integer(args[1], &number))
        return NULL;
    if ((types = array(args[0], 8, &n, &held)) && (args[2] == Py_None || (mask = array(args[2], 1, &n, &held))) &&
        (args[3] == Py_None || (hashes = array(args[3], 8, &n, &held))) && (ts = array(args[4], 8, &n, &held)) &&
        (refs = array(args[5], 8, &n, &held))) {
        for (npy_intp i = 0; i < n; i++)
            chosen += (types[i] == number) & (mask == NULL || mask[i]);
        if ((own[0] = fresh(chosen, NPY_UINT64)) && (own[1] = fresh(chosen, NPY_INT64)) &&
            (own[2] = fresh(chosen, NPY_INT64))) {
            uint64_t *own_hashes = DATA(own[0]);
            int64_t *own_ts = DATA(own[1]), *own_refs = DATA(own[2]);
            /* Whatever is written for a row that is not chosen is written over by the next one. */
            for (npy_intp i = 0, at = 0; at < chosen; i++) {
                own_hashes[at] = hashes == NULL ? 0 : hashes[i];
                own_ts[at] = ts[i];
                own_refs[at] = refs[i];
                at += (types[i] == number) & (mask == NULL || mask[i]);
            }
            result = PyTuple_Pack(3, own[0], own[1], own[2]);
        }
    }
    for (int i = 0; i < 3; i++)
        Py_XDECREF(own[i]);
    let_go(&held);
    return result;
}

/* judge(ts, types, clock, delay) -> (the clock after all rows, whether an event of a known type is later than `delay` by
 * the clock at its arrival, how many are of a known type, by how much each row is behind that clock) */
static PyObject *judge(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held held = {{0}, 0};
    npy_intp n = -1, known = 0;
    int64_t clock, delay;
    int late = 0;
    const int64_t *ts, *types;
    PyObject *behind = NULL, *result = NULL;
    if (!expects(count, 4) || !integer(args[2], &clock) || !integer(args[3], &delay))
        return NULL;
    if ((ts = array(args[0], 8, &n, &held)) && (types = array(args[1], 8, &n, &held)) && (behind = fresh(n, NPY_INT64))) {
        int64_t *by = DATA(behind);
        NPY_BEGIN_THREADS_DEF;
        NPY_BEGIN_THREADS_THRESHOLDED(n);
        for (npy_intp i = 0; i < n; i++) {
            clock = ts[i] > clock ? ts[i] : clock;
            by[i] = (int64_t)((uint64_t)clock - (uint64_t)ts[i]);
            late |= types[i] >= 0 && ts[i] < clock - delay;
            known += types[i] >= 0;
        }
        NPY_END_THREADS;
        result = Py_BuildValue("LNnN", (long long)clock, PyBool_FromLong(late), (Py_ssize_t)known, behind);
    }
    let_go(&held);
    return result;
}
