/* JSON objects into columns: a few fields of many texts, in one pass over their bytes.
 *
 * Rule: a text is read here only where there is no doubt what it says. Whatever is unusual (escapes, letters beyond
 * ASCII, numbers of many digits, wrong types, syntax errors) marks it as not read, and the caller reads it by other
 * means, which decide what is wrong with it. So what is read here is what any reader of JSON would find.
 */

enum { JSON_TEXT, JSON_INT, JSON_FLOAT, JSON_BOOL };
#define JSON_FIELDS 64
#define JSON_DEPTH 32
/* Powers of ten that a double holds exactly: with a whole number below 2^53 one operation rounds once, as it must. */
static const double tens[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                              1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

typedef struct {
    const char *name;
    Py_ssize_t length;
    int kind;
    uint8_t *valid; /* one bit per row */
    int64_t nulls;
    void *values; /* 8 bytes per row; of bools 1 */
    int32_t *offsets;
    char *text;
    int64_t used;
} JsonField;

typedef struct {
    int set;
    union {
        int64_t whole;
        double real;
        struct {
            const char *at;
            Py_ssize_t length;
        } text;
    } is;
} JsonValue;

static const char *json_space(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t'))
        at++;
    return at;
}

/* Behind the closing quote of a plain string whose opening one is before `at`; NULL where it is not plain. */
static const char *json_string(const char *at, const char *end)
{
    for (; at < end; at++) {
        unsigned char c = (unsigned char)*at;
        if (c == '"')
            return at + 1;
        if (c < 0x20 || c >= 0x7f || c == '\\')
            return NULL;
    }
    return NULL;
}

/* A number: its digits as a whole (at most 18 of them), the power of ten, and whether it is written as a whole number.
 * NULL where it is none, or too long. */
static const char *json_number(const char *at, const char *end, int64_t *whole, int *power, int *plain, int *negative)
{
    int digits = 0, shift = 0;
    uint64_t value = 0;
    *plain = 1;
    *negative = at < end && *at == '-';
    at += *negative;
    if (at == end || *at < '0' || *at > '9' || (*at == '0' && at + 1 < end && at[1] >= '0' && at[1] <= '9'))
        return NULL;
    for (; at < end && *at >= '0' && *at <= '9' && digits < 19; at++, digits++)
        value = value * 10 + (uint64_t)(*at - '0');
    if (at < end && *at == '.') {
        const char *first = ++at;
        for (; at < end && *at >= '0' && *at <= '9' && digits < 19; at++, digits++, shift--)
            value = value * 10 + (uint64_t)(*at - '0');
        if (at == first)
            return NULL;
        *plain = 0;
    }
    if (digits > 18)
        return NULL;
    if (at < end && (*at == 'e' || *at == 'E')) {
        int sign = 1, exponent = 0, count = 0;
        at++;
        if (at < end && (*at == '+' || *at == '-'))
            sign = *at++ == '-' ? -1 : 1;
        for (; at < end && *at >= '0' && *at <= '9' && count < 4; at++, count++)
            exponent = exponent * 10 + (*at - '0');
        if (!count || count == 4)
            return NULL;
        shift += sign * exponent;
        *plain = 0;
    }
    *whole = (int64_t)value;
    *power = shift;
    return at;
}

static const char *json_word(const char *at, const char *end, const char *word, size_t length)
{
    return (size_t)(end - at) >= length && memcmp(at, word, length) == 0 ? at + length : NULL;
}

/* Behind any value; NULL where it is not plain. */
static const char *json_skip(const char *at, const char *end, int depth)
{
    int64_t whole;
    int power, plain, negative;
    if (at == end || depth == 0)
        return NULL;
    switch (*at) {
    case '"':
        return json_string(at + 1, end);
    case 't':
        return json_word(at, end, "true", 4);
    case 'f':
        return json_word(at, end, "false", 5);
    case 'n':
        return json_word(at, end, "null", 4);
    case '{':
    case '[': {
        char close = *at == '{' ? '}' : ']';
        int object = *at == '{';
        at = json_space(at + 1, end);
        if (at < end && *at == close)
            return at + 1;
        for (;;) {
            if (object) {
                if (at == end || *at != '"' || (at = json_string(at + 1, end)) == NULL)
                    return NULL;
                at = json_space(at, end);
                if (at == end || *at != ':')
                    return NULL;
                at = json_space(at + 1, end);
            }
            if ((at = json_skip(at, end, depth - 1)) == NULL)
                return NULL;
            at = json_space(at, end);
            if (at == end)
                return NULL;
            if (*at == close)
                return at + 1;
            if (*at != ',')
                return NULL;
            at = json_space(at + 1, end);
        }
    }
    default:
        return json_number(at, end, &whole, &power, &plain, &negative);
    }
}

/* The value of a field; NULL where it is not plain, or of another type. */
static const char *json_value(const char *at, const char *end, int kind, JsonValue *value)
{
    value->set = 0;
    if (at == end)
        return NULL;
    if (*at == 'n')
        return json_word(at, end, "null", 4);
    value->set = 1;
    if (kind == JSON_TEXT) {
        const char *behind = *at == '"' ? json_string(at + 1, end) : NULL;
        value->is.text.at = at + 1;
        value->is.text.length = behind == NULL ? 0 : behind - at - 2;
        return behind;
    }
    if (kind == JSON_BOOL) {
        value->is.whole = *at == 't';
        return *at == 't' ? json_word(at, end, "true", 4) : json_word(at, end, "false", 5);
    }
    int64_t whole;
    int power, plain, negative;
    at = json_number(at, end, &whole, &power, &plain, &negative);
    if (at == NULL)
        return NULL;
    if (kind == JSON_INT) {
        value->is.whole = negative ? -whole : whole;
        return plain ? at : NULL;
    }
    if (whole >= (INT64_C(1) << 53) || power > 22 || power < -22 || (plain && negative && whole == 0))
        return NULL;
    double real = power < 0 ? (double)whole / tens[-power] : (double)whole * tens[power];
    value->is.real = negative ? -real : real;
    return at;
}

/* Whether one text is an object that can be read here; its values. */
static int json_object(const char *at, const char *end, const JsonField *fields, int count, JsonValue *values)
{
    int next = 0; /* objects of one kind mostly have their fields in one order */
    for (int field = 0; field < count; field++)
        values[field].set = 0;
    at = json_space(at, end);
    if (at == end || *at != '{')
        return 0;
    at = json_space(at + 1, end);
    if (at < end && *at == '}')
        return json_space(at + 1, end) == end;
    for (;;) {
        if (at == end || *at != '"')
            return 0;
        const char *name = at + 1;
        if ((at = json_string(name, end)) == NULL)
            return 0;
        Py_ssize_t length = at - name - 1;
        at = json_space(at, end);
        if (at == end || *at != ':')
            return 0;
        at = json_space(at + 1, end);
        int found = -1;
        for (int n = 0; n < count && found < 0; n++) {
            int field = next + n < count ? next + n : next + n - count;
            if (fields[field].length == length && memcmp(fields[field].name, name, (size_t)length) == 0)
                found = field;
        }
        if (found < 0)
            at = json_skip(at, end, JSON_DEPTH);
        else {
            at = json_value(at, end, fields[found].kind, &values[found]);
            next = found + 1 < count ? found + 1 : 0;
        }
        if (at == NULL)
            return 0;
        at = json_space(at, end);
        if (at == end)
            return 0;
        if (*at == '}')
            return json_space(at + 1, end) == end;
        if (*at != ',')
            return 0;
        at = json_space(at + 1, end);
    }
}

/* read_json(texts, names, kinds): texts are bytes or None, names a tuple of bytes, kinds a byte for each: text, int,
 * float, bool. Returns which texts were read (bools), and for each field (validity bits, nulls, values) or, of texts,
 * (validity bits, nulls, 32-bit offsets, bytes). What was not read is null. */
static PyObject *read_json(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    (void)self;
    if (!expects(given, 3))
        return NULL;
    if (!PyList_Check(args[0]) || !PyTuple_Check(args[1]) || !PyBytes_Check(args[2]) ||
        PyTuple_GET_SIZE(args[1]) != PyBytes_GET_SIZE(args[2]) || PyTuple_GET_SIZE(args[1]) > JSON_FIELDS) {
        PyErr_SetString(PyExc_TypeError, "a list of texts, a tuple of names and a kind for each are needed");
        return NULL;
    }
    npy_intp n = PyList_GET_SIZE(args[0]), bits = (n + 7) / 8, edges = n + 1;
    int count = (int)PyTuple_GET_SIZE(args[1]);
    JsonField fields[JSON_FIELDS];
    JsonValue values[JSON_FIELDS];
    struct {
        const char *at;
        Py_ssize_t length;
    } *texts = PyMem_Malloc(sizeof *texts * (size_t)(n ? n : 1));
    PyObject *read = fresh(n, NPY_BOOL), *columns = PyTuple_New(count), *result = NULL;
    npy_intp total = 0;
    if (texts == NULL || read == NULL || columns == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (npy_intp row = 0; row < n; row++) {
        PyObject *text = PyList_GET_ITEM(args[0], row);
        if (text != Py_None && !PyBytes_Check(text)) {
            PyErr_Format(PyExc_TypeError, "texts must be bytes or None, not %R", text);
            goto done;
        }
        texts[row].at = text == Py_None ? "" : PyBytes_AS_STRING(text);
        texts[row].length = text == Py_None ? 0 : PyBytes_GET_SIZE(text);
        total += texts[row].length;
    }
    if (total > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "texts of more than 2 GiB in one call");
        goto done;
    }
    for (int field = 0; field < count; field++) {
        JsonField *f = &fields[field];
        PyObject *name = PyTuple_GET_ITEM(args[1], field);
        if (!PyBytes_Check(name)) {
            PyErr_SetString(PyExc_TypeError, "names must be bytes");
            goto done;
        }
        *f = (JsonField){PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name), PyBytes_AS_STRING(args[2])[field]};
        PyObject *valid = PyArray_ZEROS(1, &bits, NPY_UINT8, 0);
        PyObject *offsets = f->kind == JSON_TEXT ? fresh(edges, NPY_INT32) : NULL;
        PyObject *data = f->kind == JSON_TEXT    ? fresh(total, NPY_UINT8)
                         : f->kind == JSON_BOOL  ? PyArray_ZEROS(1, &n, NPY_BOOL, 0)
                         : f->kind == JSON_FLOAT ? PyArray_ZEROS(1, &n, NPY_FLOAT64, 0)
                                                 : PyArray_ZEROS(1, &n, NPY_INT64, 0);
        PyObject *column = valid == NULL || data == NULL || (f->kind == JSON_TEXT && offsets == NULL) ? NULL
                           : f->kind == JSON_TEXT ? PyTuple_Pack(4, valid, Py_None, offsets, data)
                                                  : PyTuple_Pack(3, valid, Py_None, data);
        if (column != NULL) { /* the tuple holds them from here on */
            f->valid = DATA(valid);
            f->values = f->text = DATA(data);
            if (offsets != NULL)
                (f->offsets = DATA(offsets))[0] = 0;
            PyTuple_SET_ITEM(columns, field, column);
        }
        Py_XDECREF(valid);
        Py_XDECREF(offsets);
        Py_XDECREF(data);
        if (column == NULL)
            goto done;
    }
    npy_bool *good = DATA(read);
    Py_BEGIN_ALLOW_THREADS
    for (npy_intp row = 0; row < n; row++) {
        good[row] = (npy_bool)json_object(texts[row].at, texts[row].at + texts[row].length, fields, count, values);
        for (int field = 0; field < count; field++) {
            JsonField *f = &fields[field];
            JsonValue *v = &values[field];
            int set = good[row] && v->set;
            if (set)
                f->valid[row >> 3] |= (uint8_t)(1 << (row & 7));
            else
                f->nulls++;
            switch (f->kind) {
            case JSON_TEXT:
                if (set) {
                    memcpy(f->text + f->used, v->is.text.at, (size_t)v->is.text.length);
                    f->used += v->is.text.length;
                }
                f->offsets[row + 1] = (int32_t)f->used;
                break;
            case JSON_FLOAT:
                if (set)
                    ((double *)f->values)[row] = v->is.real;
                break;
            case JSON_BOOL:
                if (set)
                    ((npy_bool *)f->values)[row] = (npy_bool)v->is.whole;
                break;
            default:
                if (set)
                    ((int64_t *)f->values)[row] = v->is.whole;
            }
        }
    }
    Py_END_ALLOW_THREADS
    for (int field = 0; field < count; field++) {
        PyObject *nulls = PyLong_FromLongLong(fields[field].nulls);
        if (nulls == NULL)
            goto done;
        PyObject *column = PyTuple_GET_ITEM(columns, field);
        Py_SETREF(((PyTupleObject *)column)->ob_item[1], nulls);
    }
    result = PyTuple_Pack(2, read, columns);
done:
    PyMem_Free(texts);
    Py_XDECREF(read);
    Py_XDECREF(columns);
    return result;
}
