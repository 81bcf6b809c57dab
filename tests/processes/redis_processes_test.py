# SPDX-License-Identifier: Apache-2.0
"""Tables in Redis with real processes: several train the same table, and a server dies."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import tensorflow as tf
from absl.testing import absltest, parameterized

import tf_embed
from support.processes.redis_servers import RedisProcess

PACKAGE = pathlib.Path(tf_embed.__file__).parent
TIMEOUT_SECONDS = 120.0

# Trains all keys in each step by SGD, because its updates add up.
TRAIN = """
import sys
import keras, numpy as np, tensorflow as tf, tf_embed

port, steps, optimizer = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
server = tf_embed.RedisServer(port=port, timeout_seconds=10.0, table="shared")
v = tf_embed.Variable(dim=2, initializer=0.0, storage=tf_embed.Storage(redis=server))
wrapped = tf_embed.DynamicEmbeddingOptimizer(
    keras.optimizers.SGD(1.0) if optimizer == "sgd" else keras.optimizers.get(optimizer)
)
print("ready", flush=True)
sys.stdin.readline()
keys = tf.range(50, dtype=tf.int64)

@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = -tf.reduce_sum(tf_embed.embedding_lookup(v, keys))
    trained = v.trainable_variables
    wrapped.apply_gradients(zip(tape.gradient(loss, trained), trained))

try:
    for number in range(steps):
        step()
        if number == 5:
            print("trains", flush=True)
except tf.errors.AbortedError as error:
    print("aborted", error.message.replace("\\n", " "), flush=True)
"""


def program(*arguments: object) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(PACKAGE.parent),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "",
    }
    return subprocess.Popen(
        [sys.executable, "-c", TRAIN, *map(str, arguments)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


class ProcessesTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.server = RedisProcess()
        self.addCleanup(self.server.close)
        self.programs: list[subprocess.Popen[str]] = []
        self.addCleanup(lambda: [one.kill() for one in self.programs])

    def start(self, *arguments):
        self.programs.append(program(self.server.port, *arguments))
        return self.programs[-1]

    def wait_for(self, one, line):
        self.assertEqual(one.stdout.readline().strip(), line)

    def test_two_processes_that_train_the_same_rows_lose_no_update(self):
        steps = 40
        both = [self.start(steps, "sgd") for _ in range(2)]
        for one in both:
            self.wait_for(one, "ready")
        for one in both:  # at the same time
            one.stdin.write("\n")
            one.stdin.flush()
        for one in both:
            said, _ = one.communicate(timeout=TIMEOUT_SECONDS)
            self.assertEqual((one.returncode, said), (0, "trains\n"))
        server = self.server.server(table="shared")
        v = tf_embed.Variable(dim=2, storage=tf_embed.Storage(redis=server))
        self.assertAllEqual(v.lookup(tf.range(50, dtype=tf.int64)), tf.fill([50, 2], 2.0 * steps))

    def test_a_process_that_joins_keeps_the_slots_of_the_same_optimizer(self):
        keys, slots = tf.range(50, dtype=tf.int64), []
        server = self.server.server(table="shared")
        v = tf_embed.Variable(dim=2, storage=tf_embed.Storage(redis=server))
        for steps in (3, 4):
            one = self.start(steps, "adagrad")
            said, _ = one.communicate("\n", timeout=TIMEOUT_SECONDS)
            self.assertEqual((one.returncode, said), (0, "ready\n"))
            exported = v.table.export()
            self.assertAllEqual(tf.sort(exported.keys), keys)
            slots.append(exported.slots)
        # Gradients are -1, and their squares are added to the initial 0.1.
        self.assertAllClose(slots[0], tf.fill([50, 2], 3.1))
        self.assertAllClose(slots[1], tf.fill([50, 2], 7.1))

    def test_a_server_that_is_killed_while_a_process_trains_is_an_error_of_that_step(self):
        one = self.start(10**9, "adam")
        self.wait_for(one, "ready")
        one.stdin.write("\n")
        one.stdin.flush()
        self.wait_for(one, "trains")
        self.server.kill()
        said, _ = one.communicate(timeout=TIMEOUT_SECONDS)
        self.assertEqual(one.returncode, 0)
        self.assertRegex(said, f"^aborted .*Redis.* 127.0.0.1:{self.server.port} ")

    def test_a_server_that_is_started_again_is_found_again(self):
        v = tf_embed.Variable(dim=1, initializer=7.0, storage=self.server.storage())
        v.upsert([1], [[1.0]])
        self.server.kill()
        for call in (
            lambda: v.lookup([1]),
            lambda: v.upsert([1], [[2.0]]),
            v.size,
            v.export,
            v.stats,
            v.clear,
            lambda: tf.function(lambda: v.lookup([1]))(),
        ):
            with self.assertRaisesRegex(tf.errors.AbortedError, f":{self.server.port} .*refused"):
                call()
        self.server.restart()
        self.assertAllEqual(v.lookup([1]), [[7.0]])
        v.upsert([1], [[3.0]])
        self.assertEqual(int(v.size()), 1)

    def test_a_table_of_no_server_is_an_error_when_it_is_made(self):
        storage = self.server.storage()
        self.server.kill()
        with self.assertRaisesRegex(tf.errors.AbortedError, f"127.0.0.1:{self.server.port}"):
            tf_embed.Variable(dim=1, storage=storage)

    @parameterized.parameters((None, "NOAUTH"), ("wrong", "WRONGPASS"))
    def test_a_wrong_password_is_refused_and_not_shown(self, password, words):
        server = RedisProcess("--requirepass", "sesame")
        self.addCleanup(server.close)
        with self.assertRaisesRegex(tf.errors.FailedPreconditionError, words) as raised:
            tf_embed.Variable(dim=1, storage=server.storage(password=password))
        self.assertNotIn("'wrong'", str(raised.exception))
        v = tf_embed.Variable(dim=1, storage=server.storage(password="sesame"))
        self.assertEqual(int(v.size()), 0)

    def test_without_the_client_library_all_other_tables_work(self):
        # A copy, not links: when TensorFlow deletes a folder, it deletes through links too.
        without = shutil.ignore_patterns("libtf_embed_redis.so*", "__pycache__")
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory())) / "tf_embed"
        shutil.copytree(PACKAGE, folder, ignore=without)
        code = (
            "import tf_embed, tensorflow as tf\n"
            "v = tf_embed.Variable(dim=1)\n"
            "v.upsert([1], [[2.0]])\n"
            "print(v.lookup([1]).numpy().tolist())\n"
            "try:\n"
            "    tf_embed.Variable(storage=tf_embed.Storage(redis=tf_embed.RedisServer()))\n"
            "except tf.errors.FailedPreconditionError as error:\n"
            "    print(error.message)\n"
        )
        environment = {**os.environ, "PYTHONPATH": str(folder.parent), "TF_CPP_MIN_LOG_LEVEL": "2"}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            cwd=folder.parent,
            capture_output=True,
            text=True,
            check=True,
            timeout=TIMEOUT_SECONDS,
        )
        lines = done.stdout.splitlines()
        self.assertEqual(lines[0], "[[2.0]]")
        self.assertRegex(lines[1], "Can't open the Redis client library.*install libhiredis-dev")


if __name__ == "__main__":
    absltest.main()
