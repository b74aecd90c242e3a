/* The log of a step: whether it takes the rows, whose ids are not known, and the rows behind its end. */

/* Bytes of texts of the rows that are kept. */
static int64_t bytes_kept(const Step *step, const Field *field)
{
    const int32_t *starts = field->values;
    int64_t bytes = 0;
    if (step->known == step->rows.n)
        return starts[step->rows.n] - starts[0];
    for (npy_intp i = 0; i < step->known; i++)
        bytes += starts[step->row[i] + 1] - starts[step->row[i]];
    return bytes;
}

/* Whether a span takes so many values of this width, perhaps after it has made room; 0, perhaps with an exception. */
static int makes_room(Span *span, npy_intp n, npy_intp width)
{
    if (span_takes(span, n, width))
        return 1;
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *made = PyObject_CallMethod((PyObject *)span, "reserve", "n", (Py_ssize_t)n);
    int fine = made != NULL && span_takes(span, n, width);
    Py_XDECREF(made);
    PyGILState_Release(state);
    return fine;
}

/* Whether the log takes the rows; 0, perhaps with an exception: not as it is. */
static int step_fits(const Step *step)
{
    const Plan *plan = step->plan;
    npy_intp n = step->known;
    if (!makes_room(plan->ts, n, 8) || !makes_room(plan->types, n, 4) || !makes_room(plan->content, n, 8))
        return 0;
    for (npy_intp i = 0; i < plan->columns; i++) {
        const Kept *kept = plan->column + i;
        if (kept->offsets == NULL ? !makes_room(kept->values, n, kept->width)
                                  : !makes_room(kept->offsets, n, 8) ||
                                        !makes_room(kept->values, (npy_intp)bytes_kept(step, step->rows.fields + kept->field), 1))
            return 0;
        if (kept->valid && !makes_room(kept->valid, n, 1))
            return 0;
    }
    return 1;
}

/* How others see a column of the log when it has so many more rows. */
static Column column_with(const Kept *kept, npy_intp more)
{
    Column column = {.kind = (enum Kind)kept->kind, .width = kept->width, .values = span_first(kept->values)};
    if (kept->offsets) {
        column.offsets = (const int64_t *)span_first(kept->offsets);
        column.n = span_length(kept->offsets) - 1 + more;
        column.first = (const char *)column.offsets;
        column.step = 8;
    } else {
        column.n = span_length(kept->values) + more;
        column.words = kept->kind <= FLOATING && kept->width == 8 ? (const int64_t *)column.values : NULL;
        column.first = column.values;
        column.step = kept->width;
    }
    if (kept->valid) {
        column.valid = (const npy_bool *)span_first(kept->valid);
        column.words = NULL;
    }
    return column;
}

/* Whether the log knows an event of this id hash among those with its mark: other hashes are other ids. */
static int id_is_known(const Step *step, const IdTable *table, uint64_t hash)
{
    const Plan *plan = step->plan;
    npy_intp at = id_home(id_mark(hash), table->size);
    if (plan->id < 0)
        return 1;
    Column column = column_with(plan->column + plan->id, 0);
    Bound bound = {.columns = &column};
    for (; table->words[at]; at = at + 1 == table->size ? 0 : at + 1) {
        if ((uint32_t)(table->words[at] >> 32) != id_mark(hash))
            continue;
        int64_t ref = id_ref(table, at, step->base), place = ref - (step->begin - span_length(plan->ts));
        if (place < 0) /* it is forgotten */
            continue;
        bind(&bound, 0, ref, 0, place);
        if ((ref < step->begin ? hash_of(&bound, 0, 0) : step->ids[ref - step->begin]) == hash)
            return 1;
    }
    return 0;
}

/* Enter the ids; 0: they are too many, one is known, or it is that of two rows, or there is an exception. */
static int step_enters(Step *step)
{
    npy_intp n = step->known;
    if (n > step->room)
        return 0;
    step->refs = piece_of_arena(&step->arena, 8 * (size_t)n);
    step->places = piece_of_arena(&step->arena, 8 * (size_t)n);
    step->ids = piece_of_arena(&step->arena, 8 * (size_t)n);
    int64_t *open = piece_of_arena(&step->arena, 8 * (size_t)n);
    for (npy_intp i = 0; i < n; i++) {
        step->refs[i] = step->begin + i;
        step->ids[i] = step->rows.ids[step->row[i]];
    }
    npy_intp left = enter_ids(step->tables, step->first, step->done, step->ids, step->refs, n, 1, open, step->places);
    if (left >= 0)
        step->entered = n - left;
    for (npy_intp i = 0; i < left; i++) {
        uint64_t hash = step->ids[open[i]];
        const IdTable *table = id_table_of(id_mark(hash), step->tables, step->first, step->done);
        if (id_is_known(step, table, hash))
            return 0;
        npy_intp at = id_place(table, id_mark(hash), 0);
        if (at < 0)
            left = -1;
        else
            step->places[step->entered++] = take_place(step->tables, table, at, id_mark(hash), step->refs[open[i]]);
    }
    if (left < 0)
        complain(PyExc_ValueError, "the table is full");
    return left >= 0;
}

#define KEEP(type)                                              \
    for (npy_intp i = 0; i < step->known; i++)                  \
        ((type *)to)[i] = ((const type *)from)[step->row[i]];   \
    break

/* Copy the rows' values of this width. */
static void keep_values(const Step *step, const void *from, int width, void *to)
{
    if (step->known == step->rows.n) {
        memcpy(to, from, (size_t)step->known * (size_t)width);
        return;
    }
    switch (width) {
    case 1: KEEP(uint8_t);
    case 2: KEEP(uint16_t);
    case 4: KEEP(uint32_t);
    default: KEEP(uint64_t);
    }
}

/* Unpack the rows' bits, 0 where they are null. */
static void keep_bits(const Step *step, const Field *field, char *to)
{
    for (npy_intp i = 0; i < step->known; i++) {
        int64_t row = step->row[i], bit = field->skip + row;
        to[i] = ((const uint8_t *)field->values)[bit >> 3] >> (bit & 7) & (!field->valid || is_valid(field, row));
    }
}

/* Say which of the rows' values are not null. */
static void keep_valid(const Step *step, const Field *field, char *to)
{
    for (npy_intp i = 0; i < step->known; i++)
        to[i] = !field->valid || is_valid(field, step->row[i]);
}

/* Copy the rows' texts. */
static void keep_texts(const Step *step, const Field *field, const Kept *kept)
{
    const int32_t *starts = field->values;
    int64_t *edge = (int64_t *)span_next(kept->offsets), at = edge[-1];
    char *to = span_next(kept->values);
    if (step->known == step->rows.n && starts[step->rows.n] > starts[0])
        memcpy(to, field->bytes + starts[0], (size_t)(starts[step->rows.n] - starts[0]));
    for (npy_intp i = 0; i < step->known; i++) {
        int64_t row = step->row[i], length = starts[row + 1] - starts[row];
        if (step->known < step->rows.n && length) {
            memcpy(to, field->bytes + starts[row], (size_t)length);
            to += length;
        }
        edge[i] = at += length;
    }
}

/* Write the rows behind the log's end, which stays where it is, and tell of its columns as if it had moved. */
static void step_logs(Step *step)
{
    const Plan *plan = step->plan;
    keep_values(step, step->times, 8, span_next(plan->ts));
    keep_values(step, step->rows.contents, 8, span_next(plan->content));
    int32_t *types = (int32_t *)span_next(plan->types);
    for (npy_intp i = 0; i < step->known; i++)
        types[i] = (int32_t)step->rows.numbers[step->row[i]];
    step->columns = piece_of_arena(&step->arena, (size_t)plan->columns * sizeof *step->columns);
    for (npy_intp i = 0; i < plan->columns; i++) {
        const Kept *kept = plan->column + i;
        step->columns[i] = column_with(kept, step->known);
        if (kept->valid)
            keep_valid(step, step->rows.fields + kept->field, span_next(kept->valid));
        if (kept->kind == BOOLEAN) {
            keep_bits(step, step->rows.fields + kept->field, span_next(kept->values));
            continue;
        }
        if (kept->offsets) {
            keep_texts(step, step->rows.fields + kept->field, kept);
            continue;
        }
        int64_t *numbers = (int64_t *)span_next(kept->values);
        if (kept->field < 0)
            for (npy_intp j = 0; j < step->known; j++)
                numbers[j] = step->rows.first + step->row[j];
        else
            keep_values(step, step->rows.fields[kept->field].values, kept->width, numbers);
    }
}
