# SPDX-License-Identifier: Apache-2.0
"""`BackupAndRestore`: Keras's callback with atomic backups."""

from __future__ import annotations

import os
import re
import secrets
from typing import Any

import keras
import tensorflow as tf

from tf_embed import validation
from tf_embed.saving import durable, guarded_files

_CURRENT = "current"  # a file with the folder name of the newest complete backup
_BACKUP = re.compile(r"backup-(\d+)")
_MOST_BYTES = 256  # maximum size of that file
_UNFINISHED = re.compile(r"unfinished-[0-9a-f]{8}")


class BackupAndRestore(keras.callbacks.BackupAndRestore):
    """Keras's `BackupAndRestore` with atomic backups: a backup is complete or absent.

    Keras overwrites the weights of the previous backup, and then writes the epoch number. A process
    that is killed between the two writes trains an epoch twice. A process that is killed during a
    write leaves no backup. This callback writes each backup to a separate folder, names it in a
    small file, and removes the previous backup. So training resumes after the last backup, with the
    weights, rows and optimizer state of that moment.

    As with Keras, the model must be built before `fit`, and training resumes at the beginning of an
    epoch. With a number for `save_freq`, the batches of that epoch that were trained before the
    backup are trained again. A later `fit` of the same model also begins at that epoch. All workers
    pass the same shared folder. Backups of Keras's callback are not read. On a local disk, a backup
    is synced before the previous backup is removed, so it also survives a crash of the machine.

    Args:
        backup_dir: The folder for backups of this training, on any file system that TensorFlow
            knows. Renaming a file there must replace an existing file.
        save_freq: "epoch" for a backup at the end of each epoch, or a number of batches, an int
            from 1.
        delete_checkpoint: Whether backups are removed when training has ended.

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: If `backup_dir` is empty, or `save_freq` is out of range.
        FileNotFoundError: When training begins, if the newest backup is missing.
        tf.errors.DataLossError: When training begins, if the file with its name is damaged.

    Example:
        >>> import keras, numpy as np, tempfile, tf_embed
        >>> model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> backup = tf_embed.callbacks.BackupAndRestore(
        ...     tempfile.mkdtemp(), delete_checkpoint=False)
        >>> x, y = np.ones([4, 1]), np.ones([4])
        >>> len(model.fit(x, y, epochs=2, callbacks=[backup], verbose=0).epoch)
        2
        >>> model.fit(x, y, epochs=3, callbacks=[backup], verbose=0).epoch
        [2]
    """

    def __init__(
        self,
        backup_dir: str | os.PathLike[str],
        save_freq: str | int = "epoch",
        delete_checkpoint: bool = True,
    ) -> None:
        self._folder = validation.path_of(backup_dir, "backup_dir")
        if not isinstance(save_freq, str) or save_freq != "epoch":
            save_freq = validation.int_in(save_freq, "save_freq")
        delete_checkpoint = validation.flag(delete_checkpoint, "delete_checkpoint")
        # Keras writes into this folder, and `_commit` renames it once it is complete.
        aside = os.path.join(self._folder, f"unfinished-{secrets.token_hex(4)}")
        super().__init__(aside, save_freq=save_freq, delete_checkpoint=delete_checkpoint)

    def on_train_begin(self, logs: Any = None) -> None:
        """Restores the newest backup, if there is one."""
        if tf.io.gfile.isdir(self.backup_dir):  # an earlier `fit` failed during a save
            guarded_files.remove_tree(self.backup_dir)
        name = self._current()
        if name is None:
            return
        path = os.path.join(self._folder, name)
        if not tf.io.gfile.isdir(path):
            raise FileNotFoundError(
                f"The newest backup in {self._folder!r} is {name!r}, which is not there."
            )
        backup = keras.callbacks.BackupAndRestore(path)
        backup.set_model(self.model)
        backup.on_train_begin(logs)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Sets the epoch of the backups that Keras writes after batches, and counts from 0."""
        if self.save_freq != "epoch":
            # Keras sets it at the end of the previous epoch, which may have been in another `fit`.
            super().on_epoch_end(epoch - 1)
            # Keras starts at batch 0, as if it were complete. If the first execution has several
            # batches, Keras then counts one batch too few.
            self._last_batch_seen = -1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commits a backup if Keras has written one."""
        super().on_train_batch_end(batch, logs)
        self._commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commits a backup if Keras has written one."""
        super().on_epoch_end(epoch, logs)
        self._commit()

    def on_train_end(self, logs: Any = None) -> None:
        """Removes the backups if `delete_checkpoint` is set."""
        if not self.delete_checkpoint:
            return
        current = os.path.join(self._folder, _CURRENT)
        if tf.io.gfile.exists(current):
            tf.io.gfile.remove(current)
        self._remove_except(None)
        if tf.io.gfile.isdir(self._folder) and not self._names():
            guarded_files.remove_tree(self._folder)

    def _commit(self) -> None:
        """Renames a backup that Keras has just written, and makes it the newest backup."""
        if not tf.io.gfile.isdir(self.backup_dir):
            return
        numbers = [int(found[1]) for one in self._names() if (found := _BACKUP.fullmatch(one))]
        name = f"backup-{max(numbers, default=0) + 1:06}"
        durable.sync_tree(self.backup_dir)
        tf.io.gfile.rename(self.backup_dir, os.path.join(self._folder, name))
        path = os.path.join(self._folder, _CURRENT)
        guarded_files.remove_link(f"{path}.new")
        with tf.io.gfile.GFile(f"{path}.new", "w") as file:
            file.write(f"{name}\n")
        durable.sync(f"{path}.new")
        durable.sync(self._folder)  # the renamed folder must be durable before a file names it
        # From here on the new backup counts.
        tf.io.gfile.rename(f"{path}.new", path, overwrite=True)
        durable.sync(self._folder)
        durable.sync_parent(self._folder)
        self._remove_except(name)

    def _current(self) -> str | None:
        path = os.path.join(self._folder, _CURRENT)
        if not tf.io.gfile.exists(path):
            return None
        name = guarded_files.read(path, _MOST_BYTES).decode("utf-8", "replace").strip()
        if _BACKUP.fullmatch(name) is None:
            raise tf.errors.DataLossError(
                None,
                None,
                f"'{path}' is damaged: it must have the name of a backup. Received: {name!r}",
            )
        return name

    def _names(self) -> list[str]:
        if not tf.io.gfile.isdir(self._folder):
            return []
        return [name.rstrip("/") for name in tf.io.gfile.listdir(self._folder)]

    def _remove_except(self, kept: str | None) -> None:
        for name in self._names():
            is_ours = _BACKUP.fullmatch(name) or _UNFINISHED.fullmatch(name)
            if is_ours and name != kept:
                guarded_files.remove_tree(os.path.join(self._folder, name))
