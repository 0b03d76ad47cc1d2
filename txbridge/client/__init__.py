"""The client: prepare a half message, run the local transaction, decide, answer checks. Import it from `txbridge`."""
