"""Scripts for the pages: the docs site and the state diagram."""
