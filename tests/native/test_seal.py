"""The keyed hash of the engine, against Python's."""

import ctypes
import hashlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from xpushare._native import CONSTANTS, Seal

SOURCE = Path(__file__).resolve().parents[2] / "src" / "engine" / "seal.c"


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes, bytes], bytes]:
    """The hash as machines without AVX2 compute it."""
    file = tmp_path_factory.mktemp("seal") / "seal.so"
    cc = os.environ.get("CC", "cc")
    subprocess.run([cc, "-O1", "-DXP_WORDS", "-shared", "-fPIC", SOURCE, "-o", file], check=True)
    library = ctypes.CDLL(str(file))

    def hashed(key: bytes, data: bytes) -> bytes:
        made, out = ctypes.create_string_buffer(1024), ctypes.create_string_buffer(32)
        library.xp_make_key(made, key, ctypes.c_size_t(len(key)))
        library.xp_hash(made, data, ctypes.c_size_t(len(data)), out)
        return out.raw

    return hashed


@pytest.mark.parametrize("key", [b"k", bytes(range(32)), bytes(64)], ids=lambda key: f"{len(key)} bytes")
def test_it_is_blake2b(words: Callable[[bytes, bytes], bytes], key: bytes) -> None:
    seal = Seal(key)
    for nbytes in (0, 1, 127, 128, 129, 224, 255, 256, 257, 1000):
        data = bytes(i * 7 & 0xFF for i in range(nbytes))
        assert seal.hash(data) == words(key, data) == hashlib.blake2b(data, digest_size=32, key=key).digest()


@pytest.mark.parametrize("key", [b"", bytes(65)], ids=lambda key: f"{len(key)} bytes")
def test_a_key_has_1_to_64_bytes(key: bytes) -> None:
    with pytest.raises(ValueError, match="1 to 64"):
        Seal(key)


def test_it_takes_bytes() -> None:
    seal = Seal(b"k")
    for call in seal.hash, lambda raw: seal.read(raw, bytes(16)), lambda raw: seal.read_message(raw, bytes(16)):
        with pytest.raises(TypeError):
            call("text")  # type: ignore[arg-type]
    assert seal.read(b"", bytes(16)) == CONSTANTS["FLAW_HANDLE_LENGTH"]
    assert seal.read_message(b"", bytes(16)) == (CONSTANTS["FLAW_MESSAGE_LENGTH"], 0)
    assert seal.read(b"", b"") == CONSTANTS["FLAW_HANDLE_BOOT"]
    assert seal.read_message(b"", b"") == (CONSTANTS["FLAW_HANDLE_BOOT"], 0)
