# SPDX-License-Identifier: Apache-2.0
"""Tables in files, by SOK's names."""

from __future__ import annotations

import collections
from typing import Any

import keras

from tf_embed import validation
from tf_embed.sok.functions import table_of
from tf_embed.table.table import Table
from tf_embed.variable.row_files import RowFiles, folder_of


def dump(path: Any, dump_vars: Any, optimizer: Any = None) -> None:
    """Writes tables to files, as `tf_embed.Variable.save_rows` does.

    Optimizer slots are always included. The optimizer's step is not.

    Args:
        path: The folder. It is created.
        dump_vars: A table, or a list of tables with different names.
        optimizer: Has no effect, because slots belong to the rows. Default: None.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If two tables have the same name, or another table with a default name was
            written to the folder.
        tf.errors.OpError: If the files can't be written.

    Example:
        >>> import tempfile, tf_embed
        >>> from tf_embed import sok
        >>> folder = tempfile.mkdtemp()
        >>> v = tf_embed.Variable(dim=1, name="items")
        >>> sok.assign(v, [5], [[0.5]])
        >>> sok.dump(folder, v)
        >>> v.clear()
        >>> sok.load(folder, v)
        >>> v.lookup([5]).numpy().tolist()
        [[0.5]]
    """
    _check_optimizer(optimizer)
    for table in _tables_of(dump_vars, "dump_vars"):
        files = RowFiles(table)
        files.save(files.place(path))


def load(path: Any, load_vars: Any, optimizer: Any = None) -> None:
    """Loads tables that `dump` wrote, with any number of workers.

    Rows of loaded keys are replaced, other rows stay.

    Args:
        path: The folder.
        load_vars: A table, or a list of tables with the names of the saved tables.
        optimizer: The optimizer that trains the tables. It must be built, because building it later
            drops the slots. Default: None.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If two tables have the same name, or the optimizer is not built.
        tf.errors.NotFoundError: If the folder has no complete save of a table.
        tf.errors.DataLossError: If a file is damaged.

    Example:
        >>> import tempfile, tf_embed
        >>> from tf_embed import sok
        >>> folder = tempfile.mkdtemp()
        >>> v = tf_embed.Variable(dim=1, name="items")
        >>> sok.assign(v, [5], [[0.5]])
        >>> sok.dump(folder, v)
        >>> v.clear()
        >>> sok.load(folder, v)
        >>> v.lookup([5]).numpy().tolist()
        [[0.5]]
    """
    _check_optimizer(optimizer)
    if optimizer is not None and not optimizer.built:
        raise ValueError(
            "`optimizer` must be built before rows are loaded, because it drops the slots that it "
            "finds when it is built: call optimizer.build(model.trainable_variables). Received: "
            f"optimizer={optimizer.name!r}"
        )
    for table in _tables_of(load_vars, "load_vars"):
        files = RowFiles(table)
        files.load(files.place(path), whole=True)


class Saver:
    """`dump` and `load` by the names of SOK's first version.

    Example:
        >>> import tempfile, tf_embed
        >>> from tf_embed import sok
        >>> folder = tempfile.mkdtemp()
        >>> layer = sok.All2AllDenseEmbedding(64, 1, 1, 1, name="items")
        >>> layer.build()
        >>> sok.assign(layer, [1, 2], [[0.5], [1.5]])
        >>> sok.Saver().dump_to_file(layer.embedding_variable, folder)
        >>> other = sok.All2AllDenseEmbedding(64, 1, 1, 1, name="items")
        >>> other.build()
        >>> sok.Saver().restore_from_file(other.embedding_variable, folder)
        >>> other.embedding_variable.lookup([2]).numpy().tolist()
        [[1.5]]
    """

    def dump_to_file(self, embedding_variable: Any, filepath: Any) -> None:
        """Writes a table to files; see `dump`.

        Args:
            embedding_variable: A table.
            filepath: The folder.
        """
        dump(folder_of(filepath, "filepath"), embedding_variable)

    def restore_from_file(self, embedding_variable: Any, filepath: Any) -> None:
        """Loads a table; see `load`.

        Args:
            embedding_variable: A table.
            filepath: The folder.
        """
        load(folder_of(filepath, "filepath"), embedding_variable)


def _tables_of(some: Any, argument: str) -> list[Table]:
    """The tables that share a folder.

    Raises:
        TypeError: If an item is not a table.
        ValueError: If two tables have the same name.
    """
    is_several = isinstance(some, (list, tuple))
    tables = [table_of(one, argument) for one in (some if is_several else [some])]
    for name, count in collections.Counter(table.options.name for table in tables).items():
        if count > 1:
            raise ValueError(
                f"`{argument}` must have different names, which name the files. Received: {count} "
                f"tables named {name!r}"
            )
    return tables


def _check_optimizer(optimizer: Any) -> None:
    if optimizer is not None and not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            "`optimizer` must be a Keras optimizer or None. Received: optimizer="
            f"{validation.shown(optimizer)}"
        )
