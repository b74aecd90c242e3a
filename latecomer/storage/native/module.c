/* The compiled kernels: the inner loops of storage, one row at a time where NumPy needs whole columns.
 *
 * Rule: every function here has a twin in `twins/`, written in NumPy, that says what it means (those of `follow`, `follow_each`,
 * `read_rows`, `write_changes` and `step` are the roads in NumPy and Arrow of `runtime/`); tests compare the two. Arguments are
 * one-dimensional arrays of 64-bit values unless said otherwise; a wrong shape or width raises
 * TypeError, and no function writes to an argument, except the tables of an id index, sieves, a run that is merged
 * some events at a time, and what a step adds to. Nothing here keeps state, but for the events of a Recent, the
 * matches of a Waiting, and, while several engines read a batch together, its rows.
 * Loops over many rows run without the interpreter's lock.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/arrayobject.h>

#define GOLDEN UINT64_C(0x9E3779B97F4A7C15)
#define M1 UINT64_C(0xBF58476D1CE4E5B9)
#define M2 UINT64_C(0x94D049BB133111EB)
#define MOST_ARRAYS 16

#if defined(__GNUC__) || defined(__clang__)
#define PREFETCH(address) __builtin_prefetch(address)
#else
#define PREFETCH(address)
#endif

#include "arrays.h"
#include "span.h"
#include "recent.h"
#include "filters.h"
#include "hashes.h"
#include "ids.h"
#include "intake.h"
#include "output.h"
#include "payload.h"
#include "source.h"
#include "runs.h"
#include "conditions.h"
#include "program.h"
#include "follow.h"
#include "calls.h"
#include "answers.h"
#include "waiting.h"
#include "plan.h"
#include "step_rows.h"
#include "joint.h"
#include "step_log.h"
#include "step_stores.h"
#include "step_waits.h"
#include "step_answers.h"
#include "step.h"

#define METHOD(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}

static PyMethodDef methods[] = {
    METHOD(scramble),     METHOD(combine),  METHOD(hash_texts),  METHOD(text_words),   METHOD(text_numbers),
    METHOD(match_digits), METHOD(put),      METHOD(take_out),    METHOD(carry),        METHOD(arrange),      METHOD(arrange_each),
    METHOD(merge),        METHOD(merge_on), METHOD(join),        METHOD(nearest),      METHOD(equal_words),
    METHOD(equal_texts),  METHOD(reached),  METHOD(below),  METHOD(fuse),        METHOD(fuse_build),   METHOD(sift),
    METHOD(sow),          METHOD(held),     METHOD(ranks),       METHOD(pick),         METHOD(judge),
    METHOD(program),      METHOD(follow),   METHOD(follow_each), METHOD(resume),       METHOD(read_rows),
    METHOD(write_changes), METHOD(plan),    METHOD(step),        METHOD(joint),
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_compiled", "Compiled kernels of storage.", 0, methods};

PyMODINIT_FUNC PyInit__compiled(void)
{
    import_array();
    PyObject *made = PyModule_Create(&module);
    if (made == NULL || PyModule_AddType(made, &SpanType) < 0 || PyModule_AddType(made, &RecentType) < 0 ||
        PyModule_AddType(made, &WaitingType) < 0)
        Py_CLEAR(made);
    return made;
}
