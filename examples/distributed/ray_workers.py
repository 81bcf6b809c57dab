# SPDX-License-Identifier: Apache-2.0
"""Workers on a Ray cluster: Ray places and watches them, and TensorFlow trains.

    python examples/distributed/ray_workers.py --workers 4 train.py args...

Each worker runs the script in a separate process, because a process whose strategy has lost a
worker cannot continue. If a worker fails, the others are ended and all start again. With
`keras.callbacks.BackupAndRestore` on a shared file system the script resumes where it was. Every
node must have the script at the same path. This example needs `pip install ray`.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time

import ray


@ray.remote
class Worker:
    def __init__(self) -> None:
        self.process: subprocess.Popen | None = None
        self.bound = socket.socket()

    def address(self) -> str:
        # Bound until the end: no other process gets the port, and gRPC may still listen on it.
        self.bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.bound.bind(("0.0.0.0", 0))
        return f"{ray.util.get_node_ip_address()}:{self.bound.getsockname()[1]}"

    def start(self, cluster: list[str], index: int, command: list[str]) -> None:
        config = {"cluster": {"worker": cluster}, "task": {"type": "worker", "index": index}}
        environment = {**os.environ, "TF_CONFIG": json.dumps(config)}
        self.process = subprocess.Popen(
            [sys.executable, *command], env=environment, start_new_session=True
        )

    def poll(self) -> int | None:
        return self.process.poll()

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def train(workers: int, cpus: int, command: list[str]) -> bool:
    """Runs all workers once. Returns whether all exited with 0."""
    actors = [Worker.options(num_cpus=cpus).remote() for _ in range(workers)]
    try:
        cluster = ray.get([actor.address.remote() for actor in actors])
        ray.get([actor.start.remote(cluster, index, command) for index, actor in enumerate(actors)])
        while True:
            codes = ray.get([actor.poll.remote() for actor in actors])
            if any(codes):
                print(f"Exit codes of the workers: {codes}", file=sys.stderr)
                return False
            if all(code == 0 for code in codes):
                return True
            time.sleep(1)
    except ray.exceptions.RayError as error:  # a node is gone
        print(f"Ray has lost a worker: {error}", file=sys.stderr)
        return False
    finally:
        for actor in actors:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(actor.end.remote(), timeout=10)
            ray.kill(actor)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--cpus", type=int, default=1, help="processors of each worker")
    parser.add_argument("--restarts", type=int, default=3)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    ray.init()
    for _ in range(options.restarts + 1):
        if train(options.workers, options.cpus, options.command):
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
