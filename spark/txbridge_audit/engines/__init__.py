"""The engines: each brings the mentions of every transaction together, and has them judged."""
