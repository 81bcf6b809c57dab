# SPDX-License-Identifier: Apache-2.0
"""A training in which a worker dies and restarts; tests start it by `launch_elastic`.

In the first cluster of three workers, worker 1 kills itself. A smaller cluster trains slowly, so
that the launcher brings the third worker back before the end.
"""

from __future__ import annotations

import json
import os
import pathlib
import pickle
import signal
import sys
import time

import numpy as np
import tensorflow as tf

from support.processes.worker_models import Setup, Training
from tf_embed import distributed

STEPS, SAVE_STEPS, KILLED_STEP = 60, 5, 12
CHECKPOINTS = "checkpoints"
_WORKERS = 3


def write_data(path: pathlib.Path) -> Setup:
    """Writes generated data of one epoch, and returns a setup that trains on it."""
    generator = np.random.default_rng(1)
    ids = {name: generator.integers(0, 50, 32 * 10).astype(np.int64) for name in ("user", "item")}
    np.savez(path, label=(ids["user"] + ids["item"]) % 2, **ids)
    return Setup(str(path), "loop", batch=32, epochs=STEPS // 10, epoch_steps=10)


def main() -> None:
    """Trains from the last checkpoint to the end."""
    folder = pathlib.Path(sys.argv[1])
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    workers, rank = strategy.num_replicas_in_sync, strategy.cluster_resolver.task_id
    training = Training(write_data(folder / f"data.{rank}.npz"), strategy)
    checkpoint = tf.train.Checkpoint(optimizer=training.optimizer, model=training.model)
    own = folder / (CHECKPOINTS if rank == 0 else f"unused-{rank}")
    manager = tf.train.CheckpointManager(checkpoint, str(own), max_to_keep=2)
    if latest := tf.train.latest_checkpoint(str(folder / CHECKPOINTS)):
        checkpoint.restore(latest).assert_existing_objects_matched()
    began = training.step_number()
    killed = folder / "killed"

    def after_step(step: int) -> None:
        if step % SAVE_STEPS == 0:
            manager.save(checkpoint_number=step)
        if workers == _WORKERS and step == KILLED_STEP and rank == 1 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if workers < _WORKERS:
            time.sleep(0.1)

    losses = training.loop(STEPS, after_step)
    if rank == 0:
        state = training.state()
        (folder / "end.pickle").write_bytes(pickle.dumps((state, losses)))
    else:
        training.state()  # all workers must call it
    print(json.dumps({"workers": workers, "began": began}), flush=True)
    with distributed.timeout(60):
        training.tables()["user"].size()  # the last exchange: no worker leaves before


if __name__ == "__main__":
    main()
