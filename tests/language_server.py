"""Asks pyright's language server, which editors run, what it offers at the end of a program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import IO, Any, Self


class LanguageServer:
    """A server for the programs of a folder, whose `pyrightconfig.json` it reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._asked = 0
        command = [sys.executable, "-m", "pyright.langserver", "--stdio"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        where = {"uri": folder.as_uri(), "name": folder.name}
        self._ask("initialize", processId=None, rootUri=where["uri"], workspaceFolders=[where], capabilities={})
        self._send(method="initialized", params={})

    def offered(self, source: str) -> set[str]:
        uri = (self.folder / f"program{self._asked}.py").as_uri()
        document = {"uri": uri, "languageId": "python", "version": 1, "text": source}
        self._send(method="textDocument/didOpen", params={"textDocument": document})
        lines = source.split("\n")
        end = {"line": len(lines) - 1, "character": len(lines[-1])}
        found = self._ask("textDocument/completion", textDocument={"uri": uri}, position=end)
        return {each["label"] for each in found["items"]}

    def _ask(self, method: str, **params: Any) -> Any:
        self._asked += 1
        self._send(id=self._asked, method=method, params=params)
        while True:
            message = self._received()
            if "method" not in message:
                assert message["id"] == self._asked
                return message["result"]
            if "id" in message:  # it asks for settings and registers capabilities
                self._send(id=message["id"], result=None)

    def _send(self, **message: Any) -> None:
        raw = json.dumps({"jsonrpc": "2.0", **message}).encode()
        to = self._stream(self._process.stdin)
        to.write(b"Content-Length: %d\r\n\r\n" % len(raw) + raw)
        to.flush()

    def _received(self) -> dict[str, Any]:
        stream, nbytes = self._stream(self._process.stdout), 0
        while line := stream.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                nbytes = int(value)
        message: dict[str, Any] = json.loads(stream.read(nbytes))
        return message

    @staticmethod
    def _stream(stream: IO[bytes] | None) -> IO[bytes]:
        assert stream is not None
        return stream

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._ask("shutdown")
        self._send(method="exit")
        self._process.communicate(timeout=60)
