"""Own runs: decide commands, time and recovery."""
