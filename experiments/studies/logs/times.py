"""Times of failure logs: ISO 8601, a format's own form, or a number of seconds, milliseconds or microseconds.

A number means nothing without its unit, so a log with numbers needs one, from its format or from the user. A time
without a zone is taken for UTC. Times are whole milliseconds afterwards, rounded down, since the Unix epoch or since
the record began.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_FLOOR, Decimal
from typing import Literal, get_args

from experiments.support.errors import InputError, shown

Unit = Literal["s", "ms", "us"]
UNITS: tuple[Unit, ...] = get_args(Unit)
_MS = {"s": Decimal(1000), "ms": Decimal(1), "us": Decimal("0.001")}
_NUMBER = re.compile(r"[+-]?\d{1,20}(\.\d{1,20})?([eE]\+?\d{1,2})?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST_MS = 253_402_300_800_000
"""The end of the year 9999."""
_EARLIEST_DATE_MS = 10**11
"""March 1973: no log is older, so that earlier times are not dates."""


@dataclass(frozen=True, slots=True)
class Clock:
    """How a log writes times: `unit` of numbers, None if it has none; `form` for strptime besides ISO 8601;
    `is_relative`: numbers count from the beginning of the record, and dates have no place in it."""

    unit: Unit | None = None
    form: str = ""
    is_relative: bool = False

    @property
    def allowed(self) -> str:
        """What a time may be, in words."""
        number = f"a number of {self.unit}" if self.unit else "with --unit a number of s, ms or us"
        since = "since the record began" if self.is_relative else "since 1970"
        dates = "" if self.is_relative else "an ISO 8601 time, "
        own = f"one such as {_EPOCH.strftime(self.form)}, " if self.form else ""
        return f"{dates}{own}{number} {since}" if self.unit or not self.form else f"{dates}{own}".rstrip(", ")

    def parse_ms(self, text: str, source: str, field: str) -> int:
        """Milliseconds of a time, rounded down. Raises InputError, with source and field, for text that is none."""
        found = self._number_ms(text) if _NUMBER.fullmatch(text) else self._date_ms(text)
        if found is None or found >= _LATEST_MS:
            raise InputError(source, field, shown(text), f"{self.allowed}, before the year 10000")
        return found

    def written(self, time_ms: int) -> str:
        """A time in words: ISO 8601, or milliseconds where it counts from the beginning of the record: with a relative
        clock, and before 1973."""
        if self.is_relative or time_ms < _EARLIEST_DATE_MS:
            return f"{time_ms} ms"
        return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat().replace("+00:00", "Z")

    def _number_ms(self, text: str) -> int | None:
        if self.unit is None:
            return None
        return int((Decimal(text) * _MS[self.unit]).to_integral_value(ROUND_FLOOR))

    def _date_ms(self, text: str) -> int | None:
        if self.is_relative:
            return None
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            try:
                found = datetime.strptime(text, self.form)
            except ValueError:
                return None
        found = found if found.tzinfo else found.replace(tzinfo=UTC)
        return (found - _EPOCH) // timedelta(milliseconds=1)
