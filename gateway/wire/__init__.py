"""The sans-IO toolbox: what every protocol is built from. No protocol's name, socket or clock in here."""
