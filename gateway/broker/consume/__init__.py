"""Reading durably: positions in the log, what is settled and why, deliveries again, and what ends in the dead letters."""
