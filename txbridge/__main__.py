"""`python -m txbridge` is the command `txbridge`."""

from txbridge.cli.main import main

main()
