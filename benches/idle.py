#!/usr/bin/env python3
"""Holds 60,000 idle keep-alive connections with a few shim processes, and prints how many, and what one costs.

    cargo build --release && benches/idle.py [--shims 4] [--connections 60000] [--hold 10]

A process has a limited number of descriptors, and a client address about 28,000 ports: the connections are spread over
several shims, and for each over a process of clients with an address of its own (127.0.0.11 and on). Every connection
asks for /health, stays silent, and asks again at the end: one that is not answered then was not held.
"""
import argparse
import multiprocessing
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

TROVE = Path(__file__).resolve().parent.parent / "target/release/trove"
IP_BIND_ADDRESS_NO_PORT = 24
BATCH = 500
ASK = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


def private_bytes(pid):
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def start_shim(trove, idle_ms):
    """A shim whose upstream is not there: health is its own to answer."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("TROVE_")}
    env.update(
        TROVE_TOKEN_KEY="a-token-key-of-more-than-32-bytes!",
        TROVE_ADMIN_KEY="an-admin-key-of-16-bytes",
        TROVE_LOG__FORMAT="json",
        TROVE_LIMITS__IDLE_MS=str(idle_ms),
    )
    argv = [trove, "shim", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--upstream", "none=127.0.0.1:9"]
    process = subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        found = re.search(r'"public":"127\.0\.0\.1:(\d+)".*"ops":"127\.0\.0\.1:(\d+)"', line)
        other = re.search(r'"ops":"127\.0\.0\.1:(\d+)".*"public":"127\.0\.0\.1:(\d+)"', line)
        if found or other:
            ports = found.groups() if found else other.groups()[::-1]
            return process, int(ports[0]), int(ports[1])
    sys.exit("the shim did not start")


def held_by(ops_port):
    with urllib.request.urlopen(f"http://127.0.0.1:{ops_port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return int(float(re.search(r"^trove_shim_connections (\S+)$", text, re.M)[1]))


def answered(one):
    """Reads one answer to its end."""
    got = b""
    while True:
        more = one.recv(4096)
        if not more:
            return False
        got += more
        head, end, body = got.partition(b"\r\n\r\n")
        if end:
            length = re.search(rb"content-length: (\d+)", head)
            if length and len(body) >= int(length[1]):
                return head.startswith(b"HTTP/1.1 200 ")


def clients(address, port, count, pipe):
    """Opens connections, and asks on all of them each time it is told to."""
    all_of_them, good = [], 0
    while len(all_of_them) < count:
        some = [connect(address, port) for _ in range(min(BATCH, count - len(all_of_them)))]
        # At once: the shim closes a connection that never says anything.
        good += ask(some)
        all_of_them += some
    pipe.send(good)
    while pipe.recv() != "end":
        pipe.send(sum(ask(all_of_them[at:at + BATCH]) for at in range(0, count, BATCH)))


def connect(address, port):
    one = socket.socket()
    one.settimeout(60)
    # Linux: the port is chosen when the other end is known, which takes no search through those in use.
    one.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
    one.bind((address, 0))
    one.connect(("127.0.0.1", port))
    return one


def ask(some):
    for one in some:
        one.sendall(ASK)
    return sum(answered(one) for one in some)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shims", type=int, default=4)
    parser.add_argument("--connections", type=int, default=60_000)
    parser.add_argument("--trove", type=Path, default=TROVE, help="the binary")
    parser.add_argument("--hold", type=float, default=10, help="seconds of silence")
    args = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    each = args.connections // args.shims
    if each + 512 > hard:
        sys.exit(f"{each} connections a shim, and a process has {hard} descriptors: use more --shims")

    # Whoever ends this ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    shims, groups = [], []
    try:
        shims = [start_shim(args.trove, idle_ms=600_000) for _ in range(args.shims)]
        before = [private_bytes(process.pid) for process, _, _ in shims]
        for nth, (_, port, _) in enumerate(shims):
            ours, theirs = multiprocessing.Pipe()
            group = multiprocessing.Process(
                target=clients, args=(f"127.0.0.{11 + nth}", port, each, theirs), daemon=True)
            group.start()
            groups.append((group, ours))
        first = [pipe.recv() for _, pipe in groups]
        time.sleep(args.hold)
        held = [held_by(ops) for _, _, ops in shims]
        grown = [private_bytes(process.pid) - was for (process, _, _), was in zip(shims, before)]
        for _, pipe in groups:
            pipe.send("again")
        again = [pipe.recv() for _, pipe in groups]
        for _, pipe in groups:
            pipe.send("end")
        print(f"{sum(held)} connections held by {args.shims} shim processes: {' + '.join(map(str, held))}")
        print(f"answered at first: {sum(first)}; after {args.hold:.0f} s of silence: {sum(again)}")
        print(f"private memory a connection: {sum(grown) / max(sum(held), 1):.0f} bytes")
        return 0 if sum(again) == each * args.shims else 1
    finally:
        for group, _ in groups:
            group.join(10)
            if group.is_alive():
                group.kill()
        for process, _, _ in shims:
            process.terminate()
        for process, _, _ in shims:
            process.wait(30)


if __name__ == "__main__":
    sys.exit(main())
