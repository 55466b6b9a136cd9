"""A server of files on this machine, for tests of what is downloaded and of what must not be."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

requests: list[str] = []
"""The paths that were asked for, in order; emptied when a server starts."""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        requests.append(self.path)


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve the files of a folder; yield the server's address."""
    requests.clear()
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_port}"
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()
