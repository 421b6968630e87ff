"""The `runlane` command: one small file per verb, loaded when it is called."""
