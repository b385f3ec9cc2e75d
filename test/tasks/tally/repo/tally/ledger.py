"""Entries and postings, and how they are read."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date

from tally.errors import LedgerError
from tally.money import format_amount, parse_amount

_HEAD = re.compile(r"(?P<date>\d{4}-\d{2}-\d{2})\s+(?P<what>\S.*)")
_ACCOUNT = re.compile(r"[a-z][a-z0-9-]*(?::[a-z0-9-]+)*")


@dataclass
class Posting:
    account: str
    units: int
    currency: str


@dataclass
class Entry:
    line: int
    day: date
    what: str
    postings: list[Posting] = field(default_factory=list)
    #: The account whose amount was left out, and the line it stands in.
    open_account: tuple[str, int] | None = None


def read_ledger(lines: Iterable[str]) -> Iterator[Entry]:
    entry: Entry | None = None
    for number, raw in enumerate(lines, start=1):
        text = raw.rstrip()
        if not text or text.lstrip()[0] in ";#":
            continue
        if text[0].isspace():
            if entry is None:
                raise LedgerError(number, "a posting before the first entry")
            _read_posting(entry, number, text.strip())
            continue
        if entry is not None:
            yield _balanced(entry)
        entry = _read_head(number, text)
    if entry is not None:
        yield _balanced(entry)


def _read_head(number: int, text: str) -> Entry:
    found = _HEAD.fullmatch(text)
    if found is None:
        raise LedgerError(number, "expected a date and a description")
    try:
        day = date.fromisoformat(found["date"])
    except ValueError as problem:
        raise LedgerError(number, f"{found['date']} is no date") from problem
    return Entry(number, day, found["what"])


def _read_posting(entry: Entry, number: int, text: str) -> None:
    account, _, amount = text.partition("  ")
    if _ACCOUNT.fullmatch(account) is None:
        raise LedgerError(number, f"{account!r} is no account")
    if not amount.strip():
        if entry.open_account is not None:
            raise LedgerError(number, "only one posting of an entry may leave its amount out")
        entry.open_account = (account, number)
        return
    try:
        units, currency = parse_amount(amount)
    except ValueError as problem:
        raise LedgerError(number, str(problem)) from problem
    entry.postings.append(Posting(account, units, currency))


def _balanced(entry: Entry) -> Entry:
    left: dict[str, int] = defaultdict(int)
    for posting in entry.postings:
        left[posting.currency] += posting.units
    if entry.open_account is not None:
        account, _ = entry.open_account
        currency = entry.postings[0].currency
        entry.postings.append(Posting(account, -sum(left.values()), currency))
        return entry
    for currency, units in sorted(left.items()):
        if units != 0:
            raise LedgerError(entry.line, f"the entry is off by {format_amount(units, currency)}")
    return entry
