import pytest

from tally.errors import LedgerError
from tally.ledger import read_ledger

GROCERIES = """\
2024-03-01 Groceries
    expenses:food   12.50 EUR
    assets:cash
"""


def entries(text):
    return list(read_ledger(text.splitlines(keepends=True)))


def test_a_posting_without_amount_takes_the_rest():
    (entry,) = entries(GROCERIES)
    assert [(each.account, each.units) for each in entry.postings] == [
        ("expenses:food", 125_000),
        ("assets:cash", -125_000),
    ]


def test_an_entry_that_does_not_add_up_is_refused():
    with pytest.raises(LedgerError, match=r"line 1: the entry is off by 2\.00 EUR"):
        entries("2024-03-01 Odd\n    a  5 EUR\n    b  -3 EUR\n")


def test_two_postings_without_amount_are_refused():
    with pytest.raises(LedgerError, match="line 4"):
        entries(GROCERIES + "    assets:bank\n")
