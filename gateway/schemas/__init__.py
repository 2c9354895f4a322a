"""The kinds of schema: whether a message fits one, and whether one version suits who knew the one before."""
