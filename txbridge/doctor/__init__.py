"""Examination of a namespace: problems and their remedies. It changes nothing on the cluster."""
