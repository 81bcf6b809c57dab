# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments of the ops by which workers exchange keys and rows: refused by name."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from absl.testing import parameterized

from support.cases.refused_ops import BATCH, RAW, RefusedTestCase, int64


def int32(values: Any) -> tf.Tensor:
    return tf.constant(values, tf.int32)


def rows(*shape: int) -> tf.Tensor:
    return tf.ones(shape)


# Valid arguments for two workers, and the error's words for each wrong argument.
WORDS = {
    "parts": [rows(3, 2)],
    "counts": int32([[1, 2]]),
    "part_tables": [0],
    "wire_types": ["same"],
}
PACK = {**WORDS, "capacity": int64(4)}
UNPACK = {
    "messages": tf.zeros([2, 4], tf.int32),
    "counts": int32([[1, 2]]),
    "own": [],
    "own_counts": tf.zeros([0, 0], tf.int32),
    "part_types": [tf.float32],
    "part_tables": [0],
    "wire_types": ["same"],
    "widths": [2],
}
PLAN = {
    "gathered": tf.zeros([8], tf.int32),
    "num_workers": 2,
    "num_tables": 1,
    "rank": 0,
    "reply_tables": [0],
    "reply_row_bytes": [4],
}
ROUTED = {
    "keys": int64([5, 6]),
    "noted": [],
    "routed": int64([5, 6]),
    "rows": rows(2, 1),
    "places": int32([0, 1]),
    "tokens": [],
}
ROUTED_GRADIENT = {
    "gradient": rows(2, 1),
    "routed": int64([5, 6]),
    "places": int32([0, 1]),
    "dim": 1,
}
ROUTE = {
    "keys": [int64([1])],
    "owners": [tf.zeros([0], tf.int32)],
    "num_workers": 2,
    "owner_rules": ["hash"],
}
ROUTE_GRADIENTS = {**ROUTE, "gradients": [rows(1, 2)], "sum_dtypes": [tf.float32]}
BAGS = {**{name: int64(value) for name, value in BATCH.items()}, "weights": [], "dims": [2, 2]}
SPLIT = {
    **BAGS,
    "size": int64(6),
    "owners": tf.zeros([0], tf.int32),
    "num_workers": 2,
    "rank": 0,
}
JOIN = {
    **BAGS,
    "size": int64(6),
    "values": rows(6),
    "sources": int64([0, 2, 4]),
    "splits": int64([0, 1, 2, 3]),
    "combiner": "sum",
}
BOUNDS = {
    "indices": int64([0, 1]),
    "offsets": int64([0, 1, 2]),
    "num_bags": int64([1, 1]),
    "rows": [2, 2],
    "tables": ["a", "b"],
    "owner": "o",
    "mode": "fatal",
}
CASES: tuple[tuple[str, dict[str, Any], dict[str, Any], str], ...] = (
    (
        "message_words",
        WORDS,
        {"part_tables": [0, 0]},
        "`part_tables` and `wire_types` must have one entry for each part. Received: 2 and 1 for 1",
    ),
    (
        "message_words",
        WORDS,
        {"parts": [tf.zeros([3], tf.int32)], "wire_types": ["bfloat16"]},
        "`wire_types` must be same for a part that is not float32. Received: bfloat16 for int32",
    ),
    (
        "message_words",
        WORDS,
        {
            "parts": [
                tf.reshape(
                    RAW.tf_embed_token(anchor=tf.zeros([0, 1]), key_dtype=tf.int64, dim=1), [1]
                )
            ]
        },
        "`part_types` must be numbers or strings. Received: variant",
    ),
    (
        "message_words",
        WORDS,
        {"part_tables": [1]},
        "`part_tables` must be from 0 to 0. Received: 1",
    ),
    ("message_words", WORDS, {"counts": int32([[-1, 4]])}, "`counts` must be from 0. Received: -1"),
    (
        "message_words",
        WORDS,
        {"parts": [rows(3, 2, 1)]},
        r"`parts` must be vectors, or matrices of numbers. Received: shape \[3,2,1\] as part 0",
    ),
    (
        "message_words",
        WORDS,
        {"parts": [rows(4, 2)]},
        "`parts` must have as many rows as `counts` says. Received: 4 rows instead of 3 in part 0",
    ),
    (
        "plan_exchange",
        PLAN,
        {"reply_row_bytes": []},
        "`reply_row_bytes` must have one number for each of `reply_tables`. Received: 0 for 1",
    ),
    (
        "plan_exchange",
        PLAN,
        {"reply_tables": [1]},
        "`reply_tables` must be from 0 to 0, and `reply_row_bytes` from 0. Received: 1 and 4",
    ),
    (
        "plan_exchange",
        PLAN,
        {"gathered": tf.zeros([7], tf.int32)},
        "`gathered` must have 4 numbers of each worker. Received: 7 numbers of 2 workers",
    ),
    (
        "plan_exchange",
        PLAN,
        {"gathered": int32([0, 0, 0, 0, -1, 0, 0, 0])},
        "`gathered` must have numbers from 0. Received: -1 of worker 1",
    ),
    (
        "plan_exchange",
        PLAN,
        {"gathered": int32([0, 2**30, 0, 0, 0, 0, 0, 0]), "reply_row_bytes": [2**20]},
        "A message to a worker may have at most .* words of 4 bytes: use smaller batches. Received",
    ),
    ("pack_messages", PACK, {"capacity": int64(-1)}, "`capacity` must be from 0 to .*Received: -1"),
    (
        "pack_messages",
        PACK,
        {"capacity": int64(3)},
        "`capacity` must have room for each message. Received: 3 words for 4",
    ),
    (
        "unpack_messages",
        UNPACK,
        {"widths": [2, 2]},
        "`widths` must have one number for each part. Received: 2 for 1 parts",
    ),
    (
        "unpack_messages",
        UNPACK,
        {"widths": [2], "part_types": [tf.string]},
        "`widths` must be from 0, and 0 for strings. Received: 2 for part 0",
    ),
    (
        "unpack_messages",
        UNPACK,
        {"messages": tf.zeros([3, 4], tf.int32)},
        "`messages` must have one row for each worker. Received: 3 rows for 2 workers",
    ),
    ("unpack_messages", UNPACK, {"own": [rows(3, 2)]}, "`own` must have 0 parts. Received: 1"),
    (
        "unpack_messages",
        UNPACK,
        {"own": [rows(3, 3)], "own_counts": int32([[1, 2]]), "rank": 0},
        r"`own` must have parts of `part_types` and `widths`. Received: float of shape \[3,3\]",
    ),
    (
        "unpack_messages",
        UNPACK,
        {"messages": tf.zeros([2, 3], tf.int32)},
        "`messages` must have room for what `counts` says is in them. Received: 3 words, which is",
    ),
    ("routed_rows", ROUTED, {"noted": [int64([5, 6])] * 2}, "`noted` must be at most"),
    (
        "routed_rows",
        ROUTED,
        {"keys": int64([5, 6, 7])},
        "`places` must have one number for each of `keys`. Received: 2 for 3",
    ),
    (
        "routed_rows_gradient",
        ROUTED_GRADIENT,
        {"gradient": rows(2, 2)},
        r"`gradient` must have shape \[2,1\]. Received: \[2,2\]",
    ),
    (
        "route_keys",
        ROUTE,
        {"owner_rules": ["hash", "hash"]},
        "`keys` and `owner_rules` must have one entry for each of `owners`. Received: 1 and 2 for",
    ),
    (
        "route_gradients",
        ROUTE_GRADIENTS,
        {"gradients": [rows(2, 2)]},
        "`gradients` must have one row for each of `keys`, a vector. Received: shape",
    ),
    (
        "route_gradients",
        ROUTE_GRADIENTS,
        {"sum_dtypes": [tf.float64]},
        "`sum_dtypes` must be float for gradients of float. Received: double",
    ),
    (
        "route_gradients",
        ROUTE_GRADIENTS,
        {"gradients": [rows(1, 2)] * 2},
        "`gradients` and `sum_dtypes` must have one entry for each of `owners`. Received: 2 and 1",
    ),
    (
        "split_bags",
        SPLIT,
        {"owners": int32([0, 1])},
        "`owners` must have one worker for each index. Received: 2 for 3 indices",
    ),
    (
        "split_bags",
        SPLIT,
        {
            "indices": int64([1, 3]),
            "offsets": int64([0, 1, 2]),
            "pieces": int64([[0, 0, 2, 0, 2**31 - 1]]),
            "size": int64(2**32 - 2),
            "owners": int32([1, 1]),
            "dims": [2**31 - 1],
        },
        r"at most 2\^31 - 1 values at once: use smaller batches. Received: 4294967294",
    ),
    (
        "join_bags",
        JOIN,
        {"splits": int64([0, 2, 1, 3])},
        "`splits` must go from 0 to the number of sources, 3, in 3 steps that do not go back",
    ),
    (
        "join_bags",
        JOIN,
        {"splits": int64([0, 0, 2, 3]), "weights": [rows(3)]},
        "`splits` must equal `offsets` if there are weights",
    ),
    (
        "join_bags",
        JOIN,
        {"sources": int64([0, 2, 5])},
        "`sources` must be from 0 to 4 for rows of 2. Received: 5",
    ),
    ("check_bounds", BOUNDS, {"tables": ["a"]}, "`tables` must have one for each of `rows`"),
    ("check_bounds", BOUNDS, {"rows": [2, -2]}, "`rows` must be at least -1. Received: -2"),
    ("check_bounds", BOUNDS, {"padding": [0, 1]}, "`padding` must be none, or one. Received: 2"),
    ("check_bounds", BOUNDS, {"num_bags": int64([2])}, "`num_bags` of 'o' must be of 2 features"),
    (
        "check_bounds",
        BOUNDS,
        {"num_bags": int64([3, -1])},
        "`num_bags` of 'o' must not be negative. Received: -1",
    ),
    (
        "check_bounds",
        BOUNDS,
        {"offsets": int64([0, 2])},
        "`offsets` of 'o' must have one for each of 2 bags and one more. Received: 2",
    ),
    (
        "check_bounds",
        BOUNDS,
        {"offsets": int64([0, 2, 1])},
        r"`offsets` of 'o' must not decrease, and go from 0 to the number of indices, 2. Received",
    ),
    (
        "check_bounds",
        BOUNDS,
        {"indices": int64([0, 2])},
        "`indices` of 'o' must be row numbers of table 'b', from 0 to 1. Received: 2 at ind",
    ),
)


class ExchangeInputsTest(RefusedTestCase):
    @parameterized.parameters(*CASES)
    def test_a_wrong_argument_is_refused_by_its_name(self, op, right, wrong, words):
        function = getattr(RAW, f"tf_embed_{op}")
        function(**right)
        with self.refused(words):
            function(**{**right, **wrong})

    def test_a_message_that_is_too_short_for_its_strings_is_damage(self):
        strings = {
            "messages": int32([[2, 0], [0, 0]]),
            "counts": int32([[2, 0]]),
            "part_types": [tf.string],
            "widths": [0],
        }
        with self.assertRaisesRegex(
            tf.errors.DataLossError, "A message between workers is shorter than the strings in it"
        ):
            RAW.tf_embed_unpack_messages(**{**UNPACK, **strings})

    def test_there_are_as_many_inputs_as_owners(self):
        keys = {**ROUTE_GRADIENTS, "owners": [tf.zeros([0], tf.int32)] * 2}

        @tf.function
        def route(**changes: Any) -> Any:
            return RAW.tf_embed_route_gradients(**{**keys, **changes})

        with self.refused("There must be as many `keys` as `owners`"):
            route()
        with self.refused("There must be as many `gradients` as `owners`"):
            route(owners=[tf.zeros([0, 0], tf.int32)] * 3, sum_dtypes=[tf.float32] * 5)

    def test_a_batch_has_one_noted_tensor_of_keys(self):
        with self.refused("`noted` must be at most one tensor"):
            tf.function(
                lambda: RAW.tf_embed_routed_rows(**{**ROUTED, "noted": [int64([5, 6])] * 2})
            )()


if __name__ == "__main__":
    tf.test.main()
