/* Conditions over what is bound: values of the log's columns, and programs in postfix that ask about them.
 *
 * `runtime/road.py` writes them, `runtime/values.py` says what each code means.
 */

#define MOST_PARTS 32 /* components of a pattern */
#define MOST_DEPTH 24 /* operands of a condition under way */

/* --- what is bound ---------------------------------------------------------------------------------------------- */

enum Kind { SIGNED, UNSIGNED, FLOATING, BOOLEAN, TEXT };

typedef struct {
    enum Kind kind;
    int width; /* bytes of a value */
    const char *values;
    const int64_t *offsets; /* of texts, which begin at values + (offset - offsets[0]) */
    const npy_bool *valid;  /* NULL: all */
    const int64_t *words;   /* the values, where they are numbers of 8 bytes and there are no nulls; else NULL */
    const char *first;      /* where the first value is, or its offset, and how far the next one is from it */
    npy_intp step;
    npy_intp n;
} Column;

/* A text that a condition names. */
typedef struct {
    const uint8_t *bytes;
    int64_t length;
} Text;

/* Where in the columns the event of a reference is: from `dense` on one after another, before that as the sparse
 * numbers say (`storage/numbers.py`), ascending or as bits with counts. `number`: the bits of a reference that are its
 * number. */
typedef struct {
    int64_t number, dense, sparse, base, block;
    const int64_t *plain, *blocks;
    const uint8_t *bytes, *within;
    npy_intp size;
} Places;

/* The events that are bound to a pattern's components, and where their values are. */
typedef struct {
    Column *columns;
    const Text *texts; /* that conditions name */
    Places places;
    int64_t ref[MOST_PARTS], ts[MOST_PARTS], place[MOST_PARTS]; /* place -1: not looked up yet */
    int lost; /* whether a reference was not in the log */
} Bound;

static inline void bind(Bound *bound, int64_t part, int64_t ref, int64_t ts, int64_t place)
{
    bound->ref[part] = ref;
    bound->ts[part] = ts;
    bound->place[part] = place;
}

static int64_t sparse_place(const Places *places, int64_t ref)
{
    if (places->plain) {
        int64_t low = 0, high = places->sparse;
        while (low < high) {
            int64_t middle = low + (high - low) / 2;
            if (places->plain[middle] < ref)
                low = middle + 1;
            else
                high = middle;
        }
        return low < places->sparse && places->plain[low] == ref ? low : -1;
    }
    uint64_t off = (uint64_t)ref - (uint64_t)places->base, at = off >> 3;
    if (at >= (uint64_t)places->size || !(places->bytes[at] >> (off & 7) & 1))
        return -1;
    return places->blocks[at >> places->block] + places->within[at] +
           bits_below(places->bytes[at], (int)(off & 7));
}

static inline int64_t place_of(const Places *places, int64_t ref)
{
    ref &= places->number;
    return ref >= places->dense ? ref - places->dense + places->sparse : sparse_place(places, ref);
}

/* Where a column's value of a bound component is; -1: it is null (or not in the log, which is an error). */
static inline int64_t value_at(Bound *bound, int64_t part, const Column *column)
{
    int64_t at = bound->place[part];
    if (at < 0)
        at = bound->place[part] = place_of(&bound->places, bound->ref[part]);
    if (at < 0 || at >= column->n) {
        bound->lost = 1;
        return -1;
    }
    return column->valid && !column->valid[at] ? -1 : at;
}

static inline int64_t whole(const Column *column, int64_t at)
{
    switch (column->kind == UNSIGNED ? column->width + 8 : column->width) {
    case 1:
        return ((const int8_t *)column->values)[at];
    case 2:
        return ((const int16_t *)column->values)[at];
    case 4:
        return ((const int32_t *)column->values)[at];
    case 9:
        return ((const uint8_t *)column->values)[at];
    case 10:
        return ((const uint16_t *)column->values)[at];
    case 12:
        return ((const uint32_t *)column->values)[at];
    default:
        return ((const int64_t *)column->values)[at];
    }
}

static inline double real(const Column *column, int64_t at)
{
    return column->width == 4 ? (double)((const float *)column->values)[at] : ((const double *)column->values)[at];
}

static inline const uint8_t *text(const Column *column, int64_t at, int64_t *length)
{
    *length = column->offsets[at + 1] - column->offsets[at];
    return (const uint8_t *)column->values + (column->offsets[at] - column->offsets[0]);
}

/* Whether two values of one type are equal; of floats, NaN equals nothing. */
static inline int same_value(const Column *left, int64_t a, const Column *right, int64_t b)
{
    if (left->kind == TEXT) {
        int64_t lengths[2];
        const uint8_t *mine = text(left, a, lengths), *other = text(right, b, lengths + 1);
        return lengths[0] == lengths[1] && memcmp(mine, other, (size_t)lengths[0]) == 0;
    }
    if (left->kind == FLOATING)
        return real(left, a) == real(right, b);
    return whole(left, a) == whole(right, b);
}

/* The hash of a value, as `storage/hashing.py` has it; 0 of a null. */
static inline uint64_t hash_of(Bound *bound, int64_t part, int64_t column)
{
    uint64_t value;
    if (column < 0)
        value = (uint64_t)bound->ts[part];
    else {
        const Column *own = bound->columns + column;
        int64_t at = value_at(bound, part, own);
        if (at < 0)
            return 0;
        if (own->kind == TEXT) {
            int64_t length;
            const uint8_t *bytes = text(own, at, &length);
            return text_hash(bytes, length, 0);
        }
        if (own->kind == FLOATING) {
            double number = real(own, at) + 0.0;
            memcpy(&value, &number, sizeof value);
        } else
            value = (uint64_t)whole(own, at);
    }
    return mix(value + GOLDEN);
}

/* --- conditions ------------------------------------------------------------------------------------------------- */

enum Code {
    LOAD, LOAD_TIME, INTEGER, FLOAT, /* what is put on the stack */
    WIDEN, WIDEN_BELOW,              /* the last operand, or the one below it, becomes a float */
    ADD, SUBTRACT, MULTIPLY, REMAINDER, NEGATE,
    ADD_F, SUBTRACT_F, MULTIPLY_F, DIVIDE_F, REMAINDER_F, NEGATE_F,
    COMPARE, COMPARE_F, COMPARE_IF, COMPARE_FI, SAME_TEXT, TEXT_IS,
    AND, OR, NOT, IS_NULL,
    CODES
};

/* Comparisons as sets of the outcomes that they are true for. */
enum { LESS = 1, EQUAL = 2, GREATER = 4 };

typedef struct {
    int64_t code, a, b; /* LOAD: component, column; LOAD_TIME: component; constants: a; COMPARE: set of outcomes;
                           SAME_TEXT: twice component * MOST_PARTS^2 + column; TEXT_IS: once, and
                           the number of the text */
} Op;

typedef struct {
    int64_t count;
    const Op *ops;
} Condition;

typedef struct {
    union {
        int64_t i;
        double f;
    } as;
    int null;
} Operand;

/* -1, 0 or 1, exactly: beyond 2^53 a float stands for many integers. */
static inline int compared_with_real(int64_t a, double b)
{
    if (b >= 9223372036854775808.0)
        return -1;
    if (b < -9223372036854775808.0)
        return 1;
    int64_t trunc = (int64_t)b;
    if (a != trunc)
        return a < trunc ? -1 : 1;
    double rest = b - (double)trunc;
    return rest > 0 ? -1 : rest < 0 ? 1 : 0;
}

static inline Operand outcome(int sign, int64_t set, int null)
{
    Operand result;
    result.as.i = !null && (set >> (sign + 1) & 1);
    result.null = null;
    return result;
}

#define SIGN(a, b) (((a) > (b)) - ((a) < (b)))

/* An operand that is a constant, or a number of 8 bytes where there are no nulls; 0: it is none. */
static inline int simple(const Bound *bound, const Op *op, Operand *out)
{
    if (op->code != LOAD) {
        out->as.i = op->a;
        return op->code == INTEGER || op->code == FLOAT;
    }
    const Column *column = bound->columns + op->b;
    uint64_t at = (uint64_t)bound->place[op->a];
    if (!column->words || column->kind == UNSIGNED || at >= (uint64_t)column->n)
        return 0;
    out->as.i = column->words[at];
    return 1;
}

static int passes(Bound *bound, const Condition *condition);

/* The same as passes(), at once where two simple operands are compared, as most conditions do. */
static inline int passes_soon(Bound *bound, const Condition *condition)
{
    const Op *op = condition->ops;
    Operand a, b;
    if (condition->count == 3 && simple(bound, op, &a) && simple(bound, op + 1, &b)) {
        if (op[2].code == COMPARE)
            return op[2].a >> (SIGN(a.as.i, b.as.i) + 1) & 1;
        if (op[2].code == COMPARE_F)
            return a.as.f == a.as.f && b.as.f == b.as.f && (op[2].a >> (SIGN(a.as.f, b.as.f) + 1) & 1);
    }
    return passes(bound, condition);
}

/* Whether a condition is true of what is bound, in SQL's logic (`runtime/values.py` says what each code means). */
static int passes(Bound *bound, const Condition *condition)
{
    Operand stack[MOST_DEPTH + 2], *top = stack; /* `top`: the first free place */
    for (const Op *op = condition->ops, *end = op + condition->count; op < end; op++) {
        Operand *b = top - 1, *a = top - 2;
        switch (op->code) {
        case LOAD: {
            const Column *column = bound->columns + op->b;
            int64_t at = value_at(bound, op->a, column);
            top->null = at < 0;
            top->as.i = 0;
            if (at >= 0 && column->kind == FLOATING) {
                top->as.f = real(column, at);
                top->null = top->as.f != top->as.f;
            } else if (at >= 0) {
                top->as.i = whole(column, at);
                top->null = column->kind == UNSIGNED && column->width == 8 && top->as.i < 0;
            }
            top++;
            break;
        }
        case LOAD_TIME:
            top->as.i = bound->ts[op->a];
            top++->null = 0;
            break;
        case INTEGER:
        case FLOAT: /* the same bits */
            top->as.i = op->a;
            top++->null = 0;
            break;
        case WIDEN:
            b->as.f = (double)b->as.i;
            break;
        case WIDEN_BELOW:
            a->as.f = (double)a->as.i;
            break;
        case ADD: {
            int64_t sum = (int64_t)((uint64_t)a->as.i + (uint64_t)b->as.i);
            a->null |= b->null | (((a->as.i ^ sum) & (b->as.i ^ sum)) < 0);
            a->as.i = sum;
            top--;
            break;
        }
        case SUBTRACT: {
            int64_t rest = (int64_t)((uint64_t)a->as.i - (uint64_t)b->as.i);
            a->null |= b->null | (((a->as.i ^ b->as.i) & (a->as.i ^ rest)) < 0);
            a->as.i = rest;
            top--;
            break;
        }
        case MULTIPLY: {
            int64_t x = a->as.i, y = b->as.i, product = (int64_t)((uint64_t)x * (uint64_t)y);
            int wrapped = x != 0 && ((x == -1 && y == INT64_MIN) || (y == -1 && x == INT64_MIN) ||
                                     (x != -1 && product / x != y));
            a->null |= b->null | wrapped;
            a->as.i = product;
            top--;
            break;
        }
        case REMAINDER:
            a->null |= b->null | (b->as.i == 0);
            a->as.i = b->as.i == 0 || b->as.i == -1 ? 0 : a->as.i % b->as.i;
            top--;
            break;
        case NEGATE:
            b->null |= b->as.i == INT64_MIN;
            b->as.i = (int64_t)(0 - (uint64_t)b->as.i);
            break;
        case ADD_F:
        case SUBTRACT_F:
        case MULTIPLY_F:
        case DIVIDE_F:
        case REMAINDER_F: {
            double x = a->as.f, y = b->as.f;
            a->null |= b->null;
            if (op->code >= DIVIDE_F && y == 0)
                a->null = 1;
            else
                a->as.f = op->code == ADD_F        ? x + y
                          : op->code == SUBTRACT_F ? x - y
                          : op->code == MULTIPLY_F ? x * y
                          : op->code == DIVIDE_F   ? x / y
                                                   : fmod(x, y);
            a->null |= a->as.f != a->as.f;
            top--;
            break;
        }
        case NEGATE_F:
            b->as.f = -b->as.f;
            break;
        case COMPARE:
            *a = outcome(SIGN(a->as.i, b->as.i), op->a, a->null | b->null);
            top--;
            break;
        case COMPARE_F:
            *a = outcome(SIGN(a->as.f, b->as.f), op->a, a->null | b->null);
            top--;
            break;
        case COMPARE_IF:
            *a = outcome(a->null | b->null ? 0 : compared_with_real(a->as.i, b->as.f), op->a, a->null | b->null);
            top--;
            break;
        case COMPARE_FI:
            *a = outcome(a->null | b->null ? 0 : -compared_with_real(b->as.i, a->as.f), op->a, a->null | b->null);
            top--;
            break;
        case SAME_TEXT: {
            const int64_t wide = MOST_PARTS * MOST_PARTS;
            const Column *left = bound->columns + op->a % wide, *right = bound->columns + op->b % wide;
            int64_t mine = value_at(bound, op->a / wide, left), other = value_at(bound, op->b / wide, right);
            top->null = mine < 0 || other < 0;
            top->as.i = !top->null && same_value(left, mine, right, other);
            top++;
            break;
        }
        case TEXT_IS: {
            const Column *column = bound->columns + op->a % (MOST_PARTS * MOST_PARTS);
            int64_t at = value_at(bound, op->a / (MOST_PARTS * MOST_PARTS), column), length = 0;
            const Text *wanted = bound->texts + op->b;
            const uint8_t *own = at < 0 ? NULL : text(column, at, &length);
            top->null = at < 0;
            top->as.i = at >= 0 && length == wanted->length && memcmp(own, wanted->bytes, (size_t)length) == 0;
            top++;
            break;
        }
        case AND: {
            int data = a->as.i && b->as.i;
            a->null = (a->as.i || a->null) && (b->as.i || b->null) && !data;
            a->as.i = data;
            top--;
            break;
        }
        case OR:
            a->as.i = a->as.i || b->as.i;
            a->null = (a->null || b->null) && !a->as.i;
            top--;
            break;
        case NOT:
            b->as.i = !(b->as.i || b->null);
            break;
        case IS_NULL:
            b->as.i = b->null;
            b->null = 0;
            break;
        }
    }
    return stack->as.i && !stack->null;
}
