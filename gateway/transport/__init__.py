"""The only package that awaits sockets."""
