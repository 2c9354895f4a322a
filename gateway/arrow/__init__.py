"""The log as Arrow columns, for the pipeline and for those who read ranges over HTTP."""
