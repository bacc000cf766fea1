"""The steps of scenario files, from the models in `experiments.scenarios.model`."""

from __future__ import annotations

from experiments.reference.markdown import block, code, field_table, first_paragraph, sections
from experiments.scenarios.expectation_model import Expectation
from experiments.scenarios.model import STEPS, ClusterModel, StepKind, TopicModel

TITLE = "Scenario steps"
SUMMARY = "every step of a scenario file with its fields, the cluster and its topics"


def page() -> str:
    return sections(
        "[How to write a scenario](../scenarios.md). A step is a mapping with one key, the kind of the step. Steps run "
        "one after another, each until it has finished. Unless a step says otherwise it runs on every engine and in "
        "every generation; what a generation does not have, its controller refuses (`expect_error`).",
        f"## {code('cluster')}",
        field_table(ClusterModel),
        f"## {code('topics')}",
        "A list of topics, which exist when the first step begins.",
        field_table(TopicModel),
        *(_section(kind, step) for kind, step in STEPS.items()),
    )


def _section(kind: str, step: StepKind) -> str:
    only = f"Only on {step.where}." if step.where else ""
    parts = [f"## {code(kind)}", f"{step.meaning} {only}".strip()]
    if kind == "wait":
        return sections(*parts, block("- wait: 5s", "yaml"))
    if kind == "await":
        parts.append("It takes the fields of `expect`, and:")
        return sections(*parts, field_table(step.fields, Expectation.model_fields))
    if kind == "expect":
        parts.append(first_paragraph(Expectation.__doc__))
    return sections(*parts, field_table(step.fields, {"fault", "targets"} if kind == "fault" else ()))
