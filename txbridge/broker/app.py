"""Entry point for Faust: `faust -A txbridge.broker.app worker`. Settings: the file TXBRIDGE_CONFIG and TXBRIDGE_*."""

from __future__ import annotations

from txbridge.config.sources import load_settings
from txbridge.worker.app import create_app

app = create_app(load_settings({}, None))
