"""Commands as functions: typed results, typed errors, no signal handlers, callable from any thread."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

import onrig
from onrig.runtime.exit_codes import ExitCode
from onrig.tools.api.run_data import RunData
from onrig.tools.identification.recorded import NotIdentified
from onrig.tools.run_facts import RunFacts
from onrig.tools.running import RunResult
from tests.tools.api.whole_runs import EPISODES, SETTINGS
from tests.tools.experiments import specs
from tests.tools.experiments.test_experiment import SPEC
from tests.tools.identification.test_verb import short_excitations


@pytest.fixture(scope="module")
def ended_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunResult, list[RunFacts], object]:
    """A run in a thread, its progress, and the handler of SIGINT meanwhile."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    facts: list[RunFacts] = []
    handlers: list[object] = []
    results: list[RunResult] = []

    def progress(run_facts: RunFacts) -> None:
        facts.append(run_facts)
        handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(
        target=lambda: results.append(onrig.run("pendulum", SETTINGS, run_dir=folder, progress=progress))
    )
    thread.start()
    thread.join()
    return results[0], facts, handlers[-1]


def test_a_run_from_a_thread_ends_with_a_typed_result(ended_run: tuple[RunResult, list[RunFacts], object]) -> None:
    run, facts, handler = ended_run
    assert run.code is ExitCode.OK
    assert run.reason == "completed"
    assert run.actuators.startswith("safe")
    assert run.completeness is not None
    assert run.completeness.complete
    assert facts[-1].episode == EPISODES
    assert handler is signal.getsignal(signal.SIGINT)
    assert onrig.open_run(run.folder).episodes.rows == 2 * EPISODES
    assert not (run.folder / "learning_curve.png").exists()


def test_an_exception_in_the_progress_callback_ends_the_run_in_order(tmp_path: Path) -> None:
    class StopFromProgress(Exception):
        pass

    def progress(facts: RunFacts) -> None:
        if facts.ticks:
            raise StopFromProgress

    with pytest.raises(StopFromProgress):
        onrig.run("pendulum", [*SETTINGS, "episodes=400"], run_dir=tmp_path / "run", progress=progress)
    data = onrig.open_run(tmp_path / "run")
    assert data.state == "finished"
    assert data.summary["whole"]["complete"] is True
    assert data.summary["episodes"] < 400


def test_a_run_that_cannot_start_is_an_error_with_a_code(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    with pytest.raises(onrig.Failure, match="already contains a run") as error:
        onrig.run("pendulum", run_dir=tmp_path)
    assert error.value.code is ExitCode.CONFIGURATION
    with pytest.raises(onrig.ConfigError, match="rate_hz"):
        onrig.run("pendulum", ["rate_hz=-1"], run_dir=tmp_path / "run")
    with pytest.raises(onrig.Failure, match="no such port") as port_error:
        onrig.run("pendulum", device="/dev/ttyNONE", run_dir=tmp_path / "run")
    assert port_error.value.code is ExitCode.HARDWARE
    assert not (tmp_path / "run").exists()


def test_check_returns_configuration_and_warnings() -> None:
    config, warnings = onrig.check("pendulum", ["episodes=1", "selection.write_probability=0.01"])
    assert config.episodes == 1
    assert "the policy never changes" in str(warnings[0])
    with pytest.raises(onrig.Failure, match="expected") as error:
        onrig.check("pendulum", ["rate_hz=fast"])
    assert isinstance(error.value, onrig.ConfigError)


def test_evaluate_scores_a_policy_of_the_run(
    ended_run: tuple[RunResult, list[RunFacts], object], tmp_path: Path
) -> None:
    run: RunData = onrig.open_run(ended_run[0].folder)
    last_policy = run.folder / "policies" / f"{run.policies['policy_id'][-1]}.onnx"
    result = onrig.evaluate(last_policy, "pendulum", SETTINGS, episodes=EPISODES)
    is_evaluation = run.episodes["kind"] == "eval"
    assert result.episodes[-1].reward_sum == run.episodes["return"][is_evaluation][-1]
    assert result.mean["normalized"] <= 1
    with pytest.raises(onrig.Failure, match="refused by the contract check: rig"):
        onrig.evaluate(last_policy, "magman")
    with pytest.raises(onrig.Failure, match="cannot be read"):
        onrig.evaluate(tmp_path / "none.onnx", "pendulum")


def test_identify_returns_the_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scipy")
    from onrig.sim.plants import Pendulum

    monkeypatch.setattr(Pendulum, "excitations", short_excitations)
    result = onrig.identify("pendulum", out=tmp_path)
    assert (result.folder / "identified.yaml").is_file()
    assert result.result.predicted
    with pytest.raises(onrig.Failure, match="no such port"):
        onrig.identify("pendulum", device="/dev/ttyNONE", out=tmp_path)
    assert issubclass(NotIdentified, onrig.Failure)


def test_experiment_counts_its_trials(tmp_path: Path) -> None:
    from onrig.tools.experiments.options import ExperimentOptions

    spec = specs.write_spec(tmp_path, SPEC, "spec.yaml")
    lines: list[str] = []
    options = ExperimentOptions(workers=1, trials=1)
    trials = onrig.experiment(
        spec, out=tmp_path / "out", manner=options, progress=lambda tally: lines.append(tally.line())
    )
    assert trials.finished == trials.total > 0
    assert trials.lost == trials.diverged == 0
    assert lines[-1].startswith(f"{trials.total} of {trials.total} trials")
    with pytest.raises(onrig.Failure, match="already contains an experiment"):
        onrig.experiment(spec, out=tmp_path / "out", manner=options)


def test_every_public_name_is_defined_in_its_module() -> None:
    assert sorted(onrig.__all__) == sorted(onrig._HOMES)
    for name in onrig.__all__:
        assert getattr(onrig, name).__module__.startswith("onrig."), name
    assert onrig.__version__.count(".") >= 1
    assert set(onrig.__all__) <= set(dir(onrig))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = onrig.nothing
