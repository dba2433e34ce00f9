"""An HTTP server whose clients cannot silence it. Each connection has a time limit, and the number of connections is
limited.
"""

from __future__ import annotations

import resource
import socket
import socketserver
import sys
import time
from typing import Any, Final

__all__ = ["Server"]

_SECONDS: Final = 10.0  # from accepting a connection to the end of its answer
_MOST: Final = 100  # open connections
_BACKLOG: Final = 128


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Serves each connection in a thread of its own, by a handler class of `http.server`.

    A connection that takes longer than `seconds` is closed, whether its client is silent, sends slowly, or does not
    read. If there are too many connections, the oldest is closed.
    """

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = _BACKLOG

    def __init__(self, host: str, port: int, handler: Any, seconds: float = _SECONDS) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        address: Any
        self.address_family, *_, address = found[0]
        self._seconds = seconds
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = _MOST if limit == resource.RLIM_INFINITY else min(_MOST, limit // 4)
        self._open: dict[socket.socket, float] = {}  # when each was accepted, the oldest first; of the serving thread
        super().__init__(address, handler)
        self.port: int = self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open[request] = time.monotonic()
        self._end_overdue()
        super().process_request(request, client_address)

    def service_actions(self) -> None:  # several times a second
        self._end_overdue()

    def _end_overdue(self) -> None:
        now = time.monotonic()
        for each, since in list(self._open.items()):
            if each.fileno() < 0:  # its thread has closed it
                del self._open[each]
            elif now - since > self._seconds or len(self._open) > self._most:
                del self._open[each]
                try:
                    each.shutdown(socket.SHUT_RDWR)  # its thread ends, whatever it waits for
                except OSError:
                    pass  # the client has closed it

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        error = sys.exception()
        if not isinstance(error, OSError):  # otherwise the client is gone, or was too slow
            print(f"xpushare: a request failed: {error!r}", file=sys.stderr)
