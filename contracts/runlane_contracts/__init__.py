"""What crosses a process boundary: facts, previews, commands, cursors, subjects, streams and their names."""
