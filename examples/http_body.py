"""An array handle as the body of an HTTP request on the loopback interface: no pickle goes over the wire."""

import multiprocessing
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing.connection import Connection

import numpy as np

import xpushare as xs


class Normalise(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            with xs.attach(body) as array:
                values = np.asarray(array)
                values /= values.max()
        except (xs.InvalidHandleError, xs.HandleExpiredError) as error:
            self.send_error(400, explain=str(error))
            return
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def serve(port: Connection, requests: int) -> None:
    with HTTPServer(("127.0.0.1", 0), Normalise) as server:
        port.send(server.server_port)
        for _ in range(requests):
            server.handle_request()


def status_of(url: str, body: bytes) -> int:
    try:
        with urllib.request.urlopen(url, body, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def main() -> None:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(there, 2))
    process.start()
    url = f"http://127.0.0.1:{here.recv()}/normalise"

    array = xs.empty(1 << 20, "float32")
    values = np.asarray(array)
    values[:] = np.arange(values.size)
    with xs.share(array) as handle:
        body = bytes(handle)
        assert status_of(url, body) == 204
    assert values[-1] == 1
    assert status_of(url, body) == 400, "a withdrawn handle was accepted"
    process.join()
    assert process.exitcode == 0
    print(f"{array.nbytes >> 20} MiB normalised in place by a request of {len(body)} bytes; after close it was refused")


if __name__ == "__main__":
    main()
