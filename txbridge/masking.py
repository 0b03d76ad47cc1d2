"""Masks secrets by their looks. What is printed, logged, raised, shown on a page or written to a report passes here.

A secret is known by what stands around it: a name that says so, a URL, the frame of a private key. Where that is not
clear, too much is masked: what is missing can be looked up in the configuration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "***"
#: Parts of the names of secrets: of Kafka's properties in C and Java, of databases' parameters, of OAuth.
_NAMES = r"passw(?:or)?d|passphrase|pwd|secret|token(?![\w.-])|(?:jaas|oauthbearer)\.config|key\.pem|keystore\.key"
#: Whatever is masked has one of these, in lower case. Most texts have none, and are not searched.
_HINTS = ("://", "private key", "passw", "passphrase", "pwd", "secret", "token", ".config", "key.pem", "keystore.key")
_KEY = re.compile(r"-----BEGIN [^-\n]*PRIVATE KEY.*?(?:-----END [^-\n]*-----|\Z)", re.DOTALL)
#: A name with its value: within quotes, or up to the end of the line, as a password may have spaces and escapes. Only
#: quotes or a name with several parts make a colon more than punctuation. Bounded, as texts of others may be long.
_NAMED = re.compile(
    rf"(?P<name>(?:(?:{_NAMES})[\w.-]{{0,40}}(?:\\*[\"']?\s?=|\\*[\"']\s?:)"
    rf"|(?<=[._])(?:{_NAMES})[\w.-]{{0,40}}(?: beginning at)?:)\s?+)"
    r"(?!\\*[\"']?\*\*\*(?![\w*]))"
    r"(?:(?P<quote>[\"'])(?:(?!(?P=quote)(?![^\s,;&)}\]\"']))[^\\\n])*+(?P=quote)|.+)",
    re.IGNORECASE,
)
_HIDDEN = rf"\g<name>\g<quote>{MASK}\g<quote>"
_URL = re.compile(r"(https?)?://(\S+)", re.IGNORECASE)
#: What may stand behind the ? of an address without parameters: they are masked, or this is a sentence or a quote.
_NO_QUERY = (MASK, *"\"')]},;\\")
#: A user, and a password that was cut off before its @: it is no port.
_CUT = re.compile(r"^([^:/\[]*:)(?!\*\*\*|\d{0,5}(?!\w))[^@]+$")


def masked(text: str) -> str:
    """The text with `***` in place of each secret: the value of a name, password and parameters of a URL, a key."""
    lower = text.lower()
    if not any(hint in lower for hint in _HINTS):
        return text
    return _NAMED.sub(_HIDDEN, _URL.sub(_without_credentials, _KEY.sub(MASK, text)))


def masked_values(content: Any) -> Any:
    """Dicts and lists with their texts masked, and in dicts all that has the name of a secret."""
    if isinstance(content, str):
        return masked(content)
    if isinstance(content, Mapping):
        return {
            name: MASK if value and re.search(_NAMES, str(name), re.IGNORECASE) else masked_values(value)
            for name, value in content.items()
        }
    return [masked_values(one) for one in content] if isinstance(content, list | tuple) else content


def _without_credentials(found: re.Match[str]) -> str:
    scheme, rest = found[1] or "", _CUT.sub(rf"\1{MASK}", _NAMED.sub(_HIDDEN, found[2]))
    place, mark, query = rest.partition("?")
    if "@" in query or rest.count("@") < found[2].count("@"):
        # The last @ may stand behind a password, or in a parameter.
        return f"{scheme}://{MASK}"
    user, at, host = place.rpartition("@")
    name, colon, _ = user.partition(":")
    if colon:
        place = f"{name}:{MASK}@{host}"
    elif at and scheme and "/" not in user:
        # With HTTP a user without a password is a token.
        place = f"{MASK}@{host}"
    return f"{scheme}://{place}{mark}{query if query.startswith(_NO_QUERY) else query and MASK}"
