class LedgerError(Exception):
    """Something is wrong with the ledger; `line` says where, counted from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"line {line}: {message}")
        self.line = line
