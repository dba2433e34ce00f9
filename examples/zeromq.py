"""An array handle as a ZeroMQ message. Needs pyzmq."""

import multiprocessing
import sys

import numpy as np

import xpushare as xs

try:
    import zmq
except ImportError:
    sys.exit("this example needs pyzmq: pip install pyzmq")


def negate(address: str) -> None:
    with zmq.Context() as context, context.socket(zmq.REP) as socket:
        socket.connect(address)
        with xs.attach(socket.recv()) as array:
            values = np.asarray(array)
            np.negative(values, out=values)
        socket.send(b"done")


def main() -> None:
    array = xs.empty((512, 512))
    values = np.asarray(array)
    values[:] = 3
    with zmq.Context() as context, context.socket(zmq.REQ) as socket, xs.share(array) as handle:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, 30_000)
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        process = multiprocessing.get_context("spawn").Process(target=negate, args=(f"tcp://127.0.0.1:{port}",))
        process.start()
        socket.send(bytes(handle))
        assert socket.recv() == b"done"
        process.join()
    assert process.exitcode == 0
    assert (values == -3).all()
    print(f"{array.nbytes >> 10} KiB negated in place by way of a message of {len(bytes(handle))} bytes")


if __name__ == "__main__":
    main()
