/* making.py as an extension module for the compiled build (setup.py). In Python, building a message spends most of its
   time in the calls of trivial functions. Where these take the fields by keyword only or by position only, a Maker takes
   either. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyTypeObject *model;
    PyObject *names;
    PyObject *defaults;
} Maker;
/* `defaults` maps each field, in order, to its default value, or to MISSING where the field is required. */

static PyTypeObject MakerType;
#define MISSING ((PyObject *)&MakerType)

static PyObject *fields_of(PyObject *names, PyObject *const *values) {
    Py_ssize_t count = PyTuple_GET_SIZE(names);
#if PY_VERSION_HEX < 0x030D0000
    PyObject *fields = _PyDict_NewPresized(count);
#else
    PyObject *fields = PyDict_New();
#endif
    for (Py_ssize_t place = 0; fields != NULL && place < count; place++) {
        if (PyDict_SetItem(fields, PyTuple_GET_ITEM(names, place), values[place]) < 0) {
            Py_CLEAR(fields);
        }
    }
    return fields;
}

static PyObject *fields_by_keyword(Maker *maker, PyObject *const *values, PyObject *keywords) {
    Py_ssize_t count = keywords == NULL ? 0 : PyTuple_GET_SIZE(keywords);
    PyObject *fields = PyDict_Copy(maker->defaults);
    for (Py_ssize_t place = 0; fields != NULL && place < count; place++) {
        PyObject *name = PyTuple_GET_ITEM(keywords, place);
        int known = PyDict_Contains(fields, name);
        if (known == 0) {
            PyErr_Format(PyExc_TypeError, "%s has no field %R", maker->model->tp_name, name);
        }
        if (known <= 0 || PyDict_SetItem(fields, name, values[place]) < 0) {
            Py_CLEAR(fields);
        }
    }
    PyObject *name, *value;
    Py_ssize_t place = 0;
    while (fields != NULL && PyDict_Next(fields, &place, &name, &value)) {
        if (value == MISSING) {
            PyErr_Format(PyExc_TypeError, "%s lacks the field %R", maker->model->tp_name, name);
            Py_CLEAR(fields);
        }
    }
    return fields;
}

static PyObject *message_of(PyTypeObject *model, PyObject *fields) {
    PyObject *message = model->tp_alloc(model, 0);
    if (message != NULL && PyObject_GenericSetDict(message, fields, NULL) < 0) {
        Py_CLEAR(message);
    }
    return message;
}

static PyObject *make(PyObject *self, PyObject *const *values, size_t nargsf, PyObject *keywords) {
    Maker *maker = (Maker *)self;
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    PyObject *fields;
    if (count == 0) {
        fields = fields_by_keyword(maker, values, keywords);
    } else if (count == PyTuple_GET_SIZE(maker->names) && (keywords == NULL || PyTuple_GET_SIZE(keywords) == 0)) {
        fields = fields_of(maker->names, values);
    } else {
        return PyErr_Format(PyExc_TypeError, "%s takes its %zd fields by keyword, or all by position; got %zd values",
                            maker->model->tp_name, PyTuple_GET_SIZE(maker->names), count);
    }
    PyObject *message = fields == NULL ? NULL : message_of(maker->model, fields);
    Py_XDECREF(fields);
    return message;
}

static void maker_dealloc(PyObject *self) {
    Maker *maker = (Maker *)self;
    Py_DECREF(maker->model);
    Py_DECREF(maker->names);
    Py_DECREF(maker->defaults);
    Py_TYPE(self)->tp_free(self);
}

static PyTypeObject MakerType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "protocol.messages.making.Maker",
    .tp_basicsize = sizeof(Maker),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_dealloc = maker_dealloc,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Maker, call),
};

static PyObject *default_of(PyObject *field) {
    PyObject *is_required = PyObject_CallMethod(field, "is_required", NULL);
    Py_XDECREF(is_required);
    if (is_required == NULL) {
        return NULL;
    }
    return is_required == Py_True ? Py_NewRef(MISSING) : PyObject_GetAttrString(field, "default");
}

static PyObject *defaults_of(PyObject *names, PyObject *fields) {
    PyObject *defaults = PyDict_New();
    for (Py_ssize_t place = 0; defaults != NULL && place < PyTuple_GET_SIZE(names); place++) {
        PyObject *name = PyTuple_GET_ITEM(names, place);
        PyObject *field = PyObject_GetItem(fields, name);
        PyObject *value = field == NULL ? NULL : default_of(field);
        if (value == NULL || PyDict_SetItem(defaults, name, value) < 0) {
            Py_CLEAR(defaults);
        }
        Py_XDECREF(field);
        Py_XDECREF(value);
    }
    return defaults;
}

static PyObject *maker(PyObject *module, PyObject *model) {
    if (!PyType_Check(model)) {
        return PyErr_Format(PyExc_TypeError, "maker takes a model class, not %R", model);
    }
    PyObject *fields = PyObject_GetAttrString(model, "model_fields");
    PyObject *names = fields == NULL ? NULL : PySequence_Tuple(fields);
    PyObject *defaults = names == NULL ? NULL : defaults_of(names, fields);
    Py_XDECREF(fields);
    Maker *made = defaults == NULL ? NULL : PyObject_New(Maker, &MakerType);
    if (made == NULL) {
        Py_XDECREF(names);
        Py_XDECREF(defaults);
        return NULL;
    }
    made->call = make;
    made->model = (PyTypeObject *)Py_NewRef(model);
    made->names = names;
    made->defaults = defaults;
    return (PyObject *)made;
}

static PyObject *remake(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    if (count != 2) {
        return PyErr_Format(PyExc_TypeError, "remake takes a message and its changes, got %zd values", count);
    }
    PyObject *before = PyObject_GenericGetDict(arguments[0], NULL);
    PyObject *fields = before == NULL ? NULL : PyDict_Copy(before);
    PyObject *message = NULL;
    if (fields != NULL && PyDict_Update(fields, arguments[1]) == 0) {
        message = message_of(Py_TYPE(arguments[0]), fields);
    }
    Py_XDECREF(before);
    Py_XDECREF(fields);
    return message;
}

static PyMethodDef functions[] = {
    {"maker", maker, METH_O, "See making.py. What it returns takes the fields by position or by keyword."},
    {"constructor", maker, METH_O, "See making.py."},
    {"remake", (PyCFunction)(void (*)(void))remake, METH_FASTCALL, "See making.py."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "protocol.messages.making",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit_making(void) {
    if (PyType_Ready(&MakerType) < 0) {
        return NULL;
    }
    return PyModule_Create(&definition);
}
