/* Following a join order, seed by seed and depth first: the compiled road of `runtime/sequence.py`, which is its twin.
 *
 * A program is made once from a join order (`runtime/road.py` writes it as words, in the order in which they are read
 * here), and is checked then, so that following it need not. What depends on the batch comes with each call: where
 * events are found (sources), the log's columns, and the seeds.
 */

#define MOST_PARTS 32 /* components of a pattern */
#define MOST_DEPTH 24 /* operands of a condition under way */
#define MOST_BLOCKS 256 /* lists of a program */

/* --- conditions ------------------------------------------------------------------------------------------------- */

enum Kind { SIGNED, UNSIGNED, FLOATING, BOOLEAN, TEXT };

typedef struct {
    enum Kind kind;
    int width; /* bytes of a value */
    const char *values;
    const int64_t *offsets; /* of texts, which begin at values + (offset - offsets[0]) */
    const npy_bool *valid;  /* NULL: all */
    npy_intp n;
} Column;

enum Code {
    LOAD, LOAD_TIME, INTEGER, FLOAT, /* what is put on the stack */
    WIDEN, WIDEN_BELOW,              /* the last operand, or the one below it, becomes a float */
    ADD, SUBTRACT, MULTIPLY, REMAINDER, NEGATE,
    ADD_F, SUBTRACT_F, MULTIPLY_F, DIVIDE_F, REMAINDER_F, NEGATE_F,
    COMPARE, COMPARE_F, COMPARE_IF, COMPARE_FI, SAME_TEXT,
    AND, OR, NOT, IS_NULL,
    CODES
};

/* Comparisons as sets of the outcomes that they are true for. */
enum { LESS = 1, EQUAL = 2, GREATER = 4 };

typedef struct {
    int64_t code, a, b; /* LOAD: component, column; LOAD_TIME: component; constants: a; COMPARE: set of outcomes;
                           SAME_TEXT: twice component * MOST_PARTS^2 + column */
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

/* --- the program ------------------------------------------------------------------------------------------------ */

/* A range of time: from that of one component to that of another, each with something added. */
typedef struct {
    int64_t from, add_from, to, add_to;
} Range;

/* `column` of the event looked for is `other_column` of `other`; -1: the time. */
typedef struct {
    int64_t column, other, other_column;
} Link;

/* How events of a component are found. */
typedef struct {
    int64_t part, source, carried;
    Range range;
    int64_t links;
    const Link *link;
    int64_t tests;
    Condition *test;
} Look;

/* A negation. `cut`: the nearest negative bounds the time of the component about to be bound, from below (1) or above
 * (2), `anchor` being its other neighbour; `before`: only negatives that came before this component count (-1: all). */
typedef struct {
    Look look;
    int64_t cut, anchor, before;
} Negation;

typedef struct {
    Look look;
    int64_t negations;
    Negation *negation;
} Move;

typedef struct {
    int64_t hashed; /* the bits of a hash that count */
    int64_t parts, sources, columns;
    const int64_t *layout; /* kind and width of each column */
    int64_t bound; /* components that seeds bind */
    const int64_t *bind;
    Move first; /* what is decided by the seed alone; its look is not used but for tests */
    int64_t moves;
    Move *move;
    int64_t lasts; /* what complete matches must pass in the end */
    Negation *last;
    int64_t *words; /* that the above point into */
    void *blocks[MOST_BLOCKS];
    int block_count;
} Program;

typedef struct {
    Program *program;
    const int64_t *at, *end;
    int fine;
} Reader;

static int64_t next_word(Reader *reader, int64_t low, int64_t high)
{
    if (reader->at == reader->end || *reader->at < low || *reader->at > high) {
        reader->fine = 0;
        return low;
    }
    return *reader->at++;
}

static const int64_t *next_words(Reader *reader, int64_t count, int64_t each)
{
    const int64_t *at = reader->at;
    if (count > (reader->end - at) / each) {
        reader->fine = 0;
        return at;
    }
    reader->at += count * each;
    return at;
}

static void *block(Reader *reader, size_t count, size_t size)
{
    void *memory = NULL;
    if (reader->program->block_count < MOST_BLOCKS)
        memory = reader->program->blocks[reader->program->block_count++] = calloc(count + 1, size);
    reader->fine = reader->fine && memory != NULL;
    return memory;
}

#define A_PART(reader) next_word(reader, 0, (reader)->program->parts - 1)

static Range read_range(Reader *reader)
{
    Range range;
    range.from = A_PART(reader);
    range.add_from = next_word(reader, INT64_MIN, INT64_MAX);
    range.to = A_PART(reader);
    range.add_to = next_word(reader, INT64_MIN, INT64_MAX);
    return range;
}

/* Whether a condition's codes leave one value on the stack, never take from an empty one, and name what there is. */
static int sound(const Condition *condition, const Program *program)
{
    int64_t depth = 0;
    for (int64_t i = 0; i < condition->count; i++) {
        const Op *op = condition->ops + i;
        int takes = 2, fine = 1;
        if (op->code < 0 || op->code >= CODES)
            return 0;
        if (op->code == LOAD)
            fine = op->a >= 0 && op->a < program->parts && op->b >= 0 && op->b < program->columns &&
                   program->layout[2 * op->b] != TEXT;
        else if (op->code == LOAD_TIME)
            fine = op->a >= 0 && op->a < program->parts;
        else if (op->code == SAME_TEXT)
            for (int side = 0; side < 2; side++) {
                int64_t place = side ? op->b : op->a, wide = MOST_PARTS * MOST_PARTS;
                fine = fine && place >= 0 && place / wide < program->parts && place % wide < program->columns &&
                       program->layout[2 * (place % wide)] == TEXT;
            }
        if (op->code <= FLOAT || op->code == SAME_TEXT)
            takes = 0;
        else if (op->code == WIDEN || op->code == NEGATE || op->code == NEGATE_F || op->code == NOT || op->code == IS_NULL)
            takes = 1;
        if (!fine || depth < takes)
            return 0;
        depth += op->code == WIDEN_BELOW ? 0 : 1 - takes;
        if (depth > MOST_DEPTH)
            return 0;
    }
    return depth == 1;
}

static void read_look(Reader *reader, Look *look)
{
    look->part = A_PART(reader);
    look->source = next_word(reader, 0, reader->program->sources - 1);
    look->carried = next_word(reader, 0, 1);
    look->range = read_range(reader);
    look->links = next_word(reader, 0, MOST_PARTS * MOST_PARTS);
    look->link = (const Link *)next_words(reader, look->links, 3);
    for (int64_t i = 0; reader->fine && i < look->links; i++) {
        const Link *link = look->link + i;
        const int64_t *layout = reader->program->layout, own = link->column, other = link->other_column;
        reader->fine = own >= -1 && own < reader->program->columns && other >= -1 && other < reader->program->columns &&
                       link->other >= 0 && link->other < reader->program->parts;
        if (reader->fine && own >= 0 && other >= 0)
            reader->fine = layout[2 * own] == layout[2 * other] && layout[2 * own + 1] == layout[2 * other + 1];
        else if (reader->fine && (own >= 0 || other >= 0))
            reader->fine = layout[2 * (own >= 0 ? own : other)] == SIGNED;
    }
}

static void read_tests(Reader *reader, Look *look)
{
    look->tests = next_word(reader, 0, 1 << 10);
    look->test = block(reader, (size_t)look->tests, sizeof *look->test);
    for (int64_t i = 0; reader->fine && i < look->tests; i++) {
        look->test[i].count = next_word(reader, 1, 1 << 16);
        look->test[i].ops = (const Op *)next_words(reader, look->test[i].count, 3);
        reader->fine = reader->fine && sound(look->test + i, reader->program);
    }
}

static Negation *read_negations(Reader *reader, int64_t *count)
{
    *count = next_word(reader, 0, MOST_PARTS);
    Negation *all = block(reader, (size_t)*count, sizeof *all);
    for (int64_t i = 0; reader->fine && i < *count; i++) {
        read_look(reader, &all[i].look);
        read_tests(reader, &all[i].look);
        all[i].cut = next_word(reader, 0, 2);
        all[i].anchor = A_PART(reader);
        all[i].before = next_word(reader, -1, reader->program->parts - 1);
    }
    return all;
}

static void program_done(Program *program)
{
    for (int i = 0; i < program->block_count; i++)
        free(program->blocks[i]);
    free(program->words);
    free(program);
}

static void program_gone(PyObject *capsule)
{
    program_done(PyCapsule_GetPointer(capsule, "latecomer.program"));
}

/* program(words) -> a join order as `follow` wants it */
static PyObject *program(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held held = {{0}, 0};
    npy_intp n = -1;
    if (!expects(count, 1))
        return NULL;
    const int64_t *words = array(args[0], 8, &n, &held);
    if (words == NULL) {
        let_go(&held);
        return NULL;
    }
    Program *made = calloc(1, sizeof *made);
    if (made == NULL || (made->words = malloc((size_t)(n + 1) * sizeof *words)) == NULL) {
        free(made);
        let_go(&held);
        return PyErr_NoMemory();
    }
    memcpy(made->words, words, (size_t)n * sizeof *words);
    let_go(&held);
    Reader reader = {made, made->words, made->words + n, 1};
    made->hashed = next_word(&reader, INT64_MIN, INT64_MAX);
    made->parts = next_word(&reader, 1, MOST_PARTS);
    made->sources = next_word(&reader, 0, MOST_PARTS * MOST_PARTS);
    made->columns = next_word(&reader, 0, MOST_PARTS * MOST_PARTS - 1);
    made->layout = next_words(&reader, made->columns, 2);
    for (int64_t i = 0; reader.fine && i < made->columns; i++) {
        int64_t kind = made->layout[2 * i], width = made->layout[2 * i + 1];
        reader.fine = kind == TEXT || kind == BOOLEAN ? width == 1
                      : kind == FLOATING              ? width == 4 || width == 8
                                                      : (kind == SIGNED || kind == UNSIGNED) && width >= 1 &&
                                                            width <= 8 && !(width & (width - 1));
    }
    made->bound = next_word(&reader, 1, made->parts);
    made->bind = next_words(&reader, made->bound, 1);
    for (int64_t i = 0; reader.fine && i < made->bound; i++)
        reader.fine = made->bind[i] >= 0 && made->bind[i] < made->parts;
    read_tests(&reader, &made->first.look);
    made->first.negation = read_negations(&reader, &made->first.negations);
    made->moves = next_word(&reader, 0, MOST_PARTS);
    made->move = block(&reader, (size_t)made->moves, sizeof *made->move);
    for (int64_t i = 0; reader.fine && i < made->moves; i++) {
        read_look(&reader, &made->move[i].look);
        read_tests(&reader, &made->move[i].look);
        made->move[i].negation = read_negations(&reader, &made->move[i].negations);
    }
    made->last = read_negations(&reader, &made->lasts);
    if (!reader.fine || reader.at != reader.end) {
        program_done(made);
        PyErr_SetString(PyExc_TypeError, "this is no program: runtime/road.py writes them");
        return NULL;
    }
    PyObject *capsule = PyCapsule_New(made, "latecomer.program", program_gone);
    if (capsule == NULL)
        program_done(made);
    return capsule;
}

/* --- one call --------------------------------------------------------------------------------------------------- */

/* Where in the columns the event of a reference is: from `dense` on one after another, before that as the sparse
 * numbers say (`storage/numbers.py`), ascending or as bits with counts. `number`: the bits of a reference that are its
 * number. */
typedef struct {
    int64_t number, dense, sparse, base, block;
    const int64_t *plain, *blocks;
    const uint8_t *bytes, *within;
    npy_intp size;
} Places;

typedef struct {
    Walk walk;
    uint64_t open; /* negations that a negative of another key with the same hash left undecided */
} Level;

typedef struct {
    const Program *program;
    PyObject *arguments; /* all that the pointers below point into */
    int64_t mask;
    Source *sources;
    int64_t *latest; /* no event of the source is later */
    Column *columns;
    Places places;
    const uint64_t *keys;
    const int64_t *seed_refs[MOST_PARTS], *seed_ts[MOST_PARTS];
    npy_intp n, seed; /* `seed`: the next one */
    int64_t depth;    /* of the move under way; -1: none */
    uint64_t key;
    int64_t ref[MOST_PARTS], ts[MOST_PARTS], place[MOST_PARTS]; /* place -1: not looked up yet */
    Level level[MOST_PARTS];
    int64_t *found; /* rows of (seed, then reference and time of each bound component) */
    npy_intp count, room, width;
    int lost, short_of_memory;
} Follow;

static int64_t place_of(const Places *places, int64_t ref)
{
    ref &= places->number;
    if (ref >= places->dense)
        return ref - places->dense + places->sparse;
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

/* Where a column's value of a bound component is; -1: it is null (or not in the log, which is an error). */
static inline int64_t value_at(Follow *f, int64_t part, const Column *column)
{
    int64_t at = f->place[part];
    if (at < 0)
        at = f->place[part] = place_of(&f->places, f->ref[part]);
    if (at < 0 || at >= column->n) {
        f->lost = 1;
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

static int linked(Follow *f, const Look *look)
{
    for (int64_t i = 0; i < look->links; i++) {
        const Link *link = look->link + i;
        const Column *own = f->columns + link->column, *other = f->columns + link->other_column;
        int64_t a = 0, b = 0;
        if (link->column >= 0 && (a = value_at(f, look->part, own)) < 0)
            return 0;
        if (link->other_column >= 0 && (b = value_at(f, link->other, other)) < 0)
            return 0;
        if (link->column >= 0 && link->other_column >= 0) {
            if (!same_value(own, a, other, b))
                return 0;
        } else {
            int64_t left = link->column < 0 ? f->ts[look->part] : whole(own, a);
            if (left != (link->other_column < 0 ? f->ts[link->other] : whole(other, b)))
                return 0;
        }
    }
    return 1;
}

/* The hash of a value, as `storage/hashing.py` has it; 0 of a null. */
static inline uint64_t hash_of(Follow *f, int64_t part, int64_t column)
{
    uint64_t value;
    if (column < 0)
        value = (uint64_t)f->ts[part];
    else {
        const Column *own = f->columns + column;
        int64_t at = value_at(f, part, own);
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

/* The key under which a look's events are stored. */
static inline uint64_t key_of(Follow *f, const Look *look)
{
    if (look->carried)
        return f->key;
    uint64_t hash = 0;
    for (int64_t i = 0; i < look->links; i++) {
        uint64_t own = hash_of(f, look->link[i].other, look->link[i].other_column);
        hash = i ? mix(hash * GOLDEN + own) : own;
    }
    return hash & (uint64_t)f->program->hashed & ~(uint64_t)f->mask & (UINT64_MAX >> 1);
}

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

/* Whether a condition is true of what is bound, in SQL's logic (`runtime/values.py` says what each code means). */
static int passes(Follow *f, const Condition *condition)
{
    Operand stack[MOST_DEPTH + 2], *top = stack; /* `top`: the first free place */
    for (const Op *op = condition->ops, *end = op + condition->count; op < end; op++) {
        Operand *b = top - 1, *a = top - 2;
        switch (op->code) {
        case LOAD: {
            const Column *column = f->columns + op->b;
            int64_t at = value_at(f, op->a, column);
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
            top->as.i = f->ts[op->a];
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
            const Column *left = f->columns + op->a % wide, *right = f->columns + op->b % wide;
            int64_t mine = value_at(f, op->a / wide, left), other = value_at(f, op->b / wide, right);
            top->null = mine < 0 || other < 0;
            top->as.i = !top->null && same_value(left, mine, right, other);
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

static inline void bind(Follow *f, int64_t part, int64_t ref, int64_t ts)
{
    f->ref[part] = ref;
    f->ts[part] = ts;
    f->place[part] = -1;
}

static int tested(Follow *f, const Look *look)
{
    for (int64_t i = 0; i < look->tests; i++)
        if (!passes(f, look->test + i))
            return 0;
    return 1;
}

/* Whether an event agrees on a look's links with what is bound, and passes its tests. What is bound stays: a negative may
 * be bound as the seed while others of its negation are looked at. */
static int agrees(Follow *f, const Look *look, int64_t ref, int64_t ts)
{
    int64_t part = look->part, kept_ref = f->ref[part], kept_ts = f->ts[part], kept_place = f->place[part];
    bind(f, part, ref, ts);
    int fine = linked(f, look) && tested(f, look);
    f->ref[part] = kept_ref;
    f->ts[part] = kept_ts;
    f->place[part] = kept_place;
    return fine;
}

/* Whether a negative falls in the negation's scope. */
static int killed(Follow *f, const Negation *negation)
{
    const Look *look = &negation->look;
    Source *source = f->sources + look->source;
    Walk on;
    int64_t ref, ts;
    int64_t lo = f->ts[look->range.from] + look->range.add_from, hi = f->ts[look->range.to] + look->range.add_to;
    if (lo > f->latest[look->source])
        return 0;
    walk(source, key_of(f, look), lo, hi, &on);
    while (next_event(source, &on, &ref, &ts))
        if ((negation->before < 0 || ref < f->ref[negation->before]) && agrees(f, look, ref, ts))
            return 1;
    return 0;
}

/* Whether what has just been bound may stay; `open`: the negations that are not decided yet. */
static int stands(Follow *f, const Move *move, uint64_t open)
{
    if (!tested(f, &move->look))
        return 0;
    for (int64_t i = 0; i < move->negations; i++)
        if ((open >> i & 1) && killed(f, move->negation + i))
            return 0;
    return 1;
}

/* Begin to look for the events of the next component. */
static void enter(Follow *f)
{
    const Move *move = f->program->move + f->depth;
    const Look *look = &move->look;
    Level *level = f->level + f->depth;
    int64_t lo = f->ts[look->range.from] + look->range.add_from, hi = f->ts[look->range.to] + look->range.add_to;
    level->open = 0;
    if (lo > f->latest[look->source]) { /* most new events are newer than all that is known */
        walk(f->sources + look->source, 0, 1, 0, &level->walk);
        return;
    }
    for (int64_t i = 0; i < move->negations; i++) {
        const Negation *negation = move->negation + i;
        Source *source = f->sources + negation->look.source;
        int64_t ref = 0, ts = 0, anchor = f->ts[negation->anchor];
        if (!negation->cut) {
            level->open |= UINT64_C(1) << i;
            continue;
        }
        int backward = negation->cut == 1;
        if (!nearest_event(source, f->key, backward ? lo + 1 : anchor + 1, backward ? anchor - 1 : hi - 1, backward,
                           &ref, &ts))
            continue;
        if (!agrees(f, &negation->look, ref, ts))
            level->open |= UINT64_C(1) << i;
        else if (backward)
            lo = ts;
        else
            hi = ts;
    }
    walk(f->sources + look->source, key_of(f, look), lo, hi, &level->walk);
}

static int emit(Follow *f)
{
    for (int64_t i = 0; i < f->program->lasts; i++)
        if (killed(f, f->program->last + i))
            return 1;
    if (f->count == f->room) {
        npy_intp room = f->room ? 2 * f->room : 64;
        int64_t *more = realloc(f->found, (size_t)room * (size_t)f->width * sizeof *more);
        if (more == NULL) {
            f->short_of_memory = 1;
            return 0;
        }
        f->found = more;
        f->room = room;
    }
    const Program *program = f->program;
    int64_t *row = f->found + f->count++ * f->width;
    *row++ = f->seed - 1;
    for (int64_t i = 0; i < program->bound; i++) {
        *row++ = f->ref[program->bind[i]];
        *row++ = f->ts[program->bind[i]];
    }
    for (int64_t i = 0; i < program->moves; i++) {
        *row++ = f->ref[program->move[i].look.part];
        *row++ = f->ts[program->move[i].look.part];
    }
    return 1;
}

/* Fetch what the next seeds will look at first, in a range of time about them. */
static void foresee_look(Follow *f, const Look *look, const Range *range)
{
    const int64_t *from = NULL, *to = NULL;
    for (int64_t i = 0; i < f->program->bound; i++) {
        from = f->program->bind[i] == range->from ? f->seed_ts[i] + f->seed : from;
        to = f->program->bind[i] == range->to ? f->seed_ts[i] + f->seed : to;
    }
    if (!look->carried || from == NULL || to == NULL)
        return;
    int64_t lo[AHEAD], hi[AHEAD];
    npy_intp n = f->n - f->seed < AHEAD ? f->n - f->seed : AHEAD;
    for (npy_intp i = 0; i < n; i++) {
        lo[i] = from[i] + range->add_from;
        hi[i] = to[i] + range->add_to;
    }
    foresee_rows(f->sources + look->source, f->keys + f->seed, lo, hi, n);
}

static void foresee_seeds(Follow *f)
{
    const Program *program = f->program;
    for (int64_t i = 0; i < program->first.negations; i++)
        foresee_look(f, &program->first.negation[i].look, &program->first.negation[i].look.range);
    if (!program->moves)
        return;
    const Move *move = program->move;
    foresee_look(f, &move->look, &move->look.range);
    for (int64_t i = 0; i < move->negations; i++)
        if (move->negation[i].cut)
            foresee_look(f, &move->negation[i].look, &move->look.range);
}

/* Go on until `most` rows are found, or there are no more. */
static void follow_on(Follow *f, npy_intp most)
{
    const Program *program = f->program;
    while (f->count < most && !f->lost) {
        if (f->depth < 0) {
            if (f->seed == f->n)
                return;
            if (f->seed % AHEAD == 0)
                foresee_seeds(f);
            f->key = f->keys[f->seed];
            for (int64_t i = 0; i < program->bound; i++)
                bind(f, program->bind[i], f->seed_refs[i][f->seed], f->seed_ts[i][f->seed]);
            f->seed++;
            if (!stands(f, &program->first, UINT64_MAX))
                continue;
            if (!program->moves) {
                if (!emit(f))
                    return;
                continue;
            }
            f->depth = 0;
            enter(f);
        }
        const Move *move = program->move + f->depth;
        Level *level = f->level + f->depth;
        int64_t ref, ts;
        if (!next_event(f->sources + move->look.source, &level->walk, &ref, &ts)) {
            f->depth--;
            continue;
        }
        bind(f, move->look.part, ref, ts);
        if (!linked(f, &move->look) || !stands(f, move, level->open))
            continue;
        if (f->depth + 1 < program->moves) {
            f->depth++;
            enter(f);
        } else if (!emit(f))
            return;
    }
}

static void follow_done(Follow *f)
{
    if (f->sources)
        for (int64_t i = 0; i < f->program->sources; i++)
            source_done(f->sources + i);
    free(f->sources);
    free(f->latest);
    free(f->columns);
    free(f->found);
    Py_XDECREF(f->arguments);
    free(f);
}

static void follow_gone(PyObject *capsule)
{
    follow_done(PyCapsule_GetPointer(capsule, "latecomer.follow"));
}

/* The memory of an array that lies in one piece and that the caller keeps; `n` as in array(). */
static const void *lent(PyObject *given, int width, npy_intp *n)
{
    if (!PyArray_Check(given) || PyArray_NDIM((PyArrayObject *)given) != 1 ||
        PyArray_ITEMSIZE((PyArrayObject *)given) != width || !PyArray_IS_C_CONTIGUOUS((PyArrayObject *)given) ||
        (*n >= 0 && *n != PyArray_DIM((PyArrayObject *)given, 0))) {
        PyErr_Format(PyExc_TypeError, "a contiguous array of %zd %d-byte values is needed, not %R", (Py_ssize_t)*n, width,
                     given);
        return NULL;
    }
    *n = PyArray_DIM((PyArrayObject *)given, 0);
    return DATA(given);
}

/* The items of a tuple of so many (-1: any number); NULL: it is none. */
static PyObject **items(PyObject *given, Py_ssize_t wanted, const char *what)
{
    if (!PyTuple_Check(given) || (wanted >= 0 && PyTuple_GET_SIZE(given) != wanted)) {
        PyErr_Format(PyExc_TypeError, "a tuple of %zd %s is needed, not %R", wanted, what, given);
        return NULL;
    }
    return ((PyTupleObject *)given)->ob_item;
}

/* A column from (values, offsets or None, valid or None). */
static int column_of(PyObject *given, const int64_t *layout, Column *column)
{
    PyObject **part = items(given, 3, "parts of a column");
    npy_intp edges = -1;
    column->n = -1;
    column->kind = (enum Kind)layout[0];
    column->width = (int)layout[1];
    if (!part || !(column->values = lent(part[0], column->width, &column->n)))
        return 0;
    if (column->kind == TEXT) {
        if (!(column->offsets = lent(part[1], 8, &edges)))
            return 0;
        column->n = edges - 1;
    }
    return part[2] == Py_None || (column->valid = lent(part[2], 1, &column->n)) != NULL;
}

/* Places from (number, dense, sparse, numbers) or (number, dense, sparse, bytes, within, blocks, block bits, base). */
static int places_of(PyObject *given, Places *places)
{
    npy_intp plain = -1, within = -1, blocks = -1;
    int bits = PyTuple_Check(given) && PyTuple_GET_SIZE(given) == 8;
    PyObject **part = items(given, bits ? 8 : 4, "parts of places");
    if (!part || !integer(part[0], &places->number) || !integer(part[1], &places->dense) ||
        !integer(part[2], &places->sparse))
        return 0;
    if (!bits)
        return (places->plain = lent(part[3], 8, &plain)) && plain == places->sparse;
    places->size = -1;
    if (!(places->bytes = lent(part[3], 1, &places->size)))
        return 0;
    within = places->size;
    return (places->within = lent(part[4], 1, &within)) && (places->blocks = lent(part[5], 8, &blocks)) &&
           integer(part[6], &places->block) && integer(part[7], &places->base) && places->size <= blocks << places->block;
}

/* Sources, columns, places and seeds of a call. 0: not usable, or (`nothing`) without matches whatever the seeds. */
static int prepared(Follow *f, PyObject *const *args, int64_t bits, int *nothing)
{
    const Program *program = f->program;
    PyObject **sources = items(args[1], program->sources, "sources");
    PyObject **latest = sources ? items(args[9], program->sources, "times") : NULL;
    if (!latest || !(f->sources = calloc((size_t)program->sources + 1, sizeof *f->sources)) ||
        !(f->latest = calloc((size_t)program->sources + 1, sizeof *f->latest)))
        return 0;
    for (int64_t i = 0; i < program->sources; i++)
        if (!source_of(sources[i], bits, f->sources + i) || !integer(latest[i], f->latest + i))
            return 0;
    for (int64_t i = 0; i < program->moves; i++)
        if ((*nothing = nothing_in(f->sources + program->move[i].look.source)))
            return 0;
    PyObject **columns = items(args[3], program->columns, "columns");
    if (!columns || !(f->columns = calloc((size_t)program->columns + 1, sizeof *f->columns)))
        return 0;
    for (int64_t i = 0; i < program->columns; i++)
        if (!column_of(columns[i], program->layout + 2 * i, f->columns + i))
            return 0;
    PyObject **refs = items(args[6], program->bound, "seeds"), **ts = refs ? items(args[7], program->bound, "seeds") : NULL;
    f->n = -1;
    if (!ts || !places_of(args[4], &f->places) || !(f->keys = lent(args[5], 8, &f->n)))
        return 0;
    for (int64_t i = 0; i < program->bound; i++)
        if (!(f->seed_refs[i] = lent(refs[i], 8, &f->n)) || !(f->seed_ts[i] = lent(ts[i], 8, &f->n)))
            return 0;
    return 1;
}

static int told(PyObject *list, int64_t part, const int64_t *row, const Follow *f)
{
    PyObject *column = fresh(f->count, NPY_INT64);
    if (column == NULL)
        return 0;
    int64_t *out = DATA(column);
    for (npy_intp i = 0; i < f->count; i++)
        out[i] = row[i * f->width];
    return PyList_SetItem(list, part, column) == 0;
}

static PyObject *nones(int64_t n)
{
    PyObject *list = PyList_New(n);
    for (int64_t i = 0; list && i < n; i++)
        PyList_SET_ITEM(list, i, Py_NewRef(Py_None));
    return list;
}

/* What has been found so far, as (seeds, keys, refs, ts, rest); the follow is handed to `rest`, or done. */
static PyObject *piece(Follow *f, int64_t most)
{
    const Program *program = f->program;
    NPY_BEGIN_THREADS_DEF;
    NPY_BEGIN_THREADS;
    follow_on(f, most);
    NPY_END_THREADS;
    if (f->lost || f->short_of_memory) {
        if (f->lost)
            PyErr_SetString(PyExc_IndexError, "a reference is not in the log");
        else
            PyErr_NoMemory();
        follow_done(f);
        return NULL;
    }
    if (!f->count) {
        follow_done(f);
        Py_RETURN_NONE;
    }
    PyObject *seeds = fresh(f->count, NPY_INT64), *keys = fresh(f->count, NPY_UINT64), *rest = NULL, *result = NULL;
    PyObject *refs = nones(program->parts), *ts = nones(program->parts);
    int fine = seeds && keys && refs && ts;
    if (fine) {
        int64_t *own = DATA(seeds);
        uint64_t *out = DATA(keys);
        for (npy_intp i = 0; i < f->count; i++) {
            own[i] = f->found[i * f->width];
            out[i] = f->keys[own[i]];
        }
    }
    for (int64_t i = 0; fine && i < program->bound + program->moves; i++) {
        int64_t part = i < program->bound ? program->bind[i] : program->move[i - program->bound].look.part;
        fine = told(refs, part, f->found + 1 + 2 * i, f) && told(ts, part, f->found + 2 + 2 * i, f);
    }
    f->count = 0;
    if (fine && (f->depth >= 0 || f->seed < f->n)) {
        if ((rest = PyCapsule_New(f, "latecomer.follow", follow_gone)))
            result = PyTuple_Pack(5, seeds, keys, refs, ts, rest);
        else
            follow_done(f);
    } else {
        follow_done(f);
        if (fine)
            result = PyTuple_Pack(5, seeds, keys, refs, ts, Py_None);
    }
    Py_XDECREF(seeds);
    Py_XDECREF(keys);
    Py_XDECREF(refs);
    Py_XDECREF(ts);
    Py_XDECREF(rest);
    return result;
}

/* follow(program, sources, bits, columns, places, keys, refs, ts, most, latest) -> the first `most` matches or fewer, or None
 *
 * `latest` are times that no event of a source is later than. Seeds are rows of keys, and of refs and ts for each
 * component that the program says they bind. Matches are (numbers of their seeds, keys, references and times as a list
 * with None for components not bound, and what `resume` needs to go on, or None). */
static PyObject *follow(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    int64_t bits, most;
    if (!expects(count, 10) || !integer(args[2], &bits) || !integer(args[8], &most))
        return NULL;
    Program *program = PyCapsule_GetPointer(args[0], "latecomer.program");
    if (program == NULL)
        return NULL;
    Follow *f = calloc(1, sizeof *f);
    if (f == NULL)
        return PyErr_NoMemory();
    f->program = program;
    f->depth = -1;
    f->mask = (INT64_C(1) << (bits & 63)) - 1;
    f->width = 1 + 2 * (program->bound + program->moves);
    int nothing = 0;
    if (!prepared(f, args, bits, &nothing)) {
        follow_done(f);
        if (nothing)
            Py_RETURN_NONE;
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "a source, a column or a seed does not fit");
        return NULL;
    }
    if (!(f->arguments = PyTuple_New(10))) {
        follow_done(f);
        return NULL;
    }
    for (int i = 0; i < 10; i++)
        PyTuple_SET_ITEM(f->arguments, i, Py_NewRef(args[i]));
    return piece(f, most);
}

/* resume(rest, most) -> the next matches, as `follow` gives them; what was the rest is used up */
static PyObject *resume(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    int64_t most;
    if (!expects(count, 2) || !integer(args[1], &most))
        return NULL;
    Follow *f = PyCapsule_GetPointer(args[0], "latecomer.follow");
    if (f == NULL || PyCapsule_SetName(args[0], "latecomer.used") || PyCapsule_SetDestructor(args[0], NULL))
        return NULL;
    return piece(f, most);
}
