/* Hashes of columns, words of texts, ids of matches. */

static inline uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= M1;
    x ^= x >> 27;
    x *= M2;
    return x ^ (x >> 31);
}

/* scramble(words, salt) -> hashes */
static PyObject *scramble(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held held = {{0}, 0};
    npy_intp n = -1;
    uint64_t salt;
    if (!expects(count, 2) || !word(args[1], &salt))
        return NULL;
    const uint64_t *words = array(args[0], 8, &n, &held);
    PyObject *result = words ? fresh(n, NPY_UINT64) : NULL;
    if (result != NULL) {
        uint64_t *out = DATA(result);
        NPY_BEGIN_THREADS_DEF;
        NPY_BEGIN_THREADS_THRESHOLDED(n);
        for (npy_intp i = 0; i < n; i++)
            out[i] = mix((words[i] ^ salt) + GOLDEN);
        NPY_END_THREADS;
    }
    let_go(&held);
    return result;
}

/* combine(left, right) -> hashes of the pairs */
static PyObject *combine(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held held = {{0}, 0};
    npy_intp n = -1;
    const uint64_t *left, *right;
    PyObject *result = NULL;
    if (!expects(count, 2))
        return NULL;
    if ((left = array(args[0], 8, &n, &held)) && (right = array(args[1], 8, &n, &held)) &&
        (result = fresh(n, NPY_UINT64))) {
        uint64_t *out = DATA(result);
        for (npy_intp i = 0; i < n; i++)
            out[i] = mix(left[i] * GOLDEN + right[i]);
    }
    let_go(&held);
    return result;
}

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define LOADED(type, bytes, into) do { type loaded; memcpy(&loaded, bytes, sizeof loaded); into = loaded; } while (0)

/* The little-endian word of up to eight bytes, zeros behind them: in one look, or two that overlap. */
static inline uint64_t word_of(const uint8_t *bytes, int64_t length)
{
    uint64_t value = 0, last;
    if (length >= 8)
        LOADED(uint64_t, bytes, value);
    else if (length >= 4) {
        LOADED(uint32_t, bytes, value);
        LOADED(uint32_t, bytes + length - 4, last);
        value |= last << (8 * (length - 4));
    } else if (length >= 2) {
        LOADED(uint16_t, bytes, value);
        value |= (uint64_t)bytes[length - 1] << (8 * (length - 1));
    } else if (length)
        value = *bytes;
    return value;
}
#else
static inline uint64_t word_of(const uint8_t *bytes, int64_t length)
{
    uint64_t value = 0;
    for (int64_t i = 0; i < length && i < 8; i++)
        value |= (uint64_t)bytes[i] << (8 * i);
    return value;
}
#endif

static inline uint64_t hash_rest(uint64_t value, const uint8_t *bytes, int64_t length)
{
    for (int64_t done = 8; done < length; done += 8)
        value = mix((value * GOLDEN) ^ word_of(bytes + done, length - done));
    return value;
}

static inline uint64_t text_hash(const uint8_t *bytes, int64_t length, uint64_t salt)
{
    return mix(hash_rest(mix((((uint64_t)length ^ salt) + GOLDEN) ^ word_of(bytes, length)), bytes, length));
}

static inline uint64_t text_word(const uint8_t *bytes, int64_t length)
{
    return hash_rest(word_of(bytes, length) + (uint64_t)length * M1, bytes, length);
}

/* Offsets (32 bits, n + 1) and bytes of texts; checks that they fit each other. */
static const int32_t *texts(PyObject *offsets, PyObject *bytes, npy_intp *n, const uint8_t **data, Held *held)
{
    npy_intp length = -1, edges = -1;
    const int32_t *starts = array(offsets, 4, &edges, held);
    if (starts == NULL || (*data = array(bytes, 1, &length, held)) == NULL)
        return NULL;
    *n = edges - 1;
    int fits = edges >= 1 && starts[0] >= 0 && starts[edges - 1] <= length;
    for (npy_intp i = 0; fits && i < *n; i++)
        fits = starts[i] <= starts[i + 1];
    if (!fits) {
        PyErr_SetString(PyExc_TypeError, "offsets must ascend from 0 to the number of bytes");
        return NULL;
    }
    return starts;
}

/* hash_texts(offsets, bytes, salt) -> hashes */
static PyObject *hash_texts(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held held = {{0}, 0};
    npy_intp n;
    uint64_t salt;
    const uint8_t *data;
    if (!expects(count, 3) || !word(args[2], &salt))
        return NULL;
    const int32_t *starts = texts(args[0], args[1], &n, &data, &held);
    PyObject *result = starts ? fresh(n, NPY_UINT64) : NULL;
    if (result != NULL) {
        uint64_t *out = DATA(result);
        NPY_BEGIN_THREADS_DEF;
        NPY_BEGIN_THREADS_THRESHOLDED(n);
        for (npy_intp i = 0; i < n; i++)
            out[i] = text_hash(data + starts[i], starts[i + 1] - starts[i], salt);
        NPY_END_THREADS;
    }
    let_go(&held);
    return result;
}

/* text_words(offsets, bytes) -> a word for each text, for sums of columns */
static PyObject *text_words(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held held = {{0}, 0};
    npy_intp n;
    const uint8_t *data;
    if (!expects(count, 2))
        return NULL;
    const int32_t *starts = texts(args[0], args[1], &n, &data, &held);
    PyObject *result = starts ? fresh(n, NPY_UINT64) : NULL;
    if (result != NULL) {
        uint64_t *out = DATA(result);
        for (npy_intp i = 0; i < n; i++)
            out[i] = text_word(data + starts[i], starts[i + 1] - starts[i]);
    }
    let_go(&held);
    return result;
}

/* text_numbers(offsets, bytes, words, lengths, other) -> for each text the place of the short text that it is */
static PyObject *text_numbers(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held held = {{0}, 0};
    npy_intp n, known = -1;
    int64_t other;
    const uint8_t *data;
    const uint64_t *words = NULL;
    const int64_t *lengths = NULL;
    if (!expects(count, 5) || !integer(args[4], &other))
        return NULL;
    const int32_t *starts = texts(args[0], args[1], &n, &data, &held);
    PyObject *result = NULL;
    if (starts && (words = array(args[2], 8, &known, &held)) && (lengths = array(args[3], 8, &known, &held)) &&
        (result = fresh(n, NPY_INT64))) {
        int64_t *out = DATA(result);
        for (npy_intp i = 0; i < n; i++) {
            int64_t length = starts[i + 1] - starts[i];
            uint64_t value = word_of(data + starts[i], length);
            out[i] = other;
            for (npy_intp j = 0; j < known; j++)
                if (words[j] == value && lengths[j] == length)
                    out[i] = j;
        }
    }
    let_go(&held);
    return result;
}

/* match_digits(high, low, per_row, name_high, name_low) -> 32 hex digits (bytes) for each `per_row` hashes */
static PyObject *match_digits(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    static const char digits[] = "0123456789abcdef";
    Held held = {{0}, 0};
    npy_intp n = -1;
    int64_t each;
    uint64_t names[2];
    const uint64_t *halves[2];
    PyObject *result = NULL;
    if (!expects(count, 5) || !integer(args[2], &each) || !word(args[3], &names[0]) || !word(args[4], &names[1]))
        return NULL;
    if ((halves[0] = array(args[0], 8, &n, &held)) && (halves[1] = array(args[1], 8, &n, &held))) {
        if (each < 1 || n % each)
            PyErr_SetString(PyExc_TypeError, "the hashes are not so many for each row");
        else if ((result = fresh(n / each * 32, NPY_UINT8))) {
            char *out = DATA(result);
            for (npy_intp row = 0; row < n / each; row++)
                for (int half = 0; half < 2; half++) {
                    uint64_t value = names[half];
                    for (npy_intp i = row * each; i < (row + 1) * each; i++)
                        value = mix(value * GOLDEN + halves[half][i]);
                    for (int shift = 60; shift >= 0; shift -= 4)
                        *out++ = digits[(value >> shift) & 15];
                }
        }
    }
    let_go(&held);
    return result;
}
