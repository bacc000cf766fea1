/* How compiled modules read an attribute; setup.py has it included before what mypyc writes.

   A message is a pydantic model. Its class has a __getattr__ for what is not found, and so each of its fields is read
   through the general machinery of a class with that hook, which searches the class three times before it looks into the
   dict in which the fields lie. No name of a field is one of the class too, so here the dict is asked first, and
   everything that it does not have is left to Python. */

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

static PyObject *get_attribute(PyObject *object, PyObject *name) {
    PyTypeObject *metaclass = model_metaclass();
    if (metaclass == NULL) {
        return NULL;
    }
    if (Py_TYPE(Py_TYPE(object)) == metaclass) {
        PyObject *fields = PyObject_GenericGetDict(object, NULL);
        if (fields == NULL) {
            return NULL;
        }
        PyObject *value = PyDict_GetItemWithError(fields, name);
        Py_XINCREF(value);
        Py_DECREF(fields);
        if (value != NULL || PyErr_Occurred()) {
            return value;
        }
    }
    return PyObject_GetAttr(object, name);
}

#define PyObject_GetAttr get_attribute
