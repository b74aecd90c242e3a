/* Join orders as programs: made once of words, which `runtime/road.py` writes in the order in which they are read here,
 * and checked then, so that following them need not.
 */

#define MOST_BLOCKS 256 /* lists of a program */
#define MOST_TEXTS 4096 /* that its conditions name */

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
    int64_t texts;
    Text *text; /* that conditions name */
    uint64_t wanted[MOST_PARTS]; /* of each component: columns, of the first 64, that are read of its events */
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
        else if (op->code == TEXT_IS) {
            int64_t wide = MOST_PARTS * MOST_PARTS;
            fine = op->a >= 0 && op->a / wide < program->parts && op->a % wide < program->columns &&
                   program->layout[2 * (op->a % wide)] == TEXT && op->b >= 0 && op->b < program->texts;
        }
        if (op->code <= FLOAT || op->code == SAME_TEXT || op->code == TEXT_IS)
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

/* A column is read of a component's events. */
static void want(Program *program, int64_t part, int64_t column)
{
    if (column >= 0 && column < 64)
        program->wanted[part] |= UINT64_C(1) << column;
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
        if (reader->fine) {
            want(reader->program, look->part, own);
            want(reader->program, link->other, other);
        }
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
        for (const Op *op = look->test[i].ops; reader->fine && op < look->test[i].ops + look->test[i].count; op++)
            if (op->code == LOAD)
                want(reader->program, op->a, op->b);
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
    made->texts = next_word(&reader, 0, MOST_TEXTS);
    made->text = block(&reader, (size_t)made->texts, sizeof *made->text);
    for (int64_t i = 0; reader.fine && i < made->texts; i++) {
        made->text[i].length = next_word(&reader, 0, INT32_MAX);
        made->text[i].bytes = (const uint8_t *)next_words(&reader, (made->text[i].length + 7) / 8, 1);
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
