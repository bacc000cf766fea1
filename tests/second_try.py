"""Tests on Ray and on a real Kafka that fail are run once more, each alone, when all other tests are done.

These tests run real processes against real clocks, several tests at a time, on machines that others use too. One that
fails and then passes alone is *flaky*: it does not fail the run, but its first failure is printed in full and counted,
so that its cause can be found. One that fails twice fails. Tests of other kinds get no second try, and neither does a
run that was interrupted or gave up at `--maxfail`.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

FOLDERS = ("tests/ray/", "tests/kafka/")
OPTION = "--once"


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, action="store_true", help="Do not run failed tests of real processes once more.")


class SecondTry:
    """The pytest plugin, for the process that reports (with pytest-xdist, not for its workers). Register it before
    plugins whose `pytest_sessionfinish` may fail the run: it runs before theirs if both are `trylast`.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._ran = False
        self.flaky: dict[str, list[pytest.TestReport]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._ran = self._ran or report.nodeid.startswith(FOLDERS)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        stopped = session.shouldfail or session.shouldstop
        if reporter is None or stopped or session.exitstatus != pytest.ExitCode.TESTS_FAILED:
            return
        for test, reports in _failures(reporter).items():
            reporter.write_line(f"\n{test}: failed, is run once more, alone")
            done = _run_alone(test, self._config)
            if done.returncode == pytest.ExitCode.OK:
                self.flaky[test] = reports
            else:
                reports[0].sections.append(("second try, alone", done.stdout))
        for report in (report for reports in self.flaky.values() for report in reports):
            category = "failed" if report.when == "call" else "error"
            reporter.stats[category].remove(report)
            reporter.stats.setdefault("flaky", []).append(report)
        if self.flaky and not reporter.stats.get("failed") and not reporter.stats.get("error"):
            session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for test, reports in self.flaky.items():
            terminalreporter.section(f"flaky: {test}", sep="_", yellow=True)
            for report in reports:
                terminalreporter.line(report.longreprtext)
                for title, text in report.sections:
                    terminalreporter.section(title, sep="-")
                    terminalreporter.line(text)
        if self._ran:
            terminalreporter.line(f"flaky tests (failed, then passed when run alone): {len(self.flaky)}")


def _failures(reporter: pytest.TerminalReporter) -> dict[str, list[pytest.TestReport]]:
    """The reports of failed tests on real processes, by the test's node id."""
    found: dict[str, list[pytest.TestReport]] = {}
    for report in (*reporter.stats.get("failed", ()), *reporter.stats.get("error", ())):
        if report.nodeid.startswith(FOLDERS):
            found.setdefault(report.nodeid, []).append(report)
    return found


def _run_alone(test: str, config: pytest.Config) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", test, OPTION, "-p", "no:cacheprovider"]
    return subprocess.run(
        command, cwd=config.rootpath, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
