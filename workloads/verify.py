"""Do variants compute the same thing? Values against the oracle and among themselves, routing exactly, training.

Against the oracle everything is float32, whatever the configuration's dtype: rounded activations can send a token to
another expert, and two such runs are not comparable number by number. Among themselves the variants of a workload run
in the configured dtype, where the same rows go through the same matmuls. MaxText's kernels, which are bfloat16 only,
are held to the plain ones instead of the oracle. Nothing is printed here: results are dataclasses, and a problem is a
sentence in them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from workloads import reference
from workloads.config import Config
from workloads.kernels import choose
from workloads.program import Program
from workloads.registry import build, check
from workloads.routing_check import check_kernels, check_routing
from workloads.training import make_batch

TOLERANCE = {"float32": 2e-5, "bfloat16": 3e-2}
# Training amplifies rounding: in bfloat16, sums in another order part by a few percent within 20 steps.
LOSS_TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-2}
ORACLE = "oracle"
QUANTITIES = {
    "output": "output",
    "activations": "gradient of activations",
    "router": "gradient of router weights",
    "gate": "gradient of expert weights (gate)",
    "up": "gradient of expert weights (up)",
    "down": "gradient of expert weights (down)",
}

Values = dict[str, np.ndarray]


@dataclass(frozen=True)
class Comparison:
    """One quantity of a variant against the oracle's or another variant's.

    relative_error: largest difference divided by the reference's largest magnitude. max_ulp: the largest distance in
    representable numbers of the dtype; large where the reference is near zero, so it is shown and not judged.
    """

    quantity: str
    against: str
    routing: str
    relative_error: float
    max_ulp: int
    identical: bool
    tolerance: float
    problem: str | None


@dataclass(frozen=True)
class TrainingRun:
    """Losses of a variant, one a step, and whether losses and final weights are those of the first to the bit."""

    variant: str
    losses: tuple[float, ...]
    identical_to_first: bool
    problem: str | None

    @property
    def perplexities(self) -> tuple[float, ...]:
        """exp(loss), one a step."""
        return tuple(math.exp(loss) if loss < 700 else math.inf for loss in self.losses)


@dataclass(frozen=True)
class VariantReport:
    """All that was compared for one variant; `routing_problems` and `kernel_problems` are sentences."""

    variant: str
    comparisons: tuple[Comparison, ...]
    routing_problems: tuple[str, ...]
    kernel_problems: tuple[str, ...]
    training: TrainingRun | None

    @property
    def problems(self) -> tuple[str, ...]:
        """Every problem of this variant, one sentence each."""
        compared = tuple(item.problem for item in self.comparisons if item.problem)
        trained = (self.training.problem,) if self.training and self.training.problem else ()
        return (*compared, *self.routing_problems, *self.kernel_problems, *trained)


@dataclass(frozen=True)
class Verification:
    """The verdict over the variants of one workload."""

    workload: str
    config: Config
    reports: tuple[VariantReport, ...]

    @property
    def ok(self) -> bool:
        """No variant has a problem."""
        return not any(report.problems for report in self.reports)

    @property
    def training_identical(self) -> bool:
        """Every variant's training run is the first's to the bit."""
        return all(report.training.identical_to_first for report in self.reports if report.training)


def verify(
    workload: str,
    variants: Sequence[str],
    config: Config,
    devices: Sequence[jax.Device],
    *,
    train_steps: int = 20,
    progress: Callable[[str], None] | None = None,
) -> Verification:
    """Compare `variants` of a workload with the oracle, among themselves, and over a training run.

    train_steps: 0 leaves training out. progress: called with a few words before each part. Raises WorkloadError as
    `workloads.registry.build` does.
    """
    for variant in variants:
        check(workload, variant, config, "backward")
    say = progress or (lambda _: None)
    wide, against = _judged_config(config), ORACLE
    if config.kernels == "maxtext":
        against = "kernels jax"
        oracle = run_variant(workload, variants[0], replace(wide, kernels="jax"), devices)
    else:
        oracle = oracle_values(workload, variants[0], wide, devices)
    first_values: dict[str, Values] = {}
    first_training: tuple[TrainingRun, Any] | None = None
    reports = []
    for variant in variants:
        say(f"{workload}/{variant}: values")
        values = run_variant(workload, variant, wide, devices)
        comparisons = compare_all(values, oracle, against, variant, wide)
        if wide != config:
            values = run_variant(workload, variant, config, devices)
        comparisons += compare_all(values, first_values, variants[0], variant, config)
        first_values = first_values or values
        say(f"{workload}/{variant}: routing")
        routing_problems = check_routing(workload, variant, config, devices)
        training = None
        if train_steps:
            say(f"{workload}/{variant}: {train_steps} training steps")
            training, state = train(workload, variant, config, devices, train_steps, first_training)
            first_training = first_training or (training, state)
        reports.append(
            VariantReport(variant, comparisons, routing_problems, _kernel_problems(config, devices), training)
        )
    return Verification(workload, config, tuple(reports))


def _judged_config(config: Config) -> Config:
    """What is compared with the oracle: float32, or one layer of bfloat16 where the kernels know nothing else.

    In one layer all variants see the same activations and so route alike, rounded or not.
    """
    if config.kernels == "maxtext":
        return replace(config, num_layers=1)
    return replace(config, dtype="float32")


def _kernel_problems(config: Config, devices: Sequence[jax.Device]) -> tuple[str, ...]:
    if config.kernels == "maxtext":  # it brings no kernels of this interface; its values are compared like all others
        return ()
    return check_kernels(choose(config.kernels, devices[0].device_kind))


def compare_with_oracle(
    workload: str, variant: str, config: Config, devices: Sequence[jax.Device]
) -> tuple[Comparison, ...]:
    """Output and gradients of a variant in float32 against the dense oracle's, for two routings."""
    config = replace(config, dtype="float32")
    want = oracle_values(workload, variant, config, devices)
    return compare_all(run_variant(workload, variant, config, devices), want, ORACLE, variant, config)


def compare_all(
    got: dict[str, Values], want: dict[str, Values], against: str, variant: str, config: Config
) -> tuple[Comparison, ...]:
    """One Comparison for every routing and quantity."""
    tolerance = TOLERANCE[config.dtype]
    return tuple(
        comparison
        for routing, values in want.items()
        for comparison in compare(got[routing], values, against, routing, tolerance, variant)
    )


def run_variant(workload: str, variant: str, config: Config, devices: Sequence[jax.Device]) -> dict[str, Values]:
    """Output and gradients of a variant by routing, in the configured dtype."""
    program = build(workload, variant, config, "check", devices)
    return {routing: _values(program.step(*args)) for routing, args in _arguments(program).items()}


def oracle_values(workload: str, variant: str, config: Config, devices: Sequence[jax.Device]) -> dict[str, Values]:
    """Output and gradients of the oracle by routing, for the arguments that the variant is given."""
    program = build(workload, variant, config, "check", devices)
    buffers = reference.buffers_of(workload, program.config)
    forward = jax.jit(partial(reference.forward, config, buffers=buffers))
    backward = jax.jit(partial(reference.backward, config, buffers=buffers))
    values = {}
    for routing, args in _arguments(program).items():
        params, bias, x, cotangent = jax.tree.map(np.asarray, args)
        loss, gradients = backward(params, bias, x, cotangent)
        values[routing] = _values(((loss, forward(params, bias, x)), gradients))
    return values


def _values(results: Any) -> Values:
    (_, out), (d_params, d_x) = results
    arrays = {"output": out, "activations": d_x, **d_params._asdict()}
    return {QUANTITIES[name]: np.asarray(array) for name, array in arrays.items()}


def _arguments(program: Program) -> dict[str, tuple[Any, ...]]:
    """The program's arguments under a random and under a skewed routing."""
    params, bias, x, cotangent = program.make_args()
    slope = np.linspace(1, -1, program.config.num_experts, dtype=np.float32)
    skewed = jax.device_put(np.broadcast_to(slope, bias.shape), bias.sharding)
    return {"random": (params, bias, x, cotangent), "skewed": (params, skewed, x, cotangent)}


def compare(got: Values, want: Values, against: str, routing: str, tolerance: float, variant: str) -> list[Comparison]:
    """One Comparison a quantity. A problem is a difference beyond `tolerance` or a gradient that is not there."""
    comparisons = []
    for quantity, reference_values in want.items():
        error = relative_error(got[quantity], reference_values)
        problem = None
        if not got[quantity].any() and reference_values.any():
            problem = f"{variant}: the {quantity} is zero everywhere, that of {against} is not: it is missing"
        elif not error <= tolerance:  # also where it is NaN
            problem = (
                f"{variant}: the {quantity} differs from that of {against} by {error:.1e} of its largest value "
                f"({routing} routing), more than {tolerance:.0e}"
            )
        comparisons.append(
            Comparison(
                quantity=quantity,
                against=against,
                routing=routing,
                relative_error=error,
                max_ulp=max_ulp(got[quantity], reference_values),
                identical=got[quantity].tobytes() == reference_values.tobytes(),
                tolerance=tolerance,
                problem=problem,
            )
        )
    return comparisons


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    """The largest absolute difference divided by the largest magnitude wanted; NaN if any value is."""
    wide_got, wide_want = got.astype(np.float64), want.astype(np.float64)
    difference = float(np.max(np.abs(wide_got - wide_want)))
    largest = float(np.max(np.abs(wide_want)))
    if difference == 0:
        return 0.0
    return difference / largest if largest else math.inf


def max_ulp(got: np.ndarray, want: np.ndarray) -> int:
    """The largest number of representable values between two arrays of one dtype (float32 or bfloat16)."""
    return int(np.max(np.abs(_ordered(got) - _ordered(want))))


def _ordered(array: np.ndarray) -> np.ndarray:
    """int64 that order as the floats do: of the bits, negative numbers mirrored below zero."""
    bits = array.view({2: np.int16, 4: np.int32}[array.dtype.itemsize]).astype(np.int64)
    magnitude = np.int64(2 ** (8 * array.dtype.itemsize - 1))
    return np.where(bits < 0, -magnitude - bits, bits)


def train(
    workload: str,
    variant: str,
    config: Config,
    devices: Sequence[jax.Device],
    steps: int,
    first: tuple[TrainingRun, Any] | None,
) -> tuple[TrainingRun, Any]:
    """A training run and its final state. first: the run to be compared with and its final state, if there is one."""
    program = build(workload, variant, config, "train", devices)
    state, bias, tokens, _ = program.make_args()
    losses = []
    for step in range(steps):
        state, loss = program.step(state, bias, *make_batch(config, step, tokens.sharding))
        losses.append(float(jnp.asarray(loss)))
    final = jax.tree.map(np.asarray, state)
    run = TrainingRun(variant, tuple(losses), True, _training_problem(variant, losses, config, first))
    if first is None:
        return run, final
    same = run.losses == first[0].losses and _same_bits(final, first[1])
    return replace(run, identical_to_first=same), final


def _training_problem(
    variant: str, losses: list[float], config: Config, first: tuple[TrainingRun, Any] | None
) -> str | None:
    if not all(map(math.isfinite, losses)):
        return f"{variant}: the loss is not finite at step {[*map(math.isfinite, losses)].index(False)}"
    if len(losses) > 1 and losses[-1] >= losses[0]:
        return f"{variant}: the loss did not fall over {len(losses)} steps ({losses[0]:.4f} to {losses[-1]:.4f})"
    if first is None:
        return None
    tolerance = LOSS_TOLERANCE[config.dtype]
    for step, (loss, expected) in enumerate(zip(losses, first[0].losses, strict=True)):
        if abs(loss - expected) > tolerance * abs(expected):
            return f"{variant}: the loss is {loss:.6f} at step {step}, where {first[0].variant} has {expected:.6f}"
    return None


def _same_bits(one: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(left.tobytes() == right.tobytes() for left, right in pairs)
