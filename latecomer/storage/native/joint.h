/* A reading that the steps of several engines share: of one batch, which all of them see whole. Each takes the next piece of
 * rows until there are none left, and goes on when all are read. So no row is read twice, and nobody waits for an engine
 * that has not come: only for pieces that are being read.
 */

#define PIECE_ROWS 1024 /* of which one engine reads all */

#ifdef _MSC_VER
#include <intrin.h>
#define ADD(number, more) (_InterlockedExchangeAdd(number, more) + (more))
#else
#define ADD(number, more) __atomic_add_fetch(number, more, __ATOMIC_ACQ_REL)
#endif

typedef struct {
    ArrowArray array; /* the batch */
    Arena arena;
    Reading rows;
    int begun, plain;                /* plain: its rows are as they can be read */
    long pieces, taken, read, strange; /* strange: pieces in which they are not */
    PyThread_type_lock whole;        /* free when all pieces are read */
} Joint;

static void joint_gone(PyObject *capsule)
{
    Joint *joint = PyCapsule_GetPointer(capsule, "latecomer.joint");
    if (joint->array.release)
        joint->array.release(&joint->array);
    if (joint->whole)
        PyThread_free_lock(joint->whole);
    free(joint->arena.memory);
    free(joint);
}

/* What lies in a slot; NULL, with an exception: nothing. */
static ArrowArray *slot_of(PyObject *given, Held *held)
{
    npy_intp room = -1;
    ArrowArray *slot = array(given, 8, &room, held);
    if (slot && (room * 8 < (npy_intp)sizeof *slot || !slot->release)) {
        PyErr_SetString(PyExc_TypeError, "a slot is needed with rows in it");
        return NULL;
    }
    return slot;
}

/* joint(slot) -> what step() takes in place of a slot, to read with others what lies in this one */
static PyObject *joint(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Held held = {{0}, 0};
    if (!expects(count, 1))
        return NULL;
    ArrowArray *slot = slot_of(args[0], &held);
    Joint *made = slot ? calloc(1, sizeof *made) : NULL;
    PyObject *capsule = NULL;
    if (slot && made == NULL)
        PyErr_NoMemory();
    else if (slot && !(made->whole = PyThread_allocate_lock()))
        PyErr_NoMemory();
    else if (slot && (capsule = PyCapsule_New(made, "latecomer.joint", joint_gone))) {
        made->array = *slot;
        slot->release = NULL;
    }
    if (capsule == NULL && made) {
        if (made->whole)
            PyThread_free_lock(made->whole);
        free(made);
    }
    let_go(&held);
    return capsule;
}

/* Whoever comes first says how rows are read, under the interpreter's lock. 0, with an exception: another one reads them
 * otherwise, or there is no memory. */
static int joint_begins(Joint *joint, const Plan *plan, const ArrowSchema *schema, int64_t first)
{
    Reading *to = &joint->rows;
    if (joint->begun) {
        int alike = to->columns == plan->reading.columns && to->first == first && to->types == plan->reading.types;
        for (npy_intp i = 0; alike && joint->plain && i < to->columns; i++)
            alike = to->fields[i].role == plan->roles[i];
        if (!alike)
            PyErr_SetString(PyExc_ValueError, "engines read a batch together that they do not read alike");
        return alike;
    }
    size_t n = (size_t)joint->array.length, columns = (size_t)plan->reading.columns;
    *to = plan->reading;
    to->n = joint->array.length;
    to->first = first;
    joint->arena.memory = joint->arena.at = malloc((n + 2) * 8 * (5 + columns) + (columns + 1) * sizeof *to->fields + 64);
    if (joint->arena.memory == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    joint->begun = 1;
    joint->plain = reading_begins(plan, to, &joint->arena, schema, &joint->array);
    joint->pieces = joint->plain ? (long)((to->n + PIECE_ROWS - 1) / PIECE_ROWS) : 0;
    if (joint->pieces)
        PyThread_acquire_lock(joint->whole, WAIT_LOCK);
    return 1;
}

/* Read what the others have not begun, and wait for what they have; 0: the rows are out of the ordinary. */
static int step_joins(Step *step, Joint *joint)
{
    Reading *rows = &joint->rows;
    if (!joint->plain)
        return 0;
    for (long piece; (piece = ADD(&joint->taken, 1) - 1) < joint->pieces;) {
        npy_intp begin = piece * PIECE_ROWS, n = rows->n - begin < PIECE_ROWS ? rows->n - begin : PIECE_ROWS;
        if (!read_rows_from(rows, begin, n))
            ADD(&joint->strange, 1);
        if (ADD(&joint->read, 1) == joint->pieces)
            PyThread_release_lock(joint->whole);
    }
    if (ADD(&joint->read, 0) < joint->pieces) {
        PyThread_acquire_lock(joint->whole, WAIT_LOCK);
        PyThread_release_lock(joint->whole);
    }
    step->rows = *rows;
    step->times = times_of(rows);
    return !joint->strange && step_keeps(step);
}
