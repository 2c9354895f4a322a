"""The console: pages for people over the admin API, made on the server, kept alive by its events."""
