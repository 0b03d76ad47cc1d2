"""Scripts for the pages: the docs site, the state diagram and the prose linter."""
