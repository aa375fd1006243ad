"""A name server with faults, and processes that ask it."""

import os
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

ADDRESS = "127.0.0.78"
"""Where it listens: resolvers ask port 53 only."""
DELAY_SECONDS = 5.0
_A, _NO_SUCH_NAME = 1, 3


def missing() -> str | None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return "a name server of the test's own needs root and `unshare`"
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        return "this machine allows no mount namespaces"
    return None


def asking_it(folder: Path, program: Sequence[str | Path]) -> list[str | Path]:
    """The command line of `program` in a mount namespace in which names are looked up at this server."""
    (folder / "resolv.conf").write_text(f"nameserver {ADDRESS}\noptions timeout:10 attempts:1\n")
    mount = f"mount --bind '{folder}/resolv.conf' /etc/resolv.conf"
    return ["unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh", *program]


class NameServer:
    """Answers every name with 127.0.0.1, or as `mode` says: `refuses` (no such name), `silent`, `late` (after 5 s)."""

    def __init__(self) -> None:
        self.mode = "answers"
        self.asked: set[str] = set()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((ADDRESS, 53))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", (ADDRESS, 53))
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            question, client = self._socket.recvfrom(512)
            if not question:
                return
            name, kind = _asked(question)
            self.asked.add(name)
            if self.mode == "silent":
                continue
            answer = _answer(question, kind, _NO_SUCH_NAME if self.mode == "refuses" else 0)
            if self.mode == "late":
                threading.Timer(DELAY_SECONDS, self._send, (answer, client)).start()
            else:
                self._send(answer, client)

    def _send(self, answer: bytes, client: tuple[str, int]) -> None:
        try:
            self._socket.sendto(answer, client)
        except OSError:
            return  # it was closed meanwhile


def _asked(question: bytes) -> tuple[str, int]:
    labels, at = list[str](), 12
    while question[at]:
        labels.append(question[at + 1 : at + 1 + question[at]].decode())
        at += 1 + question[at]
    return ".".join(labels), struct.unpack_from(">H", question, at + 1)[0]


def _answer(question: bytes, kind: int, code: int) -> bytes:
    """RFC 1035: the question again, and for a question of kind A one record."""
    record = struct.pack(">HHHIH4s", 0xC00C, _A, 1, 0, 4, socket.inet_aton("127.0.0.1"))
    found = kind == _A and not code
    end = question.index(b"\0", 12) + 5
    header = question[:2] + struct.pack(">HHHHH", 0x8180 | code, 1, int(found), 0, 0)
    return header + question[12:end] + (record if found else b"")
