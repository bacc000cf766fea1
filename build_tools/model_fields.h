/* Attribute access and isinstance in compiled modules; setup.py includes this file before the code of mypyc.

   A message is a pydantic model. Its class has a __getattr__ for missing attributes, so CPython reads each field through
   the slow path of a class with that hook, which searches the class three times before the instance's dict. No field has
   the name of a class attribute, so this code looks in the dict first, then in the class without its hook, and leaves
   everything else to Python.

   The metaclass has an __instancecheck__ in Python that looks for virtual subclasses. There are none. */

#include <Python.h>

static PyTypeObject *model_metaclass(void) {
    static PyTypeObject *found = NULL;
    if (found == NULL) {
        PyObject *module = PyImport_ImportModule("pydantic");
        PyObject *model = module == NULL ? NULL : PyObject_GetAttrString(module, "BaseModel");
        found = model == NULL ? NULL : Py_TYPE(model);
        Py_XDECREF(model);
        Py_XDECREF(module);
    }
    return found;
}

static PyObject *fields_of(PyObject *object) {
    Py_ssize_t place = Py_TYPE(object)->tp_dictoffset;
    if (place > 0) {
        PyObject *fields = *(PyObject **)((char *)object + place);
        Py_XINCREF(fields);
        if (fields != NULL) {
            return fields;
        }
    }
    return PyObject_GenericGetDict(object, NULL);
}

static PyObject *get_attribute(PyObject *object, PyObject *name) {
    PyTypeObject *metaclass = model_metaclass();
    if (metaclass == NULL) {
        return NULL;
    }
    if (Py_TYPE(Py_TYPE(object)) != metaclass) {
        return PyObject_GetAttr(object, name);
    }
    PyObject *fields = fields_of(object);
    if (fields == NULL) {
        return NULL;
    }
    PyObject *value = PyDict_GetItemWithError(fields, name);
    Py_XINCREF(value);
    Py_DECREF(fields);
    if (value != NULL || PyErr_Occurred()) {
        return value;
    }
    value = PyObject_GenericGetAttr(object, name);
    if (value != NULL || !PyErr_ExceptionMatches(PyExc_AttributeError)) {
        return value;
    }
    PyErr_Clear();
    return PyObject_GetAttr(object, name);
}

static int is_instance(PyObject *object, PyObject *class) {
    PyTypeObject *metaclass = model_metaclass();
    if (metaclass == NULL) {
        return -1;
    }
    if (PyTuple_CheckExact(class)) {
        int found = 0;
        for (Py_ssize_t place = 0; found == 0 && place < PyTuple_GET_SIZE(class); place++) {
            found = is_instance(object, PyTuple_GET_ITEM(class, place));
        }
        return found;
    }
    return Py_TYPE(class) == metaclass ? PyObject_TypeCheck(object, (PyTypeObject *)class)
                                       : PyObject_IsInstance(object, class);
}

#define PyObject_GetAttr get_attribute
#define PyObject_IsInstance is_instance
