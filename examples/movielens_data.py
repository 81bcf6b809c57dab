# SPDX-License-Identifier: Apache-2.0
"""MovieLens 100K as arrays: reading it, splitting it, fetching it.

100,000 ratings, 1 to 5 stars, of 943 users on 1,682 films. GroupLens allows no redistribution, so
no file of it belongs in a repository; `fetched` downloads GroupLens's own archive.

F. M. Harper and J. A. Konstan, The MovieLens Datasets: History and Context, ACM TiiS 5(4), 2015.
"""

import dataclasses
import hashlib
import io
import pathlib
import tempfile
import urllib.request
import zipfile

import numpy as np

URL = "https://files.grouplens.org/datasets/movielens/ml-100k.zip"
FOLDS = 10


@dataclasses.dataclass(frozen=True)
class Ratings:
    """Some ratings.

    Attributes:
        user: int64 `[num_ratings]`, ids as they appear in the file.
        item: int64 `[num_ratings]`, as `user`.
        stars: float32 `[num_ratings]`.
        fold: int64 `[num_ratings]`, see `fold_of`.
    """

    user: np.ndarray
    item: np.ndarray
    stars: np.ndarray
    fold: np.ndarray

    def __len__(self) -> int:
        return len(self.stars)

    def where(self, mask: np.ndarray) -> "Ratings":
        """The ratings for which `mask` is true."""
        return Ratings(self.user[mask], self.item[mask], self.stars[mask], self.fold[mask])


def fold_of(row: str) -> int:
    """The number of a rating's part, of FOLDS parts.

    A function of the row alone, so that any order of lines gives the same split: the first 8 bytes
    of the row's SHA-256, read as a big-endian number, modulo FOLDS.

    Args:
        row: "user item rating timestamp" with a tab between two fields, as GroupLens writes it.
    """
    return int.from_bytes(hashlib.sha256(row.encode()).digest()[:8], "big") % FOLDS


def load(data_dir: pathlib.Path) -> Ratings:
    """Reads u.data: tab separated, or separated by "|" below a line with the columns' names.

    Args:
        data_dir: the folder with u.data, or a folder with ml-100k in it.
    """
    path = _path(data_dir, "u.data")
    if path is None:
        raise SystemExit(f"There is no u.data in {data_dir}, nor in a folder ml-100k there.")
    rows = []
    for number, line in enumerate(path.read_text("latin-1").splitlines(), start=1):
        row = line.replace("|", "\t")
        if number == 1 and row.startswith("user\t"):
            continue
        try:
            user, item, stars, _ = map(int, row.split("\t"))
        except ValueError:
            raise SystemExit(
                f"{path}, line {number}, must be user, item, rating, timestamp: {line!r}"
            ) from None
        rows.append((user, item, stars, fold_of(row)))
    if not rows:
        raise SystemExit(f"There are no ratings in {path}.")
    user, item, stars, fold = np.array(rows, np.int64).T
    return Ratings(user, item, stars.astype(np.float32), fold)


def titles(data_dir: pathlib.Path) -> dict[int, str]:
    """The title of each item, from u.item; empty if there is no such file."""
    path = _path(data_dir, "u.item")
    if path is None:
        return {}
    lines = path.read_text("latin-1").splitlines()
    fields = (line.split("|") for line in lines if line[:1].isdigit())
    return {int(item): title for item, title, *_ in fields}


def fetched(folder: pathlib.Path, url: str = URL) -> pathlib.Path:
    """A folder with the data, downloaded unless an earlier run has done so."""
    if _path(folder, "u.data") is not None:
        return folder
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            archive = zipfile.ZipFile(io.BytesIO(response.read()))
    except (OSError, zipfile.BadZipFile) as error:
        raise SystemExit(
            f"There are no ratings: {url} can't be read ({error}), and no --data was given."
        ) from None
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as unfinished:
        archive.extractall(unfinished)
        # All or nothing, even if this is interrupted.
        (pathlib.Path(unfinished) / "ml-100k").rename(folder / "ml-100k")
    return folder


def _path(data_dir: pathlib.Path, name: str) -> pathlib.Path | None:
    """The path of a file of the data set, None if there is none."""
    for path in (data_dir / name, data_dir / "ml-100k" / name):
        if path.is_file():
            return path
    return None
