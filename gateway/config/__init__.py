"""Reading routes.yaml into a model, with every problem at once."""
