# SPDX-License-Identifier: Apache-2.0
"""The C interface of a DeviceTable from Python: the driver of examples/, on the host.

Needs only Python, so that Bazel's tests do not need an environment. Called with the paths
of the library and of the driver.
"""

import ctypes
import importlib.util
import struct
import sys
import unittest

sys.dont_write_bytecode = True
LIBRARY = sys.argv.pop(1)
_SPEC = importlib.util.spec_from_file_location("device_table", sys.argv.pop(1))
driver = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(driver)


def keys(*values):
    return (ctypes.c_int64 * len(values))(*values)


def floats(*values):
    return (ctypes.c_float * len(values))(*values)


def table(dim=2, **options):
    return driver.DeviceTable(LIBRARY, dim, device=-1, name="items", **options)


class DeviceTableTest(unittest.TestCase):
    def test_rows_that_were_assigned_are_found_and_others_are_defaults(self):
        with table(initializer="constant", a=7.0) as items:
            items.insert_or_assign(keys(1, 2, 1), floats(1, 1, 2, 2, 3, 3))
            rows, exists = floats(*[0] * 6), (ctypes.c_uint8 * 3)()
            items.find(keys(1, 2, 3), rows, exists)
            self.assertEqual([3, 3, 2, 2, 7, 7], list(rows))
            self.assertEqual([1, 1, 0], list(exists))
            items.find(keys(3), rows, default_row=floats(4, 5))
            self.assertEqual([4, 5], list(rows)[:2])
            self.assertEqual(2, len(items))

    def test_find_or_insert_and_erase(self):
        with table(initializer="uniform", a=-1.0, b=1.0, seed=3) as items:
            first, again = floats(0, 0), floats(0, 0)
            items.find_or_insert(keys(-5), first)
            items.find(keys(-5), again)
            self.assertEqual(list(first), list(again))
            self.assertNotEqual(first[0], first[1])
            items.erase(keys(-5, 6))
            self.assertEqual(0, len(items))
            items.find_or_insert(keys(-5, 6), floats(0, 0, 0, 0))
            items.clear()
            self.assertEqual(0, len(items))

    def test_apply_sums_equal_keys_and_reads_gradients_where_they_begin(self):
        with table() as items:
            items.apply(keys(1, 2, 1), floats(1, 2, 3, 4, 5, 6), "sgd", 1, learning_rate=1.0)
            rows = floats(0, 0, 0, 0)
            items.find(keys(1, 2), rows)
            self.assertEqual([-6, -8, -3, -4], list(rows))
            begins = (ctypes.c_size_t * 2)(2, 2)
            items.apply(
                keys(1, 2),
                floats(9, 9, 1, 2),
                "sgd",
                2,
                begins=begins,
                factors=floats(1, 10),
                learning_rate=1.0,
            )
            items.find(keys(1, 2), rows)
            self.assertEqual([-7, -10, -13, -24], list(rows))

    def test_all_rules_run(self):
        for rule in driver.RULES:
            with table(a=1.0) as items:
                items.apply(
                    keys(1),
                    floats(1, 1),
                    rule,
                    1,
                    learning_rate=0.1,
                    epsilon=1e-7,
                    initial_slot=0.1,
                    beta_1=0.9,
                    beta_2=0.999,
                    learning_rate_power=-0.5,
                )
                rows = floats(0, 0)
                items.find(keys(1), rows)
                self.assertLess(rows[0], 1.0, rule)

    def test_smart_decay_adam_makes_up_for_steps_that_left_a_row_out(self):
        options = {"learning_rate": 0.1, "beta_1": 0.9, "beta_2": 0.99, "epsilon": 1e-7}
        rows = {}
        for rule in ("adam", "smart_decay_adam"):
            with table(a=1.0) as items:
                # Adam gets gradients of zero for the steps that the other rule makes up for.
                for step in range(1, 9):
                    gradients = {1: (1.0, -2.0), 8: (0.5, 0.25)}.get(step, (0.0, 0.0))
                    if rule == "adam" or any(gradients):
                        items.apply(keys(7), floats(*gradients), rule, step, **options)
                rows[rule] = floats(0, 0)
                items.find(keys(7), rows[rule])
        for made_up, trained in zip(rows["smart_decay_adam"], rows["adam"], strict=True):
            self.assertAlmostEqual(trained, made_up, places=5)
        self.assertLess(rows["adam"][0], 0.7)

    def test_export_gives_each_row_once(self):
        with table(dim=1) as items:
            numbers = list(range(-500, 500))
            items.insert_or_assign(keys(*numbers), floats(*[2 * x for x in numbers]))
            found = {}
            for part, weights in items.export(max_rows=100):
                for key, (value,) in zip(part, struct.iter_unpack("f", weights), strict=True):
                    self.assertNotIn(key, found)
                    found[key] = value
            self.assertEqual({x: 2.0 * x for x in numbers}, found)

    def test_a_bound_on_bytes_refuses_and_counts(self):
        with table(dim=64, max_bytes=100000) as items:
            items.insert_or_assign(keys(*range(1000)), floats(*[0.0] * 64000))
            stats = items.stats()
            self.assertEqual(1000, stats["rows"] + stats["refused"])
            self.assertGreater(stats["refused"], 100)
            self.assertGreater(stats["rows"], 100)

    def test_failures_are_told_in_words(self):
        with self.assertRaisesRegex(RuntimeError, "`dim` must be between 1 and .* Received: 0"):
            table(dim=0)
        with self.assertRaisesRegex(RuntimeError, "`device` must be .* Received: -2"):
            driver.DeviceTable(LIBRARY, 2, device=-2)
        with self.assertRaisesRegex(RuntimeError, "'table' can't be on a? ?GPU"):
            driver.DeviceTable(LIBRARY, 2, device=0)
        with table() as items:
            with self.assertRaisesRegex(RuntimeError, "`step` must be at least 1. Received: 0"):
                items.apply(keys(1), floats(1, 1), "sgd", 0)
            with self.assertRaisesRegex(RuntimeError, "gradients of table 'items' must be"):
                items.apply(keys(1), floats(1, 1), "sgd", 1, dtype="float64")
            with self.assertRaisesRegex(RuntimeError, "`weights` must be an array"):
                items.find(keys(1), None)
        with table(dtype="int32") as items, self.assertRaisesRegex(RuntimeError, "no optimizer"):
            items.apply(keys(1), floats(1, 1), "sgd", 1)
        with self.assertRaisesRegex(TypeError, "`array` must be of PyTorch"):
            driver.pointer([1, 2])


if __name__ == "__main__":
    unittest.main()
