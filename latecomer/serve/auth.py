"""Who may come in: the token, the cookie that stands for it in browsers, and what browsers are not to be talked into.

The rules:

* ``Host`` must be a name of this machine or one that was configured: a page from elsewhere whose name was made to point
  here (*DNS rebinding*) gets nothing.
* ``Origin``, where a browser sends one, must be the service itself: no other page can make it do anything.
* Where there is a token, everything but the page's empty files and the two probes needs it, as ``Authorization:
  Bearer`` or as the cookie, which only ``/?token=…`` sets. It is compared in constant time and is in no log or error.
"""

from __future__ import annotations

import hashlib
import hmac
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from latecomer.serve.config import is_loopback

if TYPE_CHECKING:
    from starlette.requests import Request

#: The name of the cookie.
COOKIE = "latecomer_token"
#: Paths that say nothing about the data.
PUBLIC = ("/healthz", "/readyz")
_LOCAL = ("localhost", "127.0.0.1", "::1")


class Gate:
    """Decides about requests.

    Args:
        token: what a client has to know; None: nothing.
        host: the address at which the service listens.
        names: further names under which it may be reached.
    """

    def __init__(self, token: str | None, host: str, names: tuple[str, ...] = ()) -> None:
        self._token = None if token is None else token.encode()
        # Far from loopback the token is what keeps strangers out; any name may lead here, unless some were given.
        self._names = {name.lower() for name in (*_LOCAL, host, *names)} if is_loopback(host) or names else None

    @property
    def locked(self) -> bool:
        """Whether a token is needed."""
        return self._token is not None

    def strange(self, request: Request) -> tuple[int, str] | None:
        """Why a request cannot be meant for this service, with a status; None where it can."""
        hosts = request.headers.getlist("host")
        if len(hosts) != 1:
            return 400, "one Host header is needed"
        name = _name(hosts[0])
        if self._names is not None and name not in self._names:
            return 421, f"the service is not called {name[:100]!r}: add the name to hosts in [serve] if it shall be"
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != hosts[0].lower():
            return 403, "pages of other sites may not use this service"
        if request.headers.get("sec-fetch-site") == "cross-site" and request.method not in ("GET", "HEAD"):
            return 403, "pages of other sites may not use this service"
        return None

    def knows(self, given: str | None) -> bool:
        """Whether this is the token."""
        expected = b"" if self._token is None else self._token
        return hmac.compare_digest((given or "").encode("utf-8", "surrogateescape"), expected) and self.locked

    def admits(self, request: Request) -> bool:
        """Whether a request comes from someone who knows the token."""
        if not self.locked:
            return True
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.knows(given.strip()):
            return True
        try:
            morsel = SimpleCookie(request.headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return morsel is not None and hmac.compare_digest(morsel.value.encode(), self.cookie().encode())

    def cookie(self) -> str:
        """The cookie's value, from which nobody learns the token."""
        return hmac.new(self._token or b"", b"latecomer page", hashlib.sha256).hexdigest()


def _name(host: str) -> str:
    """The name in a Host header, without its port.

    >>> _name("localhost:80"), _name("[::1]:80"), _name("::1")
    ('localhost', '::1', '::1')
    """
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host if host.count(":") > 1 else host.partition(":")[0]
