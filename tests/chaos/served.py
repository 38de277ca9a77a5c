"""`turnwise serve` killed while clients record: what was acknowledged is there once, and nothing is there twice."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

from tests.chaos.runs import HANG_S, is_killed_or_done, log_of, play, read_log, start, wait
from turnwise.experience.store import FILE_NAME, SqliteBuffer

SERVED = "served"
_KEY = "a-key-for-chaos-alone"
_HELLO = {"messages": [{"role": "user", "content": "P _ O G"}]}
_NUM_CLIENTS = 3


class Served:
    """A run whose policy is served; clients play episodes, each with a reward that no other has."""

    def __init__(self, quiet: Path, dice: random.Random) -> None:
        self._quiet = quiet
        self._dice = dice

    def disturb(self, path: Path, *, at_most: int) -> tuple[int, str | None]:
        if not self._quiet.exists():
            play(self._quiet, "serial", extra=["buffer.type=sqlite", "learn.steps=1"])
        shutil.copytree(self._quiet, path)
        clients, num_kills = _Clients(), 0
        for _ in range(min(3, at_most)):
            num_kills += self._kill_once(path, clients)
        # Once more, to its end: whoever comes back finds what was written down before.
        with _serving(path) as (process, _):
            process.send_signal(signal.SIGTERM)
            assert is_killed_or_done(wait(process)), read_log(log_of(path))[-2000:]
        assert "Traceback" not in read_log(log_of(path)), read_log(log_of(path))[-2000:]
        return num_kills, clients.find_losses(path)

    def _kill_once(self, path: Path, clients: _Clients) -> int:
        with _serving(path) as (process, address), clients.playing(address):
            clients.wait_for(self._dice.randint(1, 12), process)
            time.sleep(self._dice.uniform(0.0, 0.2))
            is_alive = process.poll() is None
            process.kill()
            process.wait()
        return int(is_alive)


@contextmanager
def _serving(path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The server, and the address that it tells."""
    log, said = log_of(path), len(read_log(log_of(path)))
    command = [sys.executable, "-u", "-m", "turnwise", "serve", str(path)]
    process = start(command, log, TURNWISE_SERVE_TOKEN=_KEY)
    try:
        deadline_s = time.monotonic() + HANG_S
        while "Ctrl-C ends it" not in (told := read_log(log)[said:]):
            is_coming = process.poll() is None and time.monotonic() < deadline_s
            assert is_coming, f"no server: {told[-2000:]}"
            time.sleep(0.05)
        address = told.partition("base URL")[2].split()[0]
        yield process, address.removesuffix("/v1")
    finally:
        process.kill()
        process.wait()


class _Clients:
    """Several at once; they remember what the server has said yes to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 1
        self._acknowledged: list[int] = []
        self._is_over = threading.Event()

    @contextmanager
    def playing(self, address: str) -> Iterator[None]:
        self._is_over.clear()
        threads = [threading.Thread(target=self._play, args=(address, n)) for n in range(_NUM_CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            for thread in threads:
                thread.join(HANG_S)

    def wait_for(self, more: int, process: subprocess.Popen[bytes]) -> None:
        wanted, deadline_s = len(self._acknowledged) + more, time.monotonic() + HANG_S
        while len(self._acknowledged) < wanted and process.poll() is None:
            assert time.monotonic() < deadline_s, "clients hear nothing"
            time.sleep(0.005)

    def _play(self, address: str, client: int) -> None:
        """Until the server is gone. Of some groups a sibling never ends: the other waits in the journal."""
        while not self._is_over.is_set():
            with self._lock:
                number, self._next = self._next, self._next + 1
            wishes = {} if client else {"group": f"{number}-{os.getpid()}", "group_size": 2}
            try:
                begun = _post(f"{address}/v1/episodes", wishes)
                _post(f"{begun['base_url']}/chat/completions", _HELLO)
                _post(f"{address}/episodes/{begun['id']}/reward", {"reward": number})
            except (URLError, HTTPException, OSError, ValueError):
                continue
            self._acknowledged.append(number)

    def find_losses(self, path: Path) -> str | None:
        store = SqliteBuffer(path / FILE_NAME)
        served = [group for group in store.read_groups() if "/served/" in group[0].id.trajectory.group]
        store.close()
        found = Counter(int(experience.raw_rewards.sum()) for group in served for experience in group)
        lost = [number for number in self._acknowledged if found[number] == 0]
        doubled = [number for number, count in found.items() if count > 1]
        if lost or doubled or not self._acknowledged:
            return f"of {len(self._acknowledged)} acknowledged episodes {lost} are gone, {doubled} are there twice"
        return None


def _post(url: str, body: object) -> dict[str, str]:
    request = Request(url, json.dumps(body).encode(), {"Authorization": f"Bearer {_KEY}"})
    with urlopen(request, timeout=HANG_S) as reply:
        return json.loads(reply.read())
