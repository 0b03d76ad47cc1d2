"""For Faust users: `faust -A txbridge.broker.app worker`. Settings: the file TXBRIDGE_CONFIG and TXBRIDGE_*."""

from __future__ import annotations

from txbridge.broker.faust_app import create_app
from txbridge.settings_sources import load_settings

app = create_app(load_settings({}, None))
