"""An examination of a namespace: what is wrong, and what to do about it. Nothing is changed on the cluster."""

from txbridge.doctor.cluster_view import Questions
from txbridge.doctor.finding import Check, Finding, Level, Report
from txbridge.doctor.run import examine

__all__ = ["Check", "Finding", "Level", "Questions", "Report", "examine"]
