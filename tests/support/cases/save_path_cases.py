# SPDX-License-Identifier: Apache-2.0
"""Tries every way to save, copy or restore a trained model.

A save path takes a trained model and returns another model, which should equal the first. `outcome`
gives each of ASPECTS an answer: "kept", the reason that the save path cannot carry it, or the
sentence with which it raises. tests/tables/save_paths.py prints all answers as a table.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_embed
from support.cases.save_path_models import (
    ASPECTS,
    FIT,
    IDS,
    KINDS,
    LABELS,
    UNKNOWN,
    content,
    embedding,
    head,
    kept,
    layer_of,
    statistics_of,
    step_of,
    trained,
    untrained,
)
from tf_embed.layers import DynamicEmbedding


@dataclasses.dataclass(frozen=True)
class SavePath:
    """A save path.

    Attributes:
        name: The code that a user writes.
        run: Called with a way and a folder; returns two models that should be equal, or whether
            each aspect is.
        lacks: The aspects that the save path cannot carry by its nature, and why.
        raises: The beginning of the sentence, if it is refused.
    """

    name: str
    run: Callable[[str, pathlib.Path], tuple[keras.Model, keras.Model] | dict[str, bool]]
    lacks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    raises: str | tuple[str, ...] = ()


def outcome(save_path: SavePath, way: str) -> dict[str, str]:
    """The answer for each aspect in a save path. An answer that begins with WRONG is a bug."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            alike = save_path.run(way, pathlib.Path(folder))
            if not isinstance(alike, dict):
                alike = kept(*alike)
        except Exception as error:
            sentence = plain(error, folder)
            refused = bool(save_path.raises) and sentence.startswith(save_path.raises)
            return dict.fromkeys(
                ASPECTS, f"raises: {sentence}" if refused else f"WRONG: {sentence}"
            )
    if save_path.raises:
        return dict.fromkeys(ASPECTS, "WRONG: does not raise")
    cells = {}
    for aspect in ASPECTS:
        cells[aspect] = "kept" if alike.get(aspect) else save_path.lacks.get(aspect, "WRONG: lost")
    return cells


def plain(error: Exception, folder: str) -> str:
    """An error's message without the parts that differ from run to run."""
    text = " ".join(str(error).split())
    text = re.sub(r"\{\{.*?\}\} ", "", text).replace(folder + "/", "")
    example = re.search(r"Example error message for object <.*?>: (.*?) List of objects", text)
    text = example.group(1) if example else text
    return re.sub(r"0x[0-9a-f]+|\[Op:.*", "", text).strip()


# The save paths. Each begins with a trained model. The reader has another seed until it reads.


def keras_file(kind: str) -> Callable[..., Any]:
    def run(way: str, folder: pathlib.Path) -> Any:
        model = trained(way, kind)
        model.save(folder / "model.keras")
        return model, keras.models.load_model(folder / "model.keras")

    return run


def keras_file_in_a_new_process(way: str, folder: pathlib.Path) -> Any:
    models = {kind: trained(way, kind) for kind in KINDS}
    for kind, model in models.items():
        model.save(folder / f"{kind}.keras")
    script = """
        import sys
        import keras, numpy as np, tf_embed
        for kind in sys.argv[1:]:
            if kind == "subclassed":
                # Its class is registered by whoever wrote it.
                from support.cases import save_path_models
            model = keras.models.load_model(f"{kind}.keras")
            layer = save_path_models.layer_of(model) if kind == "list" else model.get_layer("mine")
            keys, rows, slots, _, uses, _ = layer.variable.table.export()
            step = int((layer.optimizer or model.optimizer).iterations)
            unknown = layer.variable.lookup(np.arange(1000, 1060).reshape(20, 3))
            arrays = {"keys": keys, "rows": rows, "slots": slots, "uses": uses}
            np.savez(f"{kind}.npz", **arrays, step=step, unknown=unknown)
    """
    path = [os.path.abspath(one) for one in sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *KINDS],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
    )
    alike = [_read_alike(model, np.load(folder / f"{kind}.npz")) for kind, model in models.items()]
    return {aspect: all(one[aspect] for one in alike) for aspect in ASPECTS}


def _read_alike(model: keras.Model, read: Any) -> dict[str, bool]:
    order = np.argsort(read["keys"])
    keys, rows, slots = content(model)
    return {
        "rows": np.array_equal(keys, read["keys"][order])
        and np.array_equal(rows, read["rows"][order]),
        "slots": np.array_equal(slots, read["slots"][order]),
        "statistics": np.array_equal(statistics_of(model), read["uses"][order]),
        "step": step_of(model) == int(read["step"]),
        "unknown ids": np.array_equal(layer_of(model).variable.lookup(UNKNOWN), read["unknown"]),
    }


def keras_file_without_optimizer(way: str, folder: pathlib.Path) -> Any:
    model = trained(way)
    model.save(folder / "model.keras")
    other = keras.models.load_model(folder / "model.keras", compile=False)
    other.compile(untrained(way).optimizer, "mse")
    other.optimizer.build(other.trainable_variables)
    other.train_on_batch(UNKNOWN[:1] * 0 + 77, LABELS[:1])  # the first step of the new optimizer
    layer_of(other).variable.remove([77])
    step = step_of(model) == step_of(other) - 1 if way == "own" else False
    return {**kept(model, other), "step": step}


def keras_folder(way: str, folder: pathlib.Path) -> Any:
    model = trained(way)
    keras.saving.save_model(model, folder / "model", zipped=False)
    return model, keras.models.load_model(folder / "model")


def weights_file(
    name: str = "m.weights.h5", built: bool = True, shards: int = 1, **options: Any
) -> Callable[..., Any]:
    def run(way: str, folder: pathlib.Path) -> Any:
        model = trained(way)
        if name.endswith(".keras"):
            model.save(folder / name)
        else:
            model.save_weights(folder / name, **options)
        other = untrained(way, seed=2, devices=["/CPU:0"] * shards)
        if built:
            other.fit(IDS[::-1] + 3, LABELS, **FIT)
        other.load_weights(folder / name)
        return model, other

    return run


def skip_mismatch(way: str, folder: pathlib.Path) -> Any:
    model, other = trained(way), trained(way, seed=2)
    model.save_weights(folder / "m.weights.h5")
    other.load_weights(folder / "m.weights.h5", skip_mismatch=True)
    return model, other


def file_editor(way: str, folder: pathlib.Path) -> Any:
    model, other = trained(way), trained(way, seed=2)
    model.save_weights(folder / "m.weights.h5")
    keras.saving.KerasFileEditor(str(folder / "m.weights.h5")).save(folder / "n.weights.h5")
    other.load_weights(folder / "n.weights.h5")
    return model, other


def old_h5(way: str, folder: pathlib.Path) -> Any:
    trained(way).save(folder / "model.h5")


def weights(change: Callable[[Any], Any] = lambda array: array) -> Callable[..., Any]:
    def run(way: str, folder: pathlib.Path) -> Any:
        model, other = trained(way), untrained(way, seed=2)
        other.set_weights([change(one) for one in model.get_weights()])
        return model, other

    return run


def clone(way: str, folder: pathlib.Path) -> Any:
    model = trained(way)
    other = keras.models.clone_model(model)
    other.compile(untrained(way).optimizer, "mse")
    other.set_weights(model.get_weights())
    return model, other


def assign_variables(way: str, folder: pathlib.Path) -> Any:
    model, other = trained(way), untrained(way, seed=2)
    for target, source in zip(other.weights, model.weights, strict=True):
        target.assign(source)
    return model, other


def state_tree(value_format: str) -> Callable[..., Any]:
    def run(way: str, folder: pathlib.Path) -> Any:
        model = trained(way)
        other = keras.models.clone_model(model)
        optimizer = untrained(way).optimizer
        optimizer.name = model.optimizer.name
        other.compile(optimizer, "mse")
        other.fit(IDS[::-1] + 3, LABELS, **FIT)
        other.set_state_tree(model.get_state_tree(value_format))
        return model, other

    return run


def early_stopping(way: str, folder: pathlib.Path) -> Any:
    values = iter([1.0, 2.0, 2.0])

    class Value(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["value"] = next(values)

    stopping = keras.callbacks.EarlyStopping(
        "value", patience=2, mode="min", restore_best_weights=True
    )
    other = untrained(way)
    other.fit(IDS, LABELS, epochs=3, callbacks=[Value(), stopping], **FIT)
    return trained(way), other  # the state after the first epoch


def backup_and_restore(way: str, folder: pathlib.Path) -> Any:
    class Stop(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                raise InterruptedError

    backup = keras.callbacks.BackupAndRestore(str(folder / "backup"))
    with contextlib.suppress(InterruptedError):
        untrained(way).fit(IDS, LABELS, epochs=2, callbacks=[backup, Stop()], **FIT)
    model, other = untrained(way), untrained(way)
    model.fit(IDS, LABELS, epochs=2, **FIT)
    other.fit(IDS, LABELS, epochs=2, callbacks=[backup], **FIT)
    return model, other


def model_checkpoint(name: str) -> Callable[..., Any]:
    def run(way: str, folder: pathlib.Path) -> Any:
        only_weights = name.endswith(".weights.h5")
        callback = keras.callbacks.ModelCheckpoint(
            str(folder / name), "loss", save_best_only=True, save_weights_only=only_weights
        )
        model = untrained(way)
        model.fit(IDS, LABELS, callbacks=[callback], **FIT)
        if not only_weights:
            return model, keras.models.load_model(folder / name)
        other = untrained(way, seed=2)
        other.load_weights(folder / name)
        return model, other

    return run


def orbax(way: str, folder: pathlib.Path) -> Any:
    kind = keras.callbacks.OrbaxCheckpoint
    callback = kind.__new__(kind)  # orbax need not be installed to see its arguments
    callback.__dict__.update(
        monitor_op=np.less, save_freq="epoch", save_best_only=False, save_weights_only=False
    )
    callback.set_model(trained(way))
    callback.on_epoch_end(0)


def swap_ema(way: str, folder: pathlib.Path) -> Any:
    optimizer: Any = keras.optimizers.Adam(0.1, use_ema=True, name="adam")
    model = untrained(way)
    if way == "wrapper":
        optimizer = tf_embed.DynamicEmbeddingOptimizer(optimizer)
    model.compile(optimizer, "mse")
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    model.fit(IDS, LABELS, callbacks=[swap], **FIT)
    return model, model


def pickled(way: str, folder: pathlib.Path) -> Any:
    model = trained(way)
    return model, pickle.loads(pickle.dumps(model))


def deep_copied(way: str, folder: pathlib.Path) -> Any:
    model = trained(way)
    return model, copy.deepcopy(model)


def checkpoint(kind: str, *shards: int) -> Callable[..., Any]:
    """A checkpoint restored into a built model with a built optimizer; for each count of shards."""

    def run(way: str, folder: pathlib.Path) -> Any:
        model = first = trained(way, kind)
        for number in shards or (1,):
            options = {} if kind in ("subclassed", "list") else {"devices": ["/CPU:0"] * number}
            other = untrained(way, kind, seed=2, **options)
            other.optimizer.build(other.trainable_variables)
            path = tf.train.Checkpoint(model=model).save(str(folder / f"{number}"))
            tf.train.Checkpoint(model=other).restore(path).assert_consumed()
            model = other
        return first, model

    return run


def deferred_checkpoint(way: str, folder: pathlib.Path) -> Any:
    def unbuilt(seed: int) -> keras.Model:
        model = keras.Sequential([embedding(way, seed), keras.layers.Flatten(), head()])
        wrapped = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
        model.compile("sgd" if way == "own" else wrapped, "mse")
        return model

    model, other = unbuilt(1), unbuilt(2)
    model.fit(IDS, LABELS, **FIT)
    path = tf.train.Checkpoint(model=model).save(str(folder / "deferred"))
    status = tf.train.Checkpoint(model=other).restore(path)
    other(IDS[:1])
    other.optimizer.build(other.trainable_variables)
    status.assert_consumed()
    return model, other


def asynchronous_checkpoint(way: str, folder: pathlib.Path) -> Any:
    options = tf.train.CheckpointOptions(enable_async=True)
    tf.train.Checkpoint(model=trained(way)).save(str(folder / "async"), options=options)


def checkpoint_manager(way: str, folder: pathlib.Path) -> Any:
    model, other = untrained(way), untrained(way, seed=2)
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(m=model), folder, max_to_keep=1)
    for _ in range(3):
        model.fit(IDS, LABELS, **FIT)
        manager.save()
    other.optimizer.build(other.trainable_variables)
    tf.train.Checkpoint(m=other).restore(manager.latest_checkpoint).assert_consumed()
    return model, other


def alike_lookups(model: keras.Model, lookup: Callable[[Any], Any]) -> dict[str, bool]:
    """For paths that only serve: compares the rows of all keys, and of unknown ids."""
    keys, rows, _ = content(model)
    unknown = layer_of(model).variable.lookup(UNKNOWN)
    return {
        "rows": np.array_equal(lookup(keys), rows),
        "unknown ids": np.array_equal(lookup(UNKNOWN), unknown),
    }


def lookup_of(layer: DynamicEmbedding) -> Any:
    """A model of the layer alone, so that it serves rows."""
    ids = keras.Input([], dtype="int64")
    return keras.Model(ids, layer(ids))


def exported(layer: bool = False, times: int = 1) -> Callable[..., Any]:
    def run(way: str, folder: pathlib.Path) -> Any:
        model = trained(way)
        path = str(folder / "saved")
        lookup_of(layer_of(model)).export(path, verbose=False)
        if layer:
            loaded = [keras.layers.TFSMLayer(path, call_endpoint="serve")]
        else:
            loaded = [tf.saved_model.load(path) for _ in range(times)]

        def lookup(ids: Any) -> Any:
            flat = tf.constant(np.reshape(ids, [-1]), tf.int64)
            served = [one(flat) if layer else one.serve(flat) for one in loaded]
            (rows,) = {rows.numpy().tobytes() for rows in served}
            return np.frombuffer(rows, np.float32).reshape([*np.shape(ids), 2])

        return alike_lookups(model, lookup)

    return run


def exported_static(way: str, folder: pathlib.Path) -> Any:
    model = trained(way)
    path = str(folder / "static")
    tf_embed.export_static(lookup_of(layer_of(model)), path)
    loaded = tf.saved_model.load(path)

    def lookup(ids: Any) -> Any:
        flat = tf.constant(np.reshape(ids, [-1]), tf.int64)
        return loaded.serve(flat).numpy().reshape([*np.shape(ids), 2])

    return alike_lookups(model, lookup)


def saved_model(checkpointed: bool) -> Callable[..., Any]:
    def run(way: str, folder: pathlib.Path) -> Any:
        model = trained(way)
        module = tf.Module()
        module.v = layer_of(model).variable
        signature = [tf.TensorSpec(None, tf.int64)]
        module.lookup = tf.function(lambda ids: module.v.lookup(ids), input_signature=signature)
        tf.saved_model.save(module, str(folder / "saved"))
        loaded = tf.saved_model.load(str(folder / "saved"))
        if checkpointed:
            path = tf.train.Checkpoint(m=loaded).save(str(folder / "checkpoint"))
            other = tf.Module()
            initializer = keras.initializers.RandomUniform(seed=2)
            other.v = tf_embed.Variable(dim=2, initializer=initializer, devices=["/CPU:0"] * 2)
            tf.train.Checkpoint(m=other).restore(path).expect_partial()
            return alike_lookups(model, other.v.lookup)
        return alike_lookups(model, lambda ids: loaded.lookup(tf.constant(ids, tf.int64)))

    return run


_WEIGHTS = dict.fromkeys(
    ("slots", "step"),
    "not carried: Weights carry no optimizer state; the model's stays, as in Keras.",
)
_NEW = dict.fromkeys(
    ("slots", "step"),
    "not carried: A new optimizer of the model starts from its initial state, as in Keras.",
)
_SERVING = dict.fromkeys(
    ("slots", "statistics", "step"), "not carried: A served model is not trained."
)

SAVE_PATHS = (
    *(SavePath(f"`model.save('m.keras')`, {kind}", keras_file(kind)) for kind in KINDS),
    SavePath(
        "`m.keras` of each kind, in a process that only imports tf_embed",
        keras_file_in_a_new_process,
    ),
    SavePath(
        "`load_model('m.keras', compile=False)`, `compile`", keras_file_without_optimizer, _NEW
    ),
    SavePath("`save_model(model, folder, zipped=False)`", keras_folder),
    SavePath("`save_weights('m.weights.h5')`", weights_file()),
    SavePath("`m.weights.h5` into a model that made no step", weights_file(built=False)),
    SavePath("`m.weights.h5` into 3 shards", weights_file(shards=3)),
    SavePath("`load_weights('m.keras')`", weights_file("m.keras")),
    SavePath(
        "`save_weights('m.weights.json', max_shard_size=...)`",
        weights_file("m.weights.json", max_shard_size=0.9 / 1024**2),
    ),
    SavePath("`load_weights(..., skip_mismatch=True)`", skip_mismatch),
    SavePath(
        "`KerasFileEditor(...).save(...)`",
        file_editor,
    ),
    SavePath(
        "`model.save('m.h5')`, the old format", old_h5, raises="The rows of 'mine' can't be saved"
    ),
    SavePath("`get_weights`, `set_weights`", weights(), _WEIGHTS),
    SavePath("the same, pickled", weights(lambda one: pickle.loads(pickle.dumps(one))), _WEIGHTS),
    SavePath(
        "the same, through `np.array`", weights(np.array), raises="The rows of 'mine' are not in"
    ),
    SavePath("`clone_model`, `set_weights`", clone, _WEIGHTS),
    SavePath("`variable.assign(other_variable)` for all", assign_variables, _WEIGHTS),
    SavePath(
        "`get_state_tree('numpy_array')`, `set_state_tree`",
        state_tree("numpy_array"),
        raises="`get_state_tree` does not carry",
    ),
    SavePath(
        "`get_state_tree()`, `set_state_tree`",
        state_tree("backend_tensor"),
        raises="The rows of 'mine' are not in",
    ),
    SavePath("`EarlyStopping(restore_best_weights=True)`", early_stopping, _WEIGHTS),
    SavePath("`BackupAndRestore`", backup_and_restore),
    SavePath("`ModelCheckpoint('m.keras')`", model_checkpoint("m.keras")),
    SavePath("`ModelCheckpoint('m.weights.h5')`", model_checkpoint("m.weights.h5")),
    SavePath("`OrbaxCheckpoint`", orbax, raises="`get_state_tree` does not carry"),
    SavePath(
        "`SwapEMAWeights`",
        swap_ema,
        raises=(
            "keras.callbacks.SwapEMAWeights does not",
            "The optimizer 'adam' must not use use_ema",
        ),
    ),
    SavePath("`pickle`", pickled),
    SavePath("`copy.deepcopy`", deep_copied),
    *(SavePath(f"`tf.train.Checkpoint`, {kind}", checkpoint(kind)) for kind in KINDS),
    SavePath("`tf.train.Checkpoint`, 1 to 3 to 2 shards", checkpoint("functional", 3, 2)),
    SavePath("`tf.train.Checkpoint` before the layer is built", deferred_checkpoint),
    SavePath("`tf.train.CheckpointManager`", checkpoint_manager),
    SavePath(
        "`tf.train.CheckpointOptions(enable_async=True)`",
        asynchronous_checkpoint,
        raises="The table of 'mine' can't be saved by an async",
    ),
    SavePath("`model.export`", exported(), _SERVING),
    SavePath("`model.export`, loaded twice", exported(times=2), _SERVING),
    SavePath("`model.export`, `TFSMLayer`", exported(layer=True), _SERVING),
    SavePath("`tf_embed.export_static`", exported_static, _SERVING),
    SavePath("`tf.saved_model.save`", saved_model(checkpointed=False), _SERVING),
    SavePath("checkpoint of a loaded SavedModel", saved_model(checkpointed=True), _SERVING),
)
