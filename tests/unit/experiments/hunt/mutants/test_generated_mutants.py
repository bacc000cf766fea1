"""Generated mutants: processes with a mutated module and their limits, samples, verdicts, and the committed list."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from typer.testing import CliRunner

from experiments.cli.main import application
from experiments.hunt.mutants.generated import campaign
from experiments.hunt.mutants.generated.campaign import HUNTS, QUORUM, SWARM, violation
from experiments.hunt.mutants.generated.process import run_mutated
from experiments.hunt.mutants.mutation import WRITTEN, Mutation, Site, line_number_of, path_of, sites
from experiments.hunt.mutants.registry import all_mutants
from experiments.support.errors import InputError
from tests.yaml_rows import rows

pytestmark = pytest.mark.slow

EPOCHS = "protocol.log.epochs"
SAMPLED = 3
"""How many mutants of the committed list a run of the tests executes."""


def site_of(module: str, line: str) -> Site:
    found = sites(module, path_of(module).read_text(encoding="utf-8"))
    return next(site for site in found if site.mutation.line == line)


# -- processes ---------------------------------------------------------------------------------------------------------

SHOWS = "import sys, protocol.log.epochs as e; print(e.LeaderEpochCache(()).end_offset_for(3, 7)); sys.exit(3)"


def test_a_process_runs_the_mutated_module_and_leaves_its_source_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shows.py").write_text(SHOWS, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    before = path_of(EPOCHS).read_text(encoding="utf-8")
    mutation = Mutation(
        EPOCHS, "LeaderEpochCache.end_offset_for", "if index == 0:", WRITTEN, "index == 0", "index == 9"
    )
    ended = run_mutated(mutation, 30, ["shows"])
    assert (ended.code, ended.ran_out_of_time) == (1, False)
    assert "IndexError" in ended.output
    assert path_of(EPOCHS).read_text(encoding="utf-8") == before


def test_a_mutant_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shows.py").write_text(SHOWS, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    line = "known = tuple(entries)"
    loop = Mutation(EPOCHS, "LeaderEpochCache.__init__", line, WRITTEN, line, "while True: pass")
    assert run_mutated(loop, 1, ["shows"]).ran_out_of_time


def test_a_mutation_that_does_not_apply_runs_nothing() -> None:
    with pytest.raises(InputError, match="a mutation that"):
        run_mutated(Mutation(EPOCHS, "LeaderEpochCache.clear", "no such line", "statement", "a", "b"), 30, ["shows"])


# -- samples and tests -------------------------------------------------------------------------------------------------


def test_a_sample_depends_on_its_seed_and_takes_every_operator() -> None:
    first, again, other = (campaign.sample(10, seed, "protocol.broker.leader") for seed in (1, 1, 2))
    assert [site.mutation for site in first] == [site.mutation for site in again]
    assert [site.mutation for site in first] != [site.mutation for site in other]
    assert {site.mutation.operator for site in first} == {"argument", "boundary", "comparison", "constant", "statement"}
    assert [site.line_number for site in first] == sorted(site.line_number for site in first)


def test_the_tests_of_a_module_are_those_that_import_it_and_those_of_its_folder() -> None:
    found = campaign.tests_of("protocol.log.epochs")
    assert found[0] == "tests/unit/protocol/log/test_epochs.py"
    assert "tests/unit/protocol/log/test_retention.py" in found
    assert "tests/unit/protocol/nodes/test_broker_node.py" not in found
    by_helper = "tests/unit/protocol/broker/test_partition_leader.py"
    near = campaign.tests_of("protocol.broker.leader")
    assert by_helper in near
    assert set(near).isdisjoint(campaign.other_tests(near))


def test_the_hunts_find_nothing_without_a_mutation() -> None:
    assert (violation(SWARM, 0), violation(QUORUM, 0)) == (None, None)


# -- verdicts ----------------------------------------------------------------------------------------------------------


def test_verdicts_name_the_stage_and_the_test(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One mutant is noticed by a test; the other, whose tests are those of another module, by no seed of the hunts."""
    test = "tests/unit/protocol/log/test_epochs.py"
    monkeypatch.setattr(campaign, "tests_of", lambda module: [test])
    monkeypatch.setattr(campaign, "other_tests", lambda near: near)
    unreached = campaign.sample(1, 0, "protocol.controller.administration")
    drawn = [site_of(EPOCHS, "self._epochs.append(epoch)"), *unreached]
    noticed, survivor = campaign.generated_verdicts(drawn, swarm=1, jobs=2)
    assert (noticed.stage, str(noticed.by).partition("::")[0]) == (campaign.TESTS, test)
    assert (survivor.stage, survivor.by) == (None, None)
    campaign.save_killed([noticed, survivor], tmp_path / "list.jsonl")
    monkeypatch.setattr(campaign, "KEPT", tmp_path / "list.jsonl")
    assert campaign.kept_mutants() == [campaign.KeptMutant(noticed.mutation, str(noticed.by))]
    rows = campaign.table_per_module([noticed, survivor, noticed])
    assert rows[1] == (EPOCHS, "2", "2", "0", "0", "0")
    assert len({*HUNTS}) == 2


def test_the_swarm_alone_notices_what_a_test_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "noticed_by_tests", lambda *_: pytest.fail("no test runs"))
    drawn = [site_of("protocol.client.partition_sender", "self._context = context")]
    [found] = campaign.generated_verdicts(drawn, swarm=1, jobs=1, stages=(SWARM,))
    assert (found.stage, found.by) == (SWARM, "seed 0: AttributeError")


def test_a_mutant_without_tests_is_refused() -> None:
    mutation = site_of(EPOCHS, "self._epochs.append(epoch)").mutation
    with pytest.raises(RuntimeError, match=r"no test of .* ran"):
        campaign.noticed_by_tests(mutation, ["tests/unit/protocol/log/test_epochs.py", "-k", "no_such_test"])


# -- the committed list ------------------------------------------------------------------------------------------------


def test_all_kept_mutants_apply_and_differ() -> None:
    kept = [mutant.mutation for mutant in campaign.kept_mutants()]
    assert len(set(kept)) == len(kept)
    assert len(kept) + len(all_mutants()) >= 200
    assert all(line_number_of(mutation) > 0 for mutation in kept)


@pytest.mark.parametrize("index", range(SAMPLED))
def test_a_sample_of_the_kept_mutants_is_noticed_by_the_tests_that_the_list_names(index: int) -> None:
    kept = Random(7).sample(campaign.kept_mutants(), SAMPLED)[index]
    assert str(campaign.noticed_by_tests(kept.mutation, [kept.by])).startswith(kept.by)


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_tests_a_sample_of_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "tests_of", lambda module: ["tests/unit/protocol/log/test_epochs.py"])
    monkeypatch.setattr(campaign, "other_tests", lambda near: near)
    arguments = ["--generated", "1", "--seed", "3", "--module", "protocol/log/epochs.py", "--swarm", "1", "--json"]
    result = CliRunner().invoke(application(), ["mutants", *arguments])
    [found] = json.loads(result.stdout)
    assert found["place"].startswith("protocol/log/epochs.py:")
    assert result.exit_code == (0 if found["killed"] else 1)


@pytest.mark.parametrize(("arguments", "complaint"), rows(__file__, "wrong-options.yaml"))
def test_options_that_do_not_go_together_are_refused(arguments: list[str], complaint: str) -> None:
    result = CliRunner().invoke(application(), ["mutants", *arguments])
    assert isinstance(result.exception, InputError)
    assert str(result.exception).startswith(complaint)
