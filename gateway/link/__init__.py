"""From gateway to gateway, where several serve one log: what a client asks of a subscription goes to the one that has it."""
