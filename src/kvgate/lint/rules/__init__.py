"""Rules of the linter, found by the registry: one concern a file, attribute RULE (one rule or a tuple)."""
