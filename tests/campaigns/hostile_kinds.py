# SPDX-License-Identifier: Apache-2.0
"""The kinds of arguments of tf_embed: the hostile values that each accepts, and the reasons."""

from __future__ import annotations

import os

import keras
import numpy as np
import tensorflow as tf
from hostile_values import STRINGS, kind

import tf_embed
from tf_embed import tfra

DEFAULT = "the default"
RANGE = "a number in range"
STRING = "a str"
CALLED = "a function, which is called only when there is something to call it with"
SCALAR = "an integer scalar"
KERAS = "Keras makes arrays into tensors before it calls the layer"

OBJECT = kind()  # takes an object of a certain class, and none of the hostile values
IGNORED = kind({"ignored, and documented so": "*"})
STORED = kind({"stored, and documented so": "*"})
FLAG = kind({"a bool": "True", "an int that is a bool": "0"})
TRAINING = FLAG.optional()
PROGRESS = FLAG.optional()
NONE = kind({DEFAULT: "None"})
TRUE = kind({DEFAULT: "True"})
FALSE = kind({DEFAULT: "0"})
OP_NAME = kind({"a name, in eager execution of nothing": STRINGS, DEFAULT: "None"})
ANY_STRING = kind({STRING: STRINGS})

POSITIVE_INT = kind({RANGE: "3"})
LARGE_INT = kind({RANGE: "3, 2**63-1"})
NOT_NEGATIVE = kind({RANGE: "0, 3"})
LARGE_OR_ZERO = kind({RANGE: "0, 3, 2**63-1"})
NUMBER_OF_ROWS = kind(
    {RANGE: "0, 3, 2**63-1", SCALAR: "tensor int8"},
    {
        "tensor [2]": lambda: tf.constant([1, 2]),
        "tensor -1": lambda: tf.constant(-1),
        "tensor of bool": lambda: tf.constant(True),
    },
)
CLOCK = kind({RANGE: "3", SCALAR: "tensor int8", DEFAULT: "None"})
CLOCK_FROM_ZERO = CLOCK.taking(RANGE, "0")
SHARD = kind({"the only shard": "0", DEFAULT: "None"})
TTL = kind({"seconds": "3, 1.5", DEFAULT: "None"})
RANK = kind({"less than proc_size": "0"})

KEY_DTYPE = kind(
    {},
    {
        "enum of a dtype": lambda: tf.int64.as_datatype_enum,
        "'float32'": lambda: "float32",
        "'int64_ref'": lambda: "int64_ref",
    },
)
VALUE_DTYPE = kind(
    {"TensorFlow's name for float32": "class float"},
    {
        "class float": lambda: float,
        "enum of a dtype": lambda: tf.float32.as_datatype_enum,
        "'complex64'": lambda: "complex64",
    },
)
DEVICES = kind(
    {DEFAULT: "None"},
    {
        "'/CPU:99'": lambda: "/CPU:99",
        "['/CPU:99']": lambda: ["/CPU:99"],
        "['/GPU:7']": lambda: ["/GPU:7"],
        "'/TPU:0'": lambda: "/TPU:0",
        "'/job:worker/CPU:0'": lambda: "/job:worker/CPU:0",
        "'/replica:3/CPU:0'": lambda: "/job:localhost/replica:3/CPU:0",
        "'/CPU:-1'": lambda: "/CPU:-1",
        "'/CPU:' + digits": lambda: "/CPU:" + "9" * 5000,
        "a name and None": lambda: ["/CPU:0", None],
    },
)
CALLABLE = kind({CALLED: "function"}, {"module": lambda: os})
TABLE_NAME = kind(
    {STRING: "'x'"}, {"2,000 characters": lambda: "x" * 2000, "newline": lambda: "a\nb"}
)
LAYER_NAME = TABLE_NAME.optional()
OLD_NAME = kind({"a name that is not there is ignored": STRINGS})


def _initializers() -> object:
    random = keras.initializers
    drawn = "a function says what it gives when it is called"
    return kind(
        {
            DEFAULT: "None",
            "a number": "-1, 0, 3, 1.5, 2**63-1, 2**63, -2**63-1",
            "one number, in a list or an array": "[1], [-1], [1.5], [2**63], deep list, "
            "array of 1.5",
            "one number, in a tensor": "tensor [1.5], tensor int8, tf.Variable",
            "infinite, as the first row of a running maximum": "inf, -inf, infinite row",
            "an initializer of Keras": "Orthogonal()",
            "Keras makes an object of its classes": "class Orthogonal",
            CALLED: "function, divides by zero, without dtype, gives None, gives another dim, "
            "gives strings, gives one row",
        },
        {
            "RandomUniform(2, 1)": lambda: random.RandomUniform(2.0, 1.0),
            "RandomUniform(nan)": lambda: random.RandomUniform(float("nan"), 1.0),
            "RandomUniform(-inf)": lambda: random.RandomUniform(float("-inf"), 1.0),
            "RandomUniform('x')": lambda: random.RandomUniform("x", 1.0),
            "RandomNormal(0, -1)": lambda: random.RandomNormal(0.0, -1.0),
            "RandomNormal(nan)": lambda: random.RandomNormal(float("nan")),
            "TruncatedNormal(0, inf)": lambda: random.TruncatedNormal(0.0, float("inf")),
            "TruncatedNormal(0, -1)": lambda: random.TruncatedNormal(0.0, -1.0),
            "VarianceScaling(nan)": lambda: random.VarianceScaling(float("nan")),
            "Constant(nan)": lambda: random.Constant(float("nan")),
            "Constant('x')": lambda: random.Constant("x"),
            "seed 2**64": lambda: random.RandomUniform(seed=2**64),
            "class Orthogonal": lambda: random.Orthogonal,
            "class Initializer": lambda: random.Initializer,
            "Orthogonal()": lambda: random.Orthogonal(),
            "[nan, 1]": lambda: [float("nan"), 1.0],
            "infinite row": lambda: np.array([np.inf, 1.0]),
            "1e39, inf in float32": lambda: 1e39,
            "[1, 2, 3]": lambda: [1.0, 2.0, 3.0],
            "two rows": lambda: [[1.0, 2.0]] * 2,
            "divides by zero": lambda: lambda shape, dtype: 1 // 0,
            "without dtype": lambda: lambda shape: tf.zeros(shape),
            "gives None": lambda: lambda shape, dtype: None,
            "gives another dim": lambda: lambda shape, dtype: tf.zeros([shape[0], 7]),
            "gives strings": lambda: lambda shape, dtype: tf.fill(shape, "x"),
            "gives one row": lambda: lambda shape, dtype: tf.zeros([1, shape[1]]),
            "config of nothing": lambda: {"class_name": "Nothing", "config": {}},
            "name of nothing": lambda: "no_such_initializer",
        },
        {
            drawn: "function, divides by zero, without dtype, gives None, gives another dim, "
            "gives strings, gives one row"
        },
    )


INITIALIZER = _initializers()
REGULARIZER = kind(
    {DEFAULT: "None"},
    {
        "class Initializer": lambda: keras.initializers.Initializer,
        "divides by zero": lambda: lambda rows: 1 // 0,
        "without rows": lambda: lambda: tf.zeros([]),
        "gives None": lambda: lambda rows: None,
    },
    {
        "a function says what it gives when it is called": "function, class Initializer, "
        "divides by zero, without rows, gives None"
    },
)
MATRIX = kind(
    {DEFAULT: "None"},
    {"[[1, 2, 3]]": lambda: [[1.0, 2.0, 3.0]], "[['x', 'y']]": lambda: [["x", "y"]]},
)
POLICY = kind(
    {DEFAULT: "None"},
    {
        "class TablePolicy": lambda: tf_embed.TablePolicy,
        "config of nothing": lambda: {"class_name": "Nothing", "config": {}},
    },
)
PATH_OF_STORAGE = kind(
    {DEFAULT: "None"}, late={"a table-batched layer needs no `host_bytes`": "'x', long"}
)
DISTRIBUTION = kind(
    {DEFAULT: "None"},
    {
        "class WorkerSharding": lambda: tf_embed.distributed.WorkerSharding,
        "'Sharded'": lambda: "Sharded",
    },
)
REDIS_NAME = kind({STRING: "'x'"}, {"two words": lambda: "a b", "braces": lambda: "{a}"})
REDIS_SECONDS = kind({"seconds": "3, 1.5"})
REDIS = kind(
    {DEFAULT: "None", "a config of all defaults": "{}"},
    {"class RedisServer": lambda: tf_embed.RedisServer},
)
STORAGE = kind({DEFAULT: "None"}, {"class Storage": lambda: tf_embed.Storage})
CREATOR = kind(
    {DEFAULT: "None"},
    {
        "class": lambda: tfra.HkvHashTableCreator,
        "KVCreator()": lambda: tfra.KVCreator(),
        "config": lambda: tfra.HkvHashTableConfig(),
    },
)


class UnknownStatistics(tfra.RestrictPolicy):
    """A policy that needs statistics that no table keeps."""

    statistics = ("no_such",)


RESTRICT = kind(
    {DEFAULT: "None"},
    {
        "class TablePolicy": lambda: tf_embed.TablePolicy,
        "unknown statistics": lambda: UnknownStatistics,
        "name of nothing": lambda: "no_such>Policy",
    },
)

KEYS = kind(
    {
        "whole numbers, of any shape": "-1, 0, 3, 2**63-1, [1], [-1], deep list",
        "whole numbers of a dtype that int64 holds": "tensor int8, tensor int32, tf.Variable",
        "no keys": "[], array of no rows, empty array of strings",
    },
    {
        "[2**63, -1]": lambda: [2**63, -1],
        "array of float": lambda: np.array([1.0]),
        "array of bool": lambda: np.array([True]),
        "empty array of strings": lambda: np.array([], "U1"),
        "tensor int32": lambda: tf.constant([1], tf.int32),
        "tensors of two shapes": lambda: [tf.constant([1]), tf.constant([1, 2])],
    },
)
STRING_KEYS = kind(
    {"strings": "'', 'x', nul, long, bytes, ['x'], tensor 'x'", "no keys": "[], array of no rows"}
)
ONE_KEY = kind({"a key in a list": "[1], [-1], tensor int32, tf.Variable"}, dict(KEYS.also))
ROWS = kind(
    {"NaN and infinity are floats": "nan and inf"},
    {
        "one short": lambda: [[1.0]],
        "transposed": lambda: [[1.0], [2.0]],
        "nan and inf": lambda: [[float("nan"), float("inf")]],
        "[[1e39, 0]]": lambda: [[1e39, 0.0]],
        "[['x', 'y']]": lambda: [["x", "y"]],
        "[[1, None]]": lambda: [[1.0, None]],
        "[[True, False]]": lambda: [[True, False]],
        "[[1j, 0]]": lambda: np.array([[1j, 0]]),
        "[[10**400, 0]]": lambda: [[10**400, 0]],
        "float64 tensor": lambda: tf.constant([[1.0, 2.0]], tf.float64),
    },
)
HALF_ROWS = kind(
    {},
    {
        "[[1e9, 0]]": lambda: [[1e9, 0.0]],
        "[[-65520, 0]]": lambda: [[-65520.0, 0.0]],
        "[[70000, 0]]": lambda: np.array([[70_000, 0]]),
        "float32 [[1e5, 0]]": lambda: np.array([[1e5, 0.0]], np.float32),
    },
)
MAX_NORM = kind(
    {DEFAULT: "None", RANGE: "3, 1.5, 2**63-1, 2**63", SCALAR: "tensor int8"},
    {"1e20": lambda: 1e20, "tensor [1, 2]": lambda: tf.constant([1.0, 2.0])},
)
LAYER_NORM = kind({DEFAULT: "None", RANGE: "3, 1.5, 2**63-1, 2**63"})
PARAMS = kind(
    {},
    {
        "two variables": lambda: [
            tf_embed.Variable(name="hostile_a"),
            tf_embed.Variable(name="hostile_b"),
        ],
        "class Variable": lambda: tf_embed.Variable,
    },
)


def _sparse(indices: list[list[int]], shape: list[int]) -> tf.SparseTensor:
    indices = tf.reshape(tf.constant(indices, tf.int64), [-1, len(shape)])
    return tf.SparseTensor(indices, tf.ones([indices.shape[0]], tf.int64), shape)


SPARSE_IDS = kind(
    {},
    {
        "indices out of shape": lambda: _sparse([[5, 0]], [2, 2]),
        "negative indices": lambda: _sparse([[-1, 0]], [2, 2]),
        "negative dense_shape": lambda: _sparse([[0, 0]], [-1, 2]),
        "huge dense_shape": lambda: _sparse([[0, 0]], [2**62, 2**62]),
        "rank 1": lambda: _sparse([[0]], [2]),
        "float values": lambda: tf.ragged.constant([[1.5], [2.5]]),
        "string values": lambda: tf.ragged.constant([["a"], ["b"]]),
        "no axis": lambda: tf.ragged.constant([1]),
        "row splits that fall": lambda: tf.RaggedTensor.from_row_splits(
            tf.constant([1, 2], tf.int64), tf.constant([0, 2, 1], tf.int64), validate=False
        ),
        "row splits beyond": lambda: tf.RaggedTensor.from_row_splits(
            tf.constant([1, 2], tf.int64), tf.constant([0, 1, 7], tf.int64), validate=False
        ),
    },
)
SPARSE_IDS_ALONE = (
    SPARSE_IDS.taking("ids in a container", "RaggedTensor, SparseTensor")
    .taking("made with validate=False", "row splits that fall")
    .refused_by("the op, by the number of bags or keys", "huge dense_shape, row splits beyond")
)
SPARSE_WEIGHTS = kind(
    {DEFAULT: "None", "numbers": "integers"},
    {
        "other lengths": lambda: tf.ragged.constant([[1.0, 2.0], [3.0]]),
        "integers": lambda: tf.ragged.constant([[1], [2]]),
        "strings": lambda: tf.ragged.constant([["a"], ["b"]]),
        "sparse for ragged": lambda: tf.sparse.from_dense([[1.0], [2.0]]),
        "more rows": lambda: tf.ragged.constant([[1.0], [3.0], [2.0]]),
    },
)
COMBINER = kind({}, {"'min'": lambda: "min"})
COMBINER_OR_FUNCTION = kind(
    {CALLED: "function"},
    {"'median'": lambda: "median"},
    {"what a function does is seen when it is called": "function"},
)
PADDING = kind({DEFAULT: "None", "an int64": "-1, 0, 3, 2**63-1"})
SCALAR_KEY = PADDING.taking("an integer that int64 holds", "tensor int8")
UNKNOWN = kind(
    {
        DEFAULT: "None",
        "a number": "-1, 0, 3, 1.5, 2**63-1, 2**63, -2**63-1",
        "marks a row that is not there": "nan, inf, -inf",
        "a tensor of one number": "tensor int8",
    },
    {"[1, 2, 3]": lambda: [1.0, 2.0, 3.0], "1e39": lambda: 1e39, "[[1, 2]]": lambda: [[1, 2]]},
)
FOLDER = kind({"a path": "'x', long, tensor 'x'"})
FILE_NAMES = kind({DEFAULT: "None", "a list of one name": "['x']"})
ENV = kind({STRING: "'x'", "no variable": "''"})
OPTIMIZER = kind(
    {},
    {
        "name of nothing": lambda: "no_such_optimizer",
        "config of nothing": lambda: {"class_name": "Nothing", "config": {}},
        "tf.Module": lambda: tf.Module(),
    },
)
IDS = kind(
    {
        "whole numbers, of any rank": "[1], [-1], deep list, tf.Variable",
        "containers of whole numbers": "RaggedTensor, SparseTensor",
        "symbolic": "KerasTensor",
        "no ids": "[], array of no rows",
    },
    {
        "2**63 as uint64": lambda: tf.constant([[2**63]], tf.uint64),
        "strings": lambda: tf.constant([["a"]]),
        "ragged floats": lambda: tf.ragged.constant([[1.5]]),
    },
)
# Python or NumPy raises first, because no machine type holds these values.
UNPRINTABLE = "10**5000, array of objects, array of dates, structured array"
IDS = IDS.refused_by(KERAS, UNPRINTABLE)
ONE_ID = IDS.taking("one id, without an axis", "-1, 0, 3, 2**63-1, tensor int8")
SYMBOLIC = "a symbolic call computes nothing"
ID_WEIGHTS = kind({DEFAULT: "None", SYMBOLIC: "KerasTensor"}).refused_by(KERAS, UNPRINTABLE)
LAYER_TRAINING = TRAINING.taking(SYMBOLIC, "KerasTensor").refused_by(KERAS, UNPRINTABLE)
MODEL_PATH = kind({"a folder, for a SavedModel": "'x'"})
FLOAT_ROWS = kind({"floats": "[1.5], array of 1.5, tensor [1.5], array of no rows"})
