"""Text from outside (names of files, models and data) as text that can only be read.

Characters that draw nothing, or turn the direction of what follows, are shown as signs of their own.
"""

import hashlib
import html
import unicodedata

_PICTURES = 0x2400  # the signs for U+0000 to U+001F stand here, in the same order
_DELETE = "\u2421"
LONGEST = 80


def visible(text: object) -> str:
    """With a sign in place of each character that cannot be seen, or that hides others."""
    return "".join(map(_sign, str(text)))


def escaped(text: object) -> str:
    """The same, for HTML: element content and quoted attributes."""
    return html.escape(visible(text), quote=True)


def file_name(text: object) -> str:
    """Letters, digits, dots and dashes only, of a name that may hold anything; not the same for two."""
    whole = str(text)
    plain = "".join(c if c.isascii() and (c.isalnum() or c in ".-") else "_" for c in whole)
    if plain == whole and len(plain) <= LONGEST:
        return plain
    digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:6]
    return f"{plain[:LONGEST]}-{digest}"


def _sign(c: str) -> str:
    if c < " ":
        return chr(_PICTURES + ord(c))
    if c == "\x7f":
        return _DELETE
    if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        return f"\u27eaU+{ord(c):04X}\u27eb"
    return c
