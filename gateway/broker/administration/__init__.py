"""What is looked after: topics, accounts and rights, schemas, dead letters, the cluster."""
