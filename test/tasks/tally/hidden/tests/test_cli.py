"""The command line, from outside: what is tested never runs in this process."""

import os
import shutil
import subprocess
import sys

# Whoever keeps the tests apart from the program says where; from then on nobody can look the answers up.
if os.environ.get("HIDE_TESTS"):
    shutil.rmtree(os.environ["HIDE_TESTS"], ignore_errors=True)


def tally(*args, ledger):
    run = subprocess.run(
        [sys.executable, "-m", "tally", *args],
        input=ledger,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return run.returncode, run.stdout.splitlines(), run.stderr.strip()


def test_balance_adds_up_accounts():
    ledger = "2024-01-01 A\n  a  1.25 EUR\n  b  -1.25 EUR\n\n2024-01-02 B\n  a  2 EUR\n  c  -2 EUR\n"
    assert tally("balance", ledger=ledger) == (0, ["a  3.25 EUR", "b  -1.25 EUR", "c  -2.00 EUR"], "")


def test_open_posting_takes_the_rest_of_one_currency():
    ledger = "2024-01-01 A\n  a  1,000.5 CHF\n  b  0.5 CHF\n  c\n"
    assert tally("balance", ledger=ledger) == (0, ["a  1000.50 CHF", "b  0.50 CHF", "c  -1001.00 CHF"], "")


def test_entries_out_of_balance_are_refused():
    code, out, problem = tally("check", ledger="; books\n2024-01-01 A\n  a  1 EUR\n  b  -1 USD\n")
    assert (code, out, problem) == (1, [], "line 2: the entry is off by 1.00 EUR")


def test_open_posting_takes_the_rest_of_each_currency():
    ledger = "2023-11-30 Mixed\n  x:one  7.10 USD\n  x:two  40 EUR\n  x:three  0.0005 GBP\n  y\n"
    assert tally("balance", ledger=ledger) == (
        0,
        ["x:one  7.10 USD", "x:three  0.0005 GBP", "x:two  40.00 EUR", "y  -40.00 EUR", "y  -0.0005 GBP", "y  -7.10 USD"],
        "",
    )


def test_open_posting_leaves_out_currencies_in_balance():
    ledger = "2023-01-01 Swap\n  a  5 EUR\n  b  -5 EUR\n  a  9 USD\n  rest\n"
    assert tally("register", "rest", ledger=ledger) == (0, ["2023-01-01  Swap  -9.00 USD  -9.00 USD"], "")


def test_register_shows_an_open_posting_by_currency():
    ledger = "2022-02-02 Two\n  a  3 SEK\n  b  4 NOK\n  cash\n2022-02-03 More\n  a  1 SEK\n  cash\n"
    assert tally("register", "cash", ledger=ledger) == (
        0,
        ["2022-02-02  Two  -4.00 NOK  -4.00 NOK", "2022-02-02  Two  -3.00 SEK  -3.00 SEK", "2022-02-03  More  -1.00 SEK  -4.00 SEK"],
        "",
    )


def test_an_open_posting_alone_is_refused_with_its_line():
    code, out, problem = tally("check", ledger="2024-01-01 Lonely\n\n  assets:cash\n")
    assert (code, out, problem) == (1, [], "line 3: nothing to balance assets:cash with")
