"""A small plain-text ledger."""
