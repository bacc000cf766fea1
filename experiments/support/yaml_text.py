"""The YAML value in a text, each key once. This module needs no other one that takes time to import."""

from __future__ import annotations

from collections.abc import Hashable

import yaml

from experiments.support.errors import InputError


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuses a duplicate key, of which YAML would take the last value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        keys = [key.value for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} twice", node.start_mark)
        return super().construct_mapping(node, deep)


def parse_yaml(text: str, source: str, what: str) -> object:
    """The YAML value in a text; InputError, which names `source` and the expected content `what`, where it has none."""
    try:
        return yaml.load(text, _UniqueKeyLoader)
    except RecursionError as error:
        raise InputError(source, "", "YAML that is nested too deeply", what) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}" if mark else ""
        problem = str(getattr(error, "problem", error)).removeprefix("found ")
        raise InputError(source, line, problem, "YAML, each key once") from error
