import sys

from tally.errors import LedgerError
from tally.ledger import read_ledger
from tally.report import balance, register

USAGE = "usage: python3 -m tally balance | check | register ACCOUNT < LEDGER"


def main(args: list[str]) -> int:
    try:
        match args:
            case ["balance"]:
                lines = balance(read_ledger(sys.stdin))
            case ["check"]:
                lines = [f"{sum(1 for _ in read_ledger(sys.stdin))} entries, all in balance"]
            case ["register", account]:
                lines = register(read_ledger(sys.stdin), account)
            case _:
                print(USAGE, file=sys.stderr)
                return 2
    except LedgerError as problem:
        print(problem, file=sys.stderr)
        return 1
    for line in lines:
        print(line)
    return 0


sys.exit(main(sys.argv[1:]))
