"""Parts of URLs. Light, beside `http.py`: a call that only names an index loads no HTTP client."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit


def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL, in small letters and without credentials: `https://pypi.org`."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2].lower()}"


def strip_login(url: str) -> str:
    """Return the URL for display, without credentials and without the query, which may contain a signature."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
