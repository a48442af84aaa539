"""Plain HTTP/1.1 over loopback, for `run`."""

import http.client
import socket
import sys
import time

# Of anything that must happen soon, in seconds.
PATIENCE = 30


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def until(what, check):
    end = time.monotonic() + PATIENCE
    while not check():
        if time.monotonic() > end:
            sys.exit(f"not within {PATIENCE} s: {what}")
        time.sleep(0.05)


class Client:
    """A client with one connection that is kept; `source` is its address, if there are several clients."""

    def __init__(self, port, fields=None, source="127.0.0.1"):
        self.port, self.fields, self.source, self.connection = port, fields or {}, (source, 0), None

    def get(self, target, method="GET"):
        """Status and body. A kept connection that has ended is opened again once."""
        for last in (False, True):
            if not self.connection:
                self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE, source_address=self.source)
            try:
                self.connection.request(method, target, headers=self.fields)
                answer = self.connection.getresponse()
                return answer.status, answer.read()
            except (OSError, http.client.HTTPException) as error:
                self.connection.close()
                self.connection = None
                if last:
                    raise OSError(str(error)) from error

    def close(self):
        if self.connection:
            self.connection.close()
            self.connection = None


def call(port, method, target):
    client = Client(port)
    try:
        return client.get(target, method)
    finally:
        client.close()
