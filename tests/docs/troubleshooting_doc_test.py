# SPDX-License-Identifier: Apache-2.0
"""docs/guides/troubleshooting.md: code raises the error of its heading, and the fix works."""

from __future__ import annotations

import contextlib
import re
import tempfile
from typing import Any

import tensorflow as tf

from support import ROOT

DOC = (ROOT / "docs" / "guides" / "troubleshooting.md").read_text()


class TroubleshootingDocTest(tf.test.TestCase):
    def test_each_heading_is_in_an_error_and_the_remedy_works(self):
        start, *sections = re.split(r"^## ", DOC, flags=re.MULTILINE)
        names: dict[str, Any] = {}
        tried = 0
        with contextlib.chdir(tempfile.mkdtemp(dir=self.get_temp_dir())):
            exec(*re.findall(r"```python\n(.*?)```", start, re.DOTALL), names)
            for section in sections:
                heading = section.partition("\n")[0]
                pieces = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
                if not pieces:
                    continue
                wrong, right = pieces
                with self.subTest(heading):
                    with self.assertRaises((TypeError, ValueError, tf.errors.OpError)) as raised:
                        exec(wrong, names)
                    self.assertIn(heading, str(raised.exception))
                    exec(right, names)
                tried += 1
        self.assertEqual(tried, 12)

    def test_messages_at_import_are_those_of_the_code(self):
        code = (ROOT / "tf_embed" / "_library.py").read_text()
        for message in re.findall(r"^\| `([^`]+)` \|", DOC, re.MULTILINE):
            self.assertIn(message, code)


if __name__ == "__main__":
    tf.test.main()
