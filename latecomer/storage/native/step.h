/* A step: a batch's whole way through an engine, from its Arrow buffers to the matches that it changes, in one call.
 *
 * Rule: it does what `runtime/express.py` does with the other kernels one after another, or, where anything stands against
 * that (a row that is out of the ordinary or late, an id that is known, a column without room), nothing at all: then
 * the answer is None, and the batch goes that road. So all that may fail comes before anything that others see is changed.
 */

/* Now others see it: the log's ends move, and the new events are among the others. Nothing of this can fail. */
static void step_ends(Step *step)
{
    const Plan *plan = step->plan;
    npy_intp n = step->known;
    plan->ts->end += n;
    plan->types->end += n;
    plan->content->end += n;
    for (npy_intp i = 0; i < plan->columns; i++) {
        const Kept *kept = plan->column + i;
        if (kept->offsets) {
            kept->values->end += bytes_kept(step, step->rows.fields + kept->field);
            kept->offsets->end += n;
        } else
            kept->values->end += n;
        if (kept->valid)
            kept->valid->end += n;
    }
    for (npy_intp i = 0; i < plan->stocks; i++)
        if (step->arrivals[i].n)
            recent_add(plan->stock[i].recent, step->arrivals + i);
}

/* Let go of what waits, as it is now, or (`undone`) as it was before. */
static void step_rests(const Step *step, int undone)
{
    for (npy_intp i = 0; step->waits && i < step->plan->askers; i++)
        step_waited(step->plan->asker + i, step->waits + i, undone);
}

/* step(plan, schema, slot, first, clock, delay, dense, tables, room) -> (the clock after all rows, how many are of a type that is
 * asked for, how many of these count here, by how much each row is behind the clock, answers) | None
 *
 * `schema` is the capsule of a record batch's schema, and `slot` holds its struct ArrowArray, which is released, or is what
 * joint() has made of it, and is read with the steps of others; `first` is the number of its first row; no row may be later than
 * `delay`; `dense` is the number of the log's first event, which has no gaps behind it; `tables` are the first six arguments
 * of put() and the least reference, and take `room` more. Answers are those of the queries that find something, in their order. None: nothing has
 * been done. */
static PyObject *step(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held held = {{0}, 0};
    Step step = {0};
    int64_t first, delay, dense;
    if (!expects(count, 9) || !(step.plan = PyCapsule_GetPointer(args[0], "latecomer.plan")) || !integer(args[3], &first) ||
        !integer(args[4], &step.clock) || !integer(args[5], &delay) || !integer(args[6], &dense) ||
        !integer(args[8], &step.room))
        return NULL;
    const ArrowSchema *schema = PyCapsule_GetPointer(args[1], "arrow_schema");
    PyObject **tables = schema ? items(args[7], 7, "parts of an index") : NULL;
    Joint *shared = PyCapsule_CheckExact(args[2]) ? PyCapsule_GetPointer(args[2], "latecomer.joint") : NULL;
    ArrowArray *rows = shared ? &shared->array : PyErr_Occurred() ? NULL : slot_of(args[2], &held);
    PyObject *behind = NULL, *answers = NULL, *result = NULL;
    if (tables == NULL || rows == NULL || !id_table(tables, &step.tables[0], &held) || !id_table(tables + 2, &step.tables[1], &held) ||
        !integer(tables[4], &step.first) || !integer(tables[5], &step.done) || !integer(tables[6], &step.base))
        goto done;
    step.before = step.clock;
    step.begin = dense + span_length(step.plan->ts);
    if (rows->length > MOST_ROWS || !(behind = fresh(rows->length, NPY_INT64)) || !(answers = PyList_New(0)) ||
        (shared && !joint_begins(shared, step.plan, schema, first)) || !step_opens(step.plan))
        goto done;
    int fine;
    NPY_BEGIN_THREADS_DEF;
    NPY_BEGIN_THREADS_THRESHOLDED(rows->length);
    fine = step_begins(&step, rows->length, first) &&
           (shared ? step_joins(&step, shared) : step_reads(&step, schema, rows)) &&
           step_judges(&step, delay, DATA(behind)) && step_shares(&step) && step_fits(&step) && step_enters(&step);
    if (fine)
        step_logs(&step);
    fine = fine && step_arranges(&step) && step_stores(&step) && step_shows(&step);
    for (npy_intp i = 0; fine && i < step.plan->askers; i++)
        fine = step_answers(&step, step.plan->asker + i, dense, answers);
    NPY_END_THREADS;
    if (fine)
        result = Py_BuildValue("LnnOO", (long long)step.clock, (Py_ssize_t)step.counted, (Py_ssize_t)step.known, behind,
                               answers);
    if (result)
        step_ends(&step);
done:
    step_rests(&step, result == NULL);
    step_forgets(step.plan);
    if (result == NULL)
        forget_ids(step.tables, step.places, step.entered);
    if (rows && !shared)
        rows->release(rows);
    Py_XDECREF(behind);
    Py_XDECREF(answers);
    free(step.arena.memory);
    free(step.runs);
    let_go(&held);
    if (result != NULL || PyErr_Occurred())
        return result;
    Py_RETURN_NONE;
}
