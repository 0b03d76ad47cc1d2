"""An examination of a namespace: what is wrong, and what to do about it. Nothing is changed on the cluster."""
