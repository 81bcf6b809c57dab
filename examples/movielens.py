# SPDX-License-Identifier: Apache-2.0
"""How many stars will this user give that film? Matrix factorization without declaring any id.

    python examples/movielens.py                 # downloads MovieLens 100K from GroupLens
    python examples/movielens.py --data DIR      # DIR has u.data in it, or ml-100k/u.data

A rating is predicted as: mean + bias of the user + bias of the item + user row . item row. The four
tables take the ids of the file unchanged, without counting them or building a vocabulary.

A tenth of the ratings, chosen by a hash of the row, is held out (movielens_data.fold_of). The
constants below were chosen with --validate, which trains on eight tenths and tests on the ninth, so
the held-out tenth had no influence.
"""

import os
import pathlib
import time

# Read when TensorFlow is loaded.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import movielens_data
import numpy as np
import tensorflow as tf
from absl import app, flags, logging
from movielens_data import Ratings

import tf_embed

_DATA = flags.DEFINE_string("data", None, "Folder with u.data; without it, it is downloaded.")
_DOWNLOADS = flags.DEFINE_string("downloads", "build/movielens", "Folder for what is downloaded.")
_SEEDS = flags.DEFINE_integer("seeds", 3, "Number of training runs.", lower_bound=1)
_EPOCHS = flags.DEFINE_integer("epochs", 20, "Epochs of a run.", lower_bound=1)
_VALIDATE = flags.DEFINE_bool("validate", False, "Test on a part of the training ratings instead.")

HELD_OUT_FOLD, VALIDATION_FOLD = 0, 1
DIM = 64
BATCH_SIZE = 512
LEARNING_RATE = 0.01  # falls to 0 along half a cosine
L2 = 0.11
NEVER_SEEN = 10**15  # an id that no file has


class Factorization(keras.Model):
    """A biased matrix factorization (Koren, Bell and Volinsky, IEEE Computer 42(8), 2009).

    Args:
        mean: the mean of the training ratings.
        seed: decides the initial rows.
    """

    def __init__(self, mean: float, seed: int):
        super().__init__()
        self.mean = mean
        # The seed may be the same, because initial rows depend on a table's name too.
        normal = keras.initializers.RandomNormal(0.0, 0.1, seed)
        embedding = tf_embed.layers.DynamicEmbedding
        self.user_bias = embedding(1, initializer="zeros", name="user_bias")
        self.item_bias = embedding(1, initializer="zeros", name="item_bias")
        self.user_row = embedding(DIM, initializer=normal, name="user_row")
        self.item_row = embedding(DIM, initializer=normal, name="item_row")

    def call(self, ids: dict[str, tf.Tensor]) -> tf.Tensor:
        user, item = self.user_row(ids["user"]), self.item_row(ids["item"])
        biases = self.user_bias(ids["user"]) + self.item_bias(ids["item"])
        # On the rows of the batch, so an id is held back as often as it is rated.
        squares = tf.reduce_sum(user**2 + item**2, axis=-1)
        self.add_loss(L2 * tf.reduce_mean(squares))
        return self.mean + biases[:, 0] + tf.reduce_sum(user * item, axis=-1)

    def tables(self) -> dict[str, tf_embed.Variable]:
        """The four tables, by name."""
        return {layer.name: layer.variable for layer in self.layers}


def trained(train: Ratings, seed: int) -> Factorization:
    keras.utils.set_random_seed(seed)
    steps = _EPOCHS.value * -(-len(train) // BATCH_SIZE)
    rate = keras.optimizers.schedules.CosineDecay(LEARNING_RATE, steps)
    model = Factorization(float(train.stars.mean()), seed)
    model.compile(tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(rate)), "mse")
    ids = {"user": train.user, "item": train.item}
    model.fit(ids, train.stars, batch_size=BATCH_SIZE, epochs=_EPOCHS.value, verbose=0)
    return model


def predict(model: Factorization, user: np.ndarray, item: np.ndarray) -> np.ndarray:
    """Stars, `[num_ratings]`."""
    ids = {"user": tf.constant(user, tf.int64), "item": tf.constant(item, tf.int64)}
    return model(ids, training=False).numpy().clip(1, 5)


def rmse(predictions: np.ndarray | float, test: Ratings) -> float:
    return float(np.sqrt(np.mean((predictions - test.stars) ** 2)))


def predict_by_means(train: Ratings, test: Ratings) -> np.ndarray:
    """The baseline: the user's mean rating + the item's mean - the overall mean."""
    mean = train.stars.mean()

    def means(train_ids: np.ndarray, test_ids: np.ndarray) -> np.ndarray:
        ids, place = np.unique(train_ids, return_inverse=True)
        id_means = np.bincount(place, train.stars) / np.bincount(place)
        found = np.searchsorted(ids, test_ids).clip(max=len(ids) - 1)
        return np.where(ids[found] == test_ids, id_means[found], mean)

    predictions = means(train.user, test.user) + means(train.item, test.item) - mean
    return predictions.clip(1, 5)


def show_tables(model: Factorization, train: Ratings, test: Ratings) -> None:
    """Shows that each trained id has a row, and that an id without training has none."""
    _, known = model.item_row.variable.lookup(test.item, return_exists=True)
    print(f"\n{np.sum(~known.numpy())} of {len(test):,} ratings are of an item without a row")
    stars = predict(model, [NEVER_SEEN, train.user[0]], [train.item[0], NEVER_SEEN])
    print(f"a user never seen gives {stars[0]:.2f} stars, an item never seen gets {stars[1]:.2f}")
    print("rows after all that")
    for name, table in model.tables().items():
        ids = len(np.unique(train.user if name.startswith("user") else train.item))
        print(f"  {name} {int(table.size()):>5,}, and {ids:,} ids in training")


def show_recommendations(model: Factorization, ratings: Ratings, titles: dict[int, str]) -> None:
    """The films that the first user of the file has not rated but is predicted to like best."""
    user = ratings.user[0]
    unseen = np.array(sorted(set(titles) - set(ratings.item[ratings.user == user])))
    stars = predict(model, np.full(len(unseen), user), unseen)
    print(f"\nUser {user} should see")
    for place in np.argsort(-stars, kind="stable")[:5]:
        print(f"  {stars[place]:.2f}  {titles[unseen[place]]}")


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"there are only flags. Received: {argv[1:]}")
    logging.set_verbosity(logging.WARNING)  # importing TensorFlow lowers it to INFO
    data_dir = pathlib.Path(_DATA.value or movielens_data.fetched(pathlib.Path(_DOWNLOADS.value)))
    ratings = movielens_data.load(data_dir)
    test_fold = HELD_OUT_FOLD
    if _VALIDATE.value:
        ratings, test_fold = ratings.where(ratings.fold != HELD_OUT_FOLD), VALIDATION_FOLD
    is_test = ratings.fold == test_fold
    train, test = ratings.where(~is_test), ratings.where(is_test)
    if not len(train) or not len(test):
        raise SystemExit(f"{len(ratings)} ratings are too few to be split.")
    print(f"{len(train):,} ratings to train on, {len(test):,} to test on")

    print("\nRMSE in stars")
    print(f"  global mean      {rmse(train.stars.mean(), test):.4f}")
    print(f"  user+item means  {rmse(predict_by_means(train, test), test):.4f}")
    errors = []
    for seed in range(_SEEDS.value):
        start = time.perf_counter()
        model = trained(train, seed)
        seconds = time.perf_counter() - start
        errors.append(rmse(predict(model, test.user, test.item), test))
        print(f"  tf_embed seed {seed}  {errors[-1]:.4f}  trained in {seconds:.1f} s", flush=True)
    print(f"  tf_embed mean    {np.mean(errors):.4f}")

    show_tables(model, train, test)
    if titles := movielens_data.titles(data_dir):
        show_recommendations(model, ratings, titles)


if __name__ == "__main__":
    app.run(main)
