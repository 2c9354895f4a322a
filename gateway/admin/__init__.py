"""The admin API: everything that the console, the command line and other programs ask of a running gateway, over HTTP."""
