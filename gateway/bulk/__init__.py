"""The bulk API on the admin address: ranges of the log out, appends with an idempotence key in, dead letters again."""
