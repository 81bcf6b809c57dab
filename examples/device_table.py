# SPDX-License-Identifier: Apache-2.0
"""A hash table in the memory of a GPU, driven from PyTorch, CuPy or NumPy without TensorFlow.

`make cuda-library` builds the library with nvcc. Arrays are tensors of PyTorch or CuPy on the
table's GPU, or, for a table on the host (`device=-1`), of NumPy, or PyTorch's on the CPU:

    python examples/device_table.py build/cuda/libtf_embed_device.so      # trains on the GPU
    python examples/device_table.py LIBRARY --device=-1                   # on the host
"""

import argparse
import ctypes
from collections.abc import Iterator
from typing import Any

TYPES = {"float32": 0, "float16": 1, "bfloat16": 2, "float64": 3, "int8": 4, "int32": 5, "int64": 6}
INITIALIZERS = {"constant": 0, "uniform": 1, "normal": 2, "truncated_normal": 3}
RULES = {
    "sgd": 1,
    "momentum": 2,
    "adagrad": 3,
    "rowwise_adagrad": 4,
    "adam": 5,
    "adam_amsgrad": 6,
    "rmsprop": 7,
    "ftrl": 11,
    "smart_decay_adam": 24,
}


class _Options(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("dim", ctypes.c_uint64),
        ("init_size", ctypes.c_uint64),
        ("max_bytes", ctypes.c_uint64),
        ("initializer", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("a", ctypes.c_double),
        ("b", ctypes.c_double),
        ("seed", ctypes.c_uint64),
        ("table_id", ctypes.c_uint64),
        ("max_host_bytes", ctypes.c_uint64),
        ("max_row_bytes", ctypes.c_uint64),
    ]


class _Step(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int32),
        ("nesterov", ctypes.c_int32),
        ("step", ctypes.c_int64),
        ("learning_rate", ctypes.c_double),
        ("weight_decay", ctypes.c_double),
        ("initial_slot", ctypes.c_double),
        ("momentum", ctypes.c_double),
        ("epsilon", ctypes.c_double),
        ("beta_1", ctypes.c_double),
        ("beta_2", ctypes.c_double),
        ("rho", ctypes.c_double),
        ("learning_rate_power", ctypes.c_double),
        ("l1", ctypes.c_double),
        ("l2", ctypes.c_double),
        ("l2_shrinkage", ctypes.c_double),
        ("beta", ctypes.c_double),
    ]


class _Stats(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "rows",
            "payload_bytes",
            "index_bytes",
            "slack_bytes",
            "admitted",
            "refused",
            "evicted",
            "hits",
            "misses",
            "pinned_bytes",
        )
    ]


def pointer(array: Any) -> int | None:
    """Returns the address of a dense array of any of the libraries; None for None."""
    if array is None:
        return None
    if isinstance(array, ctypes.Array):
        return ctypes.addressof(array)
    if hasattr(array, "data_ptr"):  # PyTorch
        if not array.is_contiguous():
            raise ValueError(f"`array` must be contiguous. Received: strides {array.stride()}.")
        return array.data_ptr()
    for interface in ("__cuda_array_interface__", "__array_interface__"):
        described = getattr(array, interface, None)
        if described is not None:
            if described.get("strides") is not None:
                raise ValueError(
                    f"`array` must be contiguous. Received: strides {described['strides']}."
                )
            return described["data"][0]
    raise TypeError(f"`array` must be of PyTorch, CuPy, NumPy or ctypes. Received: {type(array)}.")


class DeviceTable:
    """A dynamic hash table: from int64 keys to rows, in device memory.

    Verbs take arrays that lie on the table's device; their work is queued on `stream`, the number
    of a `cudaStream_t` (`torch.cuda.current_stream().cuda_stream`), 0 for the default one, and the
    arrays must live until it is done. A failure is a RuntimeError with the library's words.

    Args:
        library: path of `libtf_embed_device.so`.
        dim: int, values of a row.
        dtype: one of `TYPES`.
        device: number of the GPU; -1: the host in its place.
        name: for messages.
        init_size: rows to make room for.
        max_bytes: limit of index and rows on the device; 0: all that it has. A full table refuses
            new keys and counts them.
        max_host_bytes: bytes of pinned memory of the host for the rows that are more than
            `max_row_bytes` on the device; 0: none.
        max_row_bytes: see above.
        initializer: one of `INITIALIZERS`; of initial rows, with `a`, `b` and `seed`.
    """

    def __init__(
        self,
        library: str,
        dim: int,
        dtype: str = "float32",
        device: int = 0,
        name: str = "table",
        init_size: int = 0,
        max_bytes: int = 0,
        max_host_bytes: int = 0,
        max_row_bytes: int = 0,
        initializer: str = "constant",
        a: float = 0.0,
        b: float = 0.0,
        seed: int = 0,
    ) -> None:
        self._library = ctypes.CDLL(library)
        self._library.tf_embed_last_error.restype = ctypes.c_char_p
        self._library.tf_embed_table_free.restype = None
        self._library.tf_embed_export_free.restype = None
        self._table = ctypes.c_void_p()
        self.dim = dim
        self.dtype = dtype
        options = _Options(
            name=name.encode(),
            type=TYPES[dtype],
            device=device,
            dim=dim,
            init_size=init_size,
            max_bytes=max_bytes,
            max_host_bytes=max_host_bytes,
            max_row_bytes=max_row_bytes,
            initializer=INITIALIZERS[initializer],
            a=a,
            b=b,
            seed=seed,
        )
        self._call("table_new", ctypes.byref(options), ctypes.byref(self._table))

    def close(self) -> None:
        """Frees the table. Waits for the device."""
        self._library.tf_embed_table_free(self._table)
        self._table = ctypes.c_void_p()

    def __enter__(self) -> "DeviceTable":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        rows = ctypes.c_uint64()
        self._call("table_size", self._table, ctypes.byref(rows))
        return rows.value

    def find(
        self,
        keys: Any,
        weights: Any,
        exists: Any = None,
        default_row: Any = None,
        stream: int = 0,
    ) -> None:
        """Copies rows to `weights` [keys, dim]; `exists` [keys], of bytes, says which are there."""
        self._verb("find", stream, keys, pointer(default_row), pointer(weights), pointer(exists))

    def find_or_insert(
        self,
        keys: Any,
        weights: Any,
        exists: Any = None,
        default_row: Any = None,
        stream: int = 0,
    ) -> None:
        """As `find`, and inserts absent keys."""
        self._verb(
            "find_or_insert",
            stream,
            keys,
            pointer(default_row),
            pointer(weights),
            pointer(exists),
        )

    def insert_or_assign(self, keys: Any, weights: Any, stream: int = 0) -> None:
        """Sets rows [keys, dim]; of equal keys the last one's."""
        self._verb("insert_or_assign", stream, keys, pointer(weights))

    def apply(
        self,
        keys: Any,
        gradients: Any,
        rule: str,
        step: int,
        *,
        dtype: str = "float32",
        begins: Any = None,
        factors: Any = None,
        stream: int = 0,
        **hyper_parameters: float,
    ) -> None:
        """Runs one step of an optimizer, on the sums of the gradients of equal keys.

        Args:
            keys: int64 [keys].
            gradients: [keys, dim] of `dtype`; or, with `begins`, any values.
            rule: one of `RULES`.
            step: int, from 1.
            dtype: of the gradients: the table's, or float32 beside 16-bit floats.
            begins: uint64 [keys], the index of each key's first gradient; so the gradients
                of bags need no copy for each key.
            factors: [keys], the factor of each gradient.
            stream: number of the stream.
            **hyper_parameters: `learning_rate` and others that the rule names (`_Step`).
        """
        given = _Step(kind=RULES[rule], step=step, **hyper_parameters)
        self._verb(
            "apply",
            stream,
            keys,
            pointer(gradients),
            ctypes.c_int32(TYPES[dtype]),
            pointer(begins),
            pointer(factors),
            ctypes.byref(given),
        )

    def erase(self, keys: Any, stream: int = 0) -> None:
        """Removes keys; absent ones are no error."""
        self._verb("erase", stream, keys)

    def clear(self) -> None:
        """Removes all keys and gives their memory back."""
        self._call("table_clear", self._table)

    def stats(self) -> dict[str, int]:
        """Returns the table's size and memory, and counts of its events."""
        stats = _Stats()
        self._call("table_stats", self._table, ctypes.byref(stats))
        return {name: getattr(stats, name) for name, _ in _Stats._fields_}

    def export(self, max_rows: int = 1 << 16) -> Iterator[tuple[list[int], bytes]]:
        """Yields all rows in parts of about `max_rows`: keys, and the bytes of their weights."""
        exported = ctypes.c_void_p()
        self._call("export_new", self._table, ctypes.c_uint64(max_rows), ctypes.byref(exported))
        try:
            keys = ctypes.POINTER(ctypes.c_int64)()
            weights = ctypes.c_void_p()
            count = ctypes.c_uint64(1)
            size = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "int8": 1}
            row_bytes = self.dim * size.get(self.dtype, 2)
            while True:
                self._call(
                    "export_next",
                    exported,
                    ctypes.byref(keys),
                    ctypes.byref(weights),
                    ctypes.byref(count),
                )
                if count.value == 0:
                    return
                yield (
                    keys[: count.value],
                    ctypes.string_at(weights.value or 0, count.value * row_bytes),
                )
        finally:
            self._library.tf_embed_export_free(exported)

    def _verb(self, verb: str, stream: int, keys: Any, *arguments: Any) -> None:
        as_pointers = [
            ctypes.c_void_p(x) if x is None or isinstance(x, int) else x for x in arguments
        ]
        self._call(
            "table_" + verb,
            self._table,
            ctypes.c_void_p(stream),
            ctypes.c_void_p(pointer(keys)),
            ctypes.c_size_t(len(keys)),
            *as_pointers,
        )

    def _call(self, function: str, *arguments: Any) -> None:
        if getattr(self._library, "tf_embed_" + function)(*arguments) != 0:
            raise RuntimeError(self._library.tf_embed_last_error().decode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("library", help="libtf_embed_device.so")
    parser.add_argument("--device", type=int, default=0, help="number of the GPU; -1: the host")
    parser.add_argument("--steps", type=int, default=100)
    given = parser.parse_args()

    import torch

    on_host = given.device < 0
    where = torch.device("cpu" if on_host else f"cuda:{given.device}")
    stream = 0 if on_host else torch.cuda.current_stream(where).cuda_stream
    dim = 16
    # Each id has a number that the sum of its row shall become.
    with DeviceTable(
        given.library, dim, device=given.device, initializer="uniform", a=-0.05, b=0.05
    ) as table:
        for step in range(1, given.steps + 1):
            ids = torch.randint(0, 10000, (4096,), device=where) * 1_000_003
            wanted = (ids % 7).float()
            rows = torch.empty((len(ids), dim), device=where, requires_grad=True)
            table.find(ids, rows, stream=stream)
            loss = ((rows.sum(1) - wanted) ** 2).mean()
            (gradients,) = torch.autograd.grad(loss * len(ids), rows)
            table.apply(
                ids,
                gradients.contiguous(),
                "adagrad",
                step,
                learning_rate=0.1,
                epsilon=1e-7,
                initial_slot=0.1,
                stream=stream,
            )
            if step % 20 == 0 or step == 1:
                print(f"step {step:4d}  loss {loss.item():.4f}  rows {len(table)}")


if __name__ == "__main__":
    main()
