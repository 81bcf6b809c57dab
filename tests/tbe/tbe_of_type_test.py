# SPDX-License-Identifier: Apache-2.0
"""Every FBGEMM optimizer by its type, with every setting: accepted, or refused."""

from __future__ import annotations

import enum
import itertools

import keras
from absl.testing import absltest, parameterized

from tf_embed import tbe
from tf_embed.configs import as_enum
from tf_embed.tbe.make_optimizer import OptimizerSettings, optimizer_of_type, present_settings

OptimType = tbe.OptimType
Decay = tbe.WeightDecayMode

KINDS = {
    OptimType.EXACT_SGD: tbe.SGD,
    OptimType.EXACT_ADAGRAD: tbe.Adagrad,
    OptimType.EXACT_ROWWISE_ADAGRAD: tbe.RowwiseAdagrad,
    OptimType.ADAM: tbe.Adam,
    OptimType.LAMB: tbe.LAMB,
    OptimType.LARS_SGD: tbe.LARS,
    OptimType.PARTIAL_ROWWISE_ADAM: tbe.PartialRowwiseAdam,
    OptimType.PARTIAL_ROWWISE_LAMB: tbe.PartialRowwiseLAMB,
    OptimType.ENSEMBLE_ROWWISE_ADAGRAD: tbe.EnsembleRowwiseAdagrad,
    OptimType.EMAINPLACE_ROWWISE_ADAGRAD: tbe.EmaInplaceRowwiseAdagrad,
}
ROWWISE = {
    OptimType.EXACT_ROWWISE_ADAGRAD,
    OptimType.ENSEMBLE_ROWWISE_ADAGRAD,
    OptimType.EMAINPLACE_ROWWISE_ADAGRAD,
}
ADAMS = {
    OptimType.ADAM,
    OptimType.LAMB,
    OptimType.PARTIAL_ROWWISE_ADAM,
    OptimType.PARTIAL_ROWWISE_LAMB,
}
BY_COUNTER = tbe.CounterBasedRegularizationDefinition(
    tbe.CounterWeightDecayMode.L2, counter_halflife=7
)
COWCLIP = tbe.CowClipDefinition(tbe.CounterWeightDecayMode.L2, weight_norm_coefficient=1.0)

# For each setting a value other than the default, the types that use it, and required settings.
SETTINGS = {
    "learning_rate": (0.5, set(KINDS), {}),
    "eps": (0.25, ROWWISE | ADAMS | {OptimType.EXACT_ADAGRAD}, {}),
    "momentum": (0.5, {OptimType.LARS_SGD}, {}),
    "eta": (0.5, {OptimType.LARS_SGD}, {}),
    "beta1": (0.5, ADAMS, {}),
    "beta2": (0.5, ADAMS, {}),
    "max_norm": (2.0, ROWWISE, {}),
    "weight_decay": (0.125, ROWWISE | ADAMS | {OptimType.LARS_SGD}, {}),
    "weight_decay_mode": (Decay.L2, ROWWISE, {}),
    "ensemble_mode": (
        tbe.EnsembleModeDefinition(step_ema=5),
        {OptimType.ENSEMBLE_ROWWISE_ADAGRAD},
        {},
    ),
    "emainplace_mode": (
        tbe.EmainplaceModeDefinition(step_ema=5),
        {OptimType.EMAINPLACE_ROWWISE_ADAGRAD},
        {},
    ),
    "counter_based_regularization": (
        BY_COUNTER,
        {OptimType.EXACT_ROWWISE_ADAGRAD},
        {"weight_decay_mode": Decay.COUNTER},
    ),
    "cowclip_regularization": (
        COWCLIP,
        {OptimType.EXACT_ROWWISE_ADAGRAD},
        {"weight_decay_mode": Decay.COWCLIP},
    ),
    "global_weight_decay": (
        tbe.GlobalWeightDecayDefinition(start_iter=3),
        {OptimType.EXACT_ROWWISE_ADAGRAD},
        {"weight_decay_mode": Decay.DECOUPLE_GLOBAL},
    ),
    "extra_optimizer_config": (
        tbe.UserEnabledConfigDefinition(use_rowwise_bias_correction=True),
        {OptimType.ADAM},
        {},
    ),
}
# Settings that an optimizer takes under another name.
TAKEN_AS = {
    "extra_optimizer_config": ("use_rowwise_bias_correction", True),
    "weight_decay": ("decay", 0.125),
}


def _taken(optimizer, name):
    if name == "learning_rate":
        return float(optimizer.learning_rate)
    return getattr(optimizer, TAKEN_AS.get(name, (name, None))[0])


class OptimizerOfTypeTest(parameterized.TestCase):
    def test_every_setting_is_tried(self):
        self.assertCountEqual(SETTINGS, OptimizerSettings().get_config())

    @parameterized.parameters(*KINDS.items())
    def test_default_settings_make_the_optimizer_with_its_defaults(self, optim_type, kind):
        optimizer = optimizer_of_type(optim_type, OptimizerSettings())
        self.assertIs(type(optimizer), kind)
        self.assertEqual(optimizer.get_config(), kind().get_config())
        self.assertIs(type(optimizer_of_type(optim_type.value, OptimizerSettings())), kind)

    @parameterized.parameters(*itertools.product([*KINDS, OptimType.NONE, None], SETTINGS))
    def test_a_setting_is_taken_over_or_refused(self, optim_type, name):
        value, users, needs = SETTINGS[name]
        if name == "weight_decay" and optim_type in ROWWISE:
            needs = {"weight_decay_mode": Decay.DECOUPLE}
        if optim_type in users:
            optimizer = optimizer_of_type(optim_type, OptimizerSettings(**{name: value}, **needs))
            wanted = TAKEN_AS.get(name, (name, value))[1]
            self.assertEqual(_taken(optimizer, name), wanted)
            return
        owner = "optimizer=None" if optim_type is None else f"OptimType.{optim_type.name}"
        with self.assertRaises(ValueError) as caught:
            optimizer_of_type(optim_type, OptimizerSettings(**{name: value}))
        self.assertStartsWith(
            str(caught.exception), f"{owner} does not use `{name}`. Received: {name}="
        )

    def test_a_refusal_names_the_optimizer_the_setting_and_the_value(self):
        message = r"^OptimType.EXACT_SGD does not use `momentum`. Received: momentum=0.5$"
        with self.assertRaisesRegex(ValueError, message):
            optimizer_of_type(OptimType.EXACT_SGD, OptimizerSettings(momentum=0.5))

    @parameterized.parameters(None, OptimType.NONE, "none")
    def test_without_an_optimizer_there_is_none(self, optim_type):
        self.assertIsNone(optimizer_of_type(optim_type, OptimizerSettings()))

    @parameterized.parameters(
        *itertools.product(
            ROWWISE - {OptimType.EXACT_ROWWISE_ADAGRAD},
            (Decay.COUNTER, Decay.COWCLIP, Decay.DECOUPLE_GLOBAL),
        )
    )
    def test_averages_have_no_mode_that_keeps_more(self, optim_type, mode):
        message = f"OptimType.{optim_type.name} does not use `weight_decay_mode`.*{mode.name}"
        with self.assertRaisesRegex(ValueError, message):
            optimizer_of_type(optim_type, OptimizerSettings(weight_decay_mode=mode))

    @parameterized.parameters(
        ("counter_based_regularization", BY_COUNTER, Decay.COUNTER),
        ("cowclip_regularization", COWCLIP, Decay.COWCLIP),
        ("global_weight_decay", tbe.GlobalWeightDecayDefinition(), Decay.DECOUPLE_GLOBAL),
    )
    def test_a_mode_and_its_definition_go_together(self, name, definition, mode):
        message = f"`{name}` and weight_decay_mode=WeightDecayMode.{mode.name} must be set together"
        for settings in (
            OptimizerSettings(weight_decay_mode=mode),
            OptimizerSettings(**{name: definition}),
            OptimizerSettings(**{name: definition}, weight_decay_mode=Decay.L2),
        ):
            with self.assertRaisesRegex(ValueError, message):
                optimizer_of_type(OptimType.EXACT_ROWWISE_ADAGRAD, settings)

    @parameterized.parameters(*ROWWISE)
    def test_weight_decay_without_a_mode_is_refused(self, optim_type):
        message = f"OptimType.{optim_type.name} does not use `weight_decay` with .*NONE"
        with self.assertRaisesRegex(ValueError, message):
            optimizer_of_type(optim_type, OptimizerSettings(weight_decay=0.1))

    @parameterized.parameters("sgd", "row_wise_adagrad", "Adam")
    def test_other_names_are_refused(self, name):
        words = f"the name or value of one: EXACT_SGD .'exact_sgd'., .*optimizer='{name}'"
        with self.assertRaisesRegex(ValueError, words):
            optimizer_of_type(name, OptimizerSettings())

    @parameterized.parameters(*KINDS.items())
    def test_names_of_types_are_taken(self, optim_type, kind):
        self.assertIs(type(optimizer_of_type(optim_type.name, OptimizerSettings())), kind)

    @parameterized.parameters(keras.optimizers.SGD, tbe.SGD, lambda: 3)
    def test_an_optimizer_belongs_to_the_model(self, make):
        with self.assertRaisesRegex(TypeError, "tf_embed.DynamicEmbeddingOptimizer"):
            optimizer_of_type(make(), OptimizerSettings())

    def test_settings_are_taken_from_their_config(self):
        settings = OptimizerSettings(
            weight_decay_mode=Decay.COUNTER,
            counter_based_regularization=BY_COUNTER,
            extra_optimizer_config=tbe.UserEnabledConfigDefinition(True),
        )
        config = settings.get_config()
        self.assertEqual(config["weight_decay_mode"], 3)
        self.assertEqual(OptimizerSettings.from_config(config), settings)

    def test_settings_of_another_kind_are_refused(self):
        with self.assertRaisesRegex(TypeError, "`ensemble_mode` must be a EnsembleModeDefinition"):
            OptimizerSettings(ensemble_mode=tbe.EmainplaceModeDefinition())
        with self.assertRaisesRegex(ValueError, "`weight_decay_mode` must be of WeightDecayMode"):
            OptimizerSettings(weight_decay_mode=9)

    def test_a_schedule_is_a_learning_rate(self):
        schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 10, 0.5)
        optimizer = optimizer_of_type(OptimType.ADAM, OptimizerSettings(learning_rate=schedule))
        self.assertAlmostEqual(float(optimizer.learning_rate), 0.5)

    def test_present_settings_are_the_given_ones_but_for_what_was_changed(self):
        self.assertEqual(present_settings(OptimizerSettings(), None), OptimizerSettings())
        settings = OptimizerSettings(learning_rate=0.1, beta2=0.99)
        optimizer = optimizer_of_type(OptimType.LAMB, settings)
        self.assertEqual(present_settings(settings, optimizer), settings)
        optimizer.adjust("beta2", 0.7)
        optimizer.learning_rate = 0.25
        changed = OptimizerSettings(learning_rate=0.25, beta2=0.7)
        self.assertEqual(present_settings(settings, optimizer), changed)


class Order(enum.IntEnum):
    SUM = 0


class EnumsTest(parameterized.TestCase):
    """The names of enum members."""

    ENUMS = (
        *(
            tbe.OptimType,
            tbe.SparseType,
            tbe.PoolingMode,
            tbe.BoundsCheckMode,
        ),
        *(
            tbe.CacheAlgorithm,
            tbe.EmbeddingLocation,
            tbe.WeightDecayMode,
        ),
        *(tbe.LearningRateMode, tbe.StepMode),
    )

    @parameterized.product(kind=ENUMS)
    def test_a_member_its_name_and_its_value_are_one(self, kind):
        twin = enum.Enum(kind.__name__, {member.name: f"other {member.value}" for member in kind})
        for member in kind:
            for given in (member, member.name, member.value, twin[member.name]):
                self.assertIs(as_enum(given, "one", kind), member)

    @parameterized.product(
        kind=ENUMS,
        value=(
            Order.SUM,
            tbe.ComputeDevice.CPU,
            True,
            0.0,
            None,
            "",
            "Sum",
            b"SUM",
            99,
            [0],
        ),
    )
    def test_all_else_is_refused_with_what_is_accepted(self, kind, value):
        with self.assertRaises(ValueError) as caught:
            as_enum(value, "one", kind)
        said = str(caught.exception)
        self.assertStartsWith(said, f"`one` must be of {kind.__name__}, or the name or value")
        self.assertEndsWith(said, f"Received: one={value!r}")
        names = said.partition("of one: ")[2].partition(". Received")[0].split("), ")
        for member, name in zip(kind, names, strict=True):
            self.assertEqual(name.removesuffix(")"), f"{member.name} ({member.value!r}")


class TypesTest(parameterized.TestCase):
    """The types that describe tables."""

    @parameterized.parameters(
        tbe.RecordCacheMetrics(True, True),
        tbe.TBEStatsReporterConfig(5),
        tbe.MultiPassPrefetchConfig(3, 100),
        tbe.UserEnabledConfigDefinition(True),
    )
    def test_definitions_are_serialized_by_keras(self, definition):
        config = keras.saving.serialize_keras_object(definition)
        self.assertEqual(keras.saving.deserialize_keras_object(config), definition)

    def test_numbers_are_those_of_fbgemm(self):
        self.assertEqual([one.value for one in tbe.EmbeddingLocation], [0, 1, 2, 3, 4])
        self.assertEqual(tbe.EmbeddingLocation["MTIA"], 4)
        self.assertEqual([one.name for one in tbe.ComputeDevice], ["CPU", "CUDA", "MTIA"])
        self.assertEqual([one.name for one in tbe.PoolingMode], ["SUM", "MEAN", "NONE"])
        self.assertEqual(tbe.CacheAlgorithm.LFU, 1)
        self.assertEqual(tbe.MultiPassPrefetchConfig().min_splitable_pass_size, 6291456)

    def test_bounds_check_modes_of_the_second_kind_are_the_plain_ones(self):
        modes = tbe.BoundsCheckMode
        self.assertEqual([modes(4).plain, modes(5).plain, modes(6).plain], [2, 1, 0])
        self.assertEqual([modes(one).plain for one in range(4)], [0, 1, 2, 3])

    def test_sparse_types_have_the_dtype_that_tensorflow_has(self):
        dtypes = {str(one): one.dtype and one.dtype.name for one in tbe.SparseType}
        self.assertEqual(
            dtypes,
            {
                "fp32": "float32",
                "fp16": "float16",
                "bf16": "bfloat16",
                "int8": None,
                "fp8": None,
                "int4": None,
                "int2": None,
            },
        )

    @parameterized.parameters(
        (tbe.RecordCacheMetrics, "record_tablewise_cache_miss", 1),
        (tbe.TBEStatsReporterConfig, "interval", 2.5),
        (tbe.MultiPassPrefetchConfig, "num_passes", "3"),
        (tbe.UserEnabledConfigDefinition, "use_rowwise_bias_correction", "no"),
        (tbe.TailIdThreshold, "val", "3"),
        (tbe.TailIdThreshold, "is_ratio", 1),
        (tbe.CounterBasedRegularizationDefinition, "counter_halflife", None),
        (tbe.CounterBasedRegularizationDefinition, "counter_halflife", 1.5),
        (tbe.CounterBasedRegularizationDefinition, "max_counter_update_freq", 2.5),
        (tbe.CounterBasedRegularizationDefinition, "tail_id_threshold", 3.0),
        (tbe.CowClipDefinition, "lower_bound", "0"),
        (tbe.GlobalWeightDecayDefinition, "start_iter", [3]),
        (tbe.EnsembleModeDefinition, "step_ema", "10"),
        (tbe.EmainplaceModeDefinition, "step_start", {}),
    )
    def test_what_is_of_another_type_is_refused_by_name(self, kind, name, value):
        with self.assertRaisesRegex(TypeError, f"`{name}` must be a.*{name}="):
            kind(**{name: value})

    def test_numbers_that_float32_does_not_hold_are_refused(self):
        for value in (1e39, -(10**400), 10**5000, float("nan")):
            with self.assertRaisesRegex(ValueError, "`val` must be finite in float32"):
                tbe.TailIdThreshold(val=value)

    def test_a_flag_is_a_bool(self):
        with self.assertRaisesRegex(TypeError, "`use_rowwise_bias_correction` must be a bool"):
            tbe.Adam(use_rowwise_bias_correction="False")

    def test_a_threshold_must_be_one(self):
        with self.assertRaisesRegex(ValueError, "`tail_id_threshold` must be a Tail.*None"):
            tbe.CounterBasedRegularizationDefinition(tail_id_threshold=None)

    def test_passes_are_at_least_one(self):
        with self.assertRaisesRegex(ValueError, "`num_passes` must be at least 1"):
            tbe.MultiPassPrefetchConfig(num_passes=0)


if __name__ == "__main__":
    absltest.main()
