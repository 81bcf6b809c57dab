# SPDX-License-Identifier: Apache-2.0
"""The programs of release/, the workflow and the papers of the project."""

from __future__ import annotations

import hashlib
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import tensorflow as tf
import yaml
from absl.testing import absltest, parameterized

import bill_of_materials
import check
import tf_embed
import wheels
from support import ROOT, pyproject

GITHUB = ROOT / ".github"

REPORT = """
tf_embed-0.1.0+tf2.21.0-py3-none-linux_x86_64.whl is consistent with
the following platform tag: "linux_x86_64".

The wheel references external versioned symbols in these
system-provided shared libraries: libc.so.6 with versions
{'GLIBC_2.34', 'GLIBC_2.4'}, libstdc++.so.6 with versions
{'GLIBCXX_3.4.9', 'GLIBCXX_3.4.30', 'CXXABI_1.3.9'}, libgcc_s.so.1 with
versions {'GCC_3.0'}

This constrains the platform tag to "manylinux_2_35_x86_64". In order
to achieve a more compatible tag, you would need to recompile.

The following external shared libraries are required by the wheel:
{
    "libfoo.so.1": "/usr/lib/libfoo.so.1",
    "libtensorflow_framework.so.2": null
}

In order to achieve the tag platform tag 'manylinux_2_35_x86_64' the
following shared library dependencies will need to be eliminated:

libtensorflow_framework.so.2
"""
PURE = 'a.whl is consistent with the following platform tag: "manylinux_2_17_x86_64".'


class WheelsTest(parameterized.TestCase):
    def test_a_report_tells_the_tag_and_what_it_is_due_to(self):
        self.assertEqual(
            wheels.audit_of(REPORT),
            wheels.Audit(
                tag="manylinux_2_35_x86_64",
                libraries=("libfoo.so.1", "libtensorflow_framework.so.2"),
                symbols={"CXXABI": "1.3.9", "GCC": "3.0", "GLIBC": "2.34", "GLIBCXX": "3.4.30"},
            ),
        )
        self.assertEqual(wheels.audit_of(PURE), wheels.Audit("manylinux_2_17_x86_64", (), {}))

    def test_a_report_without_a_tag_is_refused(self):
        with self.assertRaisesRegex(ValueError, "no platform tag. Received: nothing"):
            wheels.audit_of("nothing")

    def test_a_command_that_fails_ends_the_program(self):
        with self.assertRaisesRegex(SystemExit, "exit\\(3\\) failed"):
            wheels.run([sys.executable, "-c", "exit(3)"])

    def test_the_packages_of_the_caller_are_hidden(self):
        with absltest.mock.patch.dict("os.environ", {"PYTHONPATH": "x", "HOME": "/y"}):
            variables = wheels.clean_environment()
        self.assertNotIn("PYTHONPATH", variables)
        self.assertEqual(variables["HOME"], "/y")

    def test_there_is_a_wheel_for_each_minor_version_that_is_supported(self):
        extras = pyproject()["project"]
        (cpu,) = extras["optional-dependencies"]["cpu"]
        first, end = re.fullmatch(r"tensorflow-cpu>=2\.(\d+)\.\d+,<2\.(\d+)", cpu).groups()
        minors = [version.split(".")[1] for version in wheels.TENSORFLOWS]
        self.assertEqual(minors, [str(one) for one in range(int(first), int(end))])

    def test_a_list_keeps_the_wheels_of_other_versions_that_are_there(self):
        folder = pathlib.Path(tempfile.mkdtemp())
        for version in ("2.20.0", "2.21.0", "2.20.0"):
            wheel = _wheel(folder, version)
            wheels.write([wheel], folder / "wheels.json")
        (folder / _wheel(folder, "2.19.1").file).unlink()
        wheels.write([wheel], folder / "wheels.json")
        listed = json.loads((folder / "wheels.json").read_text())
        self.assertEqual([one["tensorflow"] for one in listed], ["2.20.0", "2.21.0"])


def _wheel(folder: pathlib.Path, tensorflow: str) -> wheels.Wheel:
    """Writes a fake wheel file, and returns its entry in the list."""
    file = f"tf_embed-1.2.3+tf{tensorflow}-py3-none-manylinux_2_35_x86_64.whl"
    (folder / file).write_bytes(tensorflow.encode())
    return wheels.Wheel(
        tensorflow=tensorflow,
        commit="c0ffee",
        file=file,
        size_bytes=6,
        sha256=hashlib.sha256(tensorflow.encode()).hexdigest(),
        tag="manylinux_2_35_x86_64",
        libraries=("libtensorflow_framework.so.2",),
        symbols={"GLIBC": "2.34"},
        smoke="",
        seconds=1,
    )


class BillOfMaterialsTest(absltest.TestCase):
    def test_it_names_what_is_compiled_in_and_what_the_wheel_runs_with(self):
        answers = {
            "TF_EMBED_TENSORFLOW_DIR": str(pathlib.Path(tf.__file__).parent),
            "TF_EMBED_TENSORFLOW_VERSION": tf.__version__,
        }
        parts = bill_of_materials.compiled_in(answers)
        self.assertCountEqual(parts, ["abseil-cpp", "eigen", "tensorflow"])
        self.assertRegex(parts["abseil-cpp"], r"^\d{8}$")
        self.assertRegex(parts["eigen"], r"^\d+\.\d+\.\d+$")
        environment = {"metadata": {"tools": {}}, "components": [{"name": "numpy"}]}
        bill = bill_of_materials.bill(environment, "1.2.3+tf2.21.0", "g++ 12", parts)
        self.assertEqual(bill["metadata"]["component"]["version"], "1.2.3+tf2.21.0")
        scopes = {one["name"]: one["scope"] for one in bill["components"]}
        self.assertEqual(scopes, {**dict.fromkeys(parts, "required"), "numpy": "excluded"})

    def test_a_header_without_a_version_is_an_error(self):
        header = pathlib.Path(tempfile.mkdtemp()) / "a.h"
        header.write_text("#define MAJOR 1\n")
        self.assertEqual(bill_of_materials.defined(header, "MAJOR"), "1")
        with self.assertRaisesRegex(ValueError, "a.h must define MINOR as a number"):
            bill_of_materials.defined(header, "MAJOR", "MINOR")


class ReleaseCheckTest(parameterized.TestCase):
    @parameterized.parameters(
        ("", "1.2.3", "## [1.2.3] - 2026-01-31\n", []),
        (" M README.md\n", "1.2.3", "## [1.2.3] - 2026-01-31\n", ["not committed: M README.md"]),
        ("", "1.2.3", "## [1.2.30] - 2026-01-31\n", ["no heading '## [1.2.3] - date'"]),
        ("", "1.2.3", "## [1.2.3] - Unreleased\n", ["no date. Received: Unreleased"]),
        ("", "1.2", "## [1.2] - 2026-01-31\n", ["three numbers. Received: 1.2"]),
    )
    def test_the_tree(self, status, version, changelog, expected):
        found = check.tree_faults(status, version, changelog)
        self.assertLen(found, len(expected), found)
        for fault, words in zip(found, expected, strict=True):
            self.assertIn(words, fault)

    def test_the_wheels(self):
        folder = pathlib.Path(tempfile.mkdtemp())
        self.assertIn("run `make wheels`", check.wheel_faults(folder, "1.2.3", "c0ffee")[0])
        made = [_wheel(folder, version) for version in wheels.TENSORFLOWS]
        wheels.write(made, folder / "wheels.json")
        self.assertEmpty(check.wheel_faults(folder, "1.2.3", "c0ffee"))
        for version, commit, words in (
            ("1.2.4", "c0ffee", "is not of version 1.2.4"),
            ("1.2.3", "decaf", "is of commit c0ffee, not of this one"),
        ):
            found = check.wheel_faults(folder, version, commit)
            self.assertLen(found, len(wheels.TENSORFLOWS))
            self.assertIn(words, found[0])
        (folder / made[0].file).write_text("another")
        (folder / made[1].file).unlink()
        found = check.wheel_faults(folder, "1.2.3", "c0ffee")
        self.assertLen(found, 2)
        self.assertIn("is not the file that was tried", found[0])
        self.assertIn("is gone", found[1])

    def test_the_program_names_what_is_missing(self):
        command = [sys.executable, ROOT / "release" / "check.py", "wheels"]
        with tempfile.TemporaryDirectory() as folder:
            command += [f"--output={folder}"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("run `make wheels`", done.stderr)


def _pythons() -> list[str]:
    """The minor versions of Python that the package supports, in order."""
    text = "\n".join(pyproject()["project"]["classifiers"])
    return re.findall(r"^Programming Language :: Python :: (3\.\d+)$", text, re.MULTILINE)


class PapersTest(parameterized.TestCase):
    def test_the_changelog_begins_with_this_version(self):
        changelog = (ROOT / "CHANGELOG.md").read_text()
        headings = re.findall(r"^## \[(.+?)\] - (\S+)$", changelog, re.MULTILINE)
        self.assertEqual(headings[0][0], tf_embed.__version__)
        self.assertRegex(headings[0][1], r"^(Unreleased|\d{4}-\d\d-\d\d)$")
        sections = set(re.findall(r"^### (.+)$", changelog, re.MULTILINE))
        known = {"Added", "Changed", "Deprecated", "Fixed", "Removed", "Security"}
        self.assertContainsSubset(sections, known)

    @parameterized.parameters("CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md")
    def test_links_lead_to_files(self, name):
        links = re.findall(r"\]\(([^)#]+)\)", (ROOT / name).read_text())
        missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
        self.assertEmpty(missing)

    def test_badges_and_the_readme_name_the_supported_versions(self):
        project = pyproject()["project"]
        pythons = _pythons()
        self.assertEqual(project["requires-python"], f">={pythons[0]}")
        first, last = (
            one.rpartition(".")[0] for one in (wheels.TENSORFLOWS[0], wheels.TENSORFLOWS[-1])
        )
        license_ = project["license"]
        for name, value in {
            "python": f"{pythons[0]} to {pythons[-1]}",
            "tensorflow": f"{first} to {last}",
            "license": license_.replace("-", " "),
        }.items():
            self.assertIn(f">{value}</text>", (ROOT / f"docs/images/badge_{name}.svg").read_text())
        readme = (ROOT / "README.md").read_text()
        self.assertRegex(
            readme,
            rf"Python {pythons[0]} to {pythons[-1]} and TensorFlow {first}\.\d+ to {last}\.",
        )

    def test_targets_that_are_named_are_there(self):
        rules = "".join(path.read_text() for path in (ROOT / "Makefile", *ROOT.glob("*/*.mk")))
        targets = {
            one for line in re.findall(r"^([\w -]+):", rules, re.MULTILINE) for one in line.split()
        }
        named = re.findall(r"`make ([\w-]+)", (ROOT / "CONTRIBUTING.md").read_text())
        self.assertGreater(len(named), 5)
        self.assertContainsSubset(set(named), targets)


class WorkflowTest(parameterized.TestCase):
    def test_the_workflow_runs_all_tests_and_builds_each_wheel(self):
        workflow = yaml.safe_load((GITHUB / "workflows" / "ci.yml").read_text())
        self.assertIn(True, workflow)  # YAML reads the word `on` as a boolean
        self.assertContainsSubset({"push", "pull_request"}, set(workflow[True]))
        jobs = workflow["jobs"]
        commands = [step.get("run") for step in jobs["test"]["steps"]]
        self.assertIn(".ci/run", commands)
        self.assertTrue((ROOT / ".ci" / "run").exists())
        matrix = jobs["wheels"]["strategy"]["matrix"]["tensorflow"]
        self.assertEqual(tuple(matrix), wheels.TENSORFLOWS)
        commands = [step.get("run", "") for step in jobs["wheels"]["steps"]]
        self.assertIn("make wheels TENSORFLOWS=${{ matrix.tensorflow }}", commands)
        self.assertEqual(jobs["pythons"]["strategy"]["matrix"]["python"], _pythons())

    def test_each_job_has_a_limit_and_each_step_does_something(self):
        workflow = yaml.safe_load((GITHUB / "workflows" / "ci.yml").read_text())
        self.assertEqual(workflow["permissions"], {"contents": "read"})
        for job in workflow["jobs"].values():
            self.assertGreater(job["timeout-minutes"], 0)
            for step in job["steps"]:
                self.assertLen({"run", "uses"} & set(step), 1, step)

    def test_each_form_of_an_issue_is_whole(self):
        forms = sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml"))
        self.assertLen(forms, 4)
        for path in forms:
            form = yaml.safe_load(path.read_text())
            if path.name == "config.yml":
                self.assertIn("blank_issues_enabled", form)
                continue
            self.assertContainsSubset({"name", "description", "body"}, set(form))
            for part in form["body"]:
                self.assertIn(part["type"], ("textarea", "input", "markdown", "dropdown"))
                self.assertTrue(part["attributes"]["label"])
            ids = [part["id"] for part in form["body"]]
            self.assertLen(set(ids), len(ids))


if __name__ == "__main__":
    absltest.main()
