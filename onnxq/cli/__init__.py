"""The command line: one module a command, everything heavy imported inside it."""
