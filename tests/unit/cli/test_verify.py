"""`onceflow verify` without a run: mistakes, what a run is asked for, what is said at its end, and its exit codes."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceflow.cli import main
from onceflow.verify import display as displays
from onceflow.verify import runner
from onceflow.verify.brokers import ControlledBrokers, EmbeddedBrokers, GivenBrokers
from onceflow.verify.history import History
from onceflow.verify.nemesis import KINDS, ON_REQUEST
from onceflow.verify.runner import Display, RunSettings
from onceflow.verify.verdict import Anomaly, Verdict
from tests.unit.verify.sample_run import SampleRun

Outcome = Callable[[RunSettings, Display], tuple[Verdict, History]]


class Runner:
    """Takes the place of a run: keeps what it was asked for, and answers as it is told."""

    def __init__(self) -> None:
        self.asked: list[RunSettings] = []
        self.answer: Outcome = lambda settings, _: verdict_for(settings)

    def __call__(self, settings: RunSettings, display: Display) -> tuple[Verdict, History]:
        self.asked.append(settings)
        return self.answer(settings, display)

    @property
    def only(self) -> RunSettings:
        [settings] = self.asked
        return settings


def verdict_for(settings: RunSettings, **found: Any) -> tuple[Verdict, History]:
    sample = SampleRun(rounds=30)
    verdict = sample.verdict(**found)
    verdict.workload, verdict.seed = settings.workload, settings.seed
    return verdict, sample.history()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runner:
    monkeypatch.chdir(tmp_path)
    fake = Runner()
    monkeypatch.setattr(runner, "run", fake)
    return fake


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that was printed to stderr; nothing went to stdout."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    return err.rstrip("\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "what is to be verified? There is producers, copy, spark, all, pipeline, simulation"),
        (["everything"], "there is no workload 'everything'"),
        (["no.such:Thing"], "the workload 'no.such:Thing' cannot be loaded"),
        (["pipeline"], "Give its command: --command"),
        (["copy", "--command", "x"], "--command is for the workload 'pipeline' only"),
        (["producers", "--option", "a=b"], "--option is for copy, spark and workloads of your own"),
        (["copy", "--seed", "x"], "'x' is not a whole number from 0 up"),
        (["copy", "--faults", "-1"], "--faults"),
        (["copy", "--minutes", "0"], "'0' is not a number above 0"),
        (["copy", "--minutes", "inf"], "'inf' is not a number above 0"),
        (["copy", "--scale", "much"], "'much' is not a number above 0"),
        (["copy", "--only", "kil"], "'kil' is not a kind of fault; did you mean 'kill'?"),
        (["copy", "--only", "kill,earthquake"], "'earthquake' is not a kind of fault; there are kill, pause"),
        (["copy", "--client-config", "x"], "should look like NAME=VALUE"),
        (["copy", "--bootstrap", "local host"], "is not an address"),
        (["copy", "--control", "./x"], "--control needs --bootstrap"),
        (["copy", "--runs", "3"], "for the simulation only"),
        (["copy", "--replay"], "for the simulation only"),
        (["copy", "--bootstrap", "k:9092", "--only", "disk full"], "in our own broker only"),
        (["copy", "--client-config", "security.protocol=sasl_ssl", "--only", "cut"], "these are encrypted"),
        (["copy", "--only", "kill,older checkpoint"], "'older checkpoint' befalls the Spark job of the workload spark"),
        (["pipeline", "--command", "job", "--only", "recreated topic"], "pipeline has no such fault"),
        (["copy", "--only", "older checkpont"], "did you mean 'older checkpoint'?"),
        (["simulation", "--bootstrap", "k:9092"], "--bootstrap means nothing to the simulation"),
        (["simulation", "--only", "kill"], "--only means nothing to the simulation"),
        (["simulation", "--replay"], "--replay needs the --seed"),
        (["simulation", "--replay", "--seed", "1", "--runs", "2"], "give one of them"),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_exit_code_2(
    arguments: list[str], words: str, run: Runner, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", *arguments]) == 2
    assert words in complaint(capsys)
    assert run.asked == []
    assert list(Path().iterdir()) == []


def test_by_default_our_broker_is_run_under_twenty_faults_from_a_new_seed(run: Runner) -> None:
    assert main(["verify", "producers"]) == 0
    assert (run.only.workload, run.only.faults, run.only.minutes) == ("producers", 20, None)
    assert isinstance(run.only.brokers, EmbeddedBrokers)
    assert main(["verify", "producers"]) == 0
    first, second = run.asked
    assert first.seed != second.seed


def test_the_address_of_other_commands_is_not_where_faults_are_made(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEFLOW_BOOTSTRAP", "production:9092")
    assert main(["verify", "producers"]) == 0
    assert isinstance(run.only.brokers, EmbeddedBrokers)


def test_options_become_settings_of_the_run(run: Runner, tmp_path: Path) -> None:
    options = ["--seed", "7", "--minutes", "1.5", "--only", "kill, lost answer", "--scale", "0.5", "--report", "there"]
    brokers = ["--bootstrap", "k:9092", "--client-config", "sasl.password=a=b"]
    assert main(["verify", "copy", *options, *brokers]) == 0
    settings = run.only
    assert (settings.seed, settings.faults, settings.minutes, settings.scale) == (7, None, 1.5, 0.5)
    assert settings.kinds == {"kill", "lost answer"}
    assert settings.client_config == {"sasl.password": "a=b"}
    assert settings.folder == Path("there")
    assert type(settings.brokers) is GivenBrokers
    assert settings.brokers.bootstrap == "k:9092"


def test_faults_and_minutes_together_are_both_limits(run: Runner) -> None:
    assert main(["verify", "copy", "--faults", "3", "--minutes", "2"]) == 0
    assert (run.only.faults, run.only.minutes) == (3, 2.0)


def test_a_pipeline_is_given_its_command(run: Runner) -> None:
    assert (
        main(["verify", "pipeline", "--command", "python job.py", "--instances", "2", "--ordered", "--report", "r"])
        == 0
    )
    assert run.only.options == {"command": "python job.py", "instances": "2", "ordered": "true"}
    again = "--command &#x27;python job.py&#x27; --instances 2 --ordered"
    assert again in Path("r/report.html").read_text()


def test_a_workload_of_the_user_is_found_where_the_user_is(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [each for each in sys.path if each])
    Path("my_verify_workloads.py").write_text("class Orders:\n    pass\n")
    assert main(["verify", "my_verify_workloads:Orders", "--seed", "7", "--option", "a=b"]) == 0
    assert (run.only.workload, run.only.options) == ("my_verify_workloads:Orders", {"a": "b"})
    assert run.only.folder == Path("onceflow-verify/Orders-7")


def test_control_gives_brokers_that_can_be_struck(run: Runner) -> None:
    assert main(["verify", "copy", "--bootstrap", "k:9092", "--control", "./brokers.sh"]) == 0
    assert isinstance(run.only.brokers, ControlledBrokers)


def test_a_clean_run_ends_with_its_verdict_and_the_report(run: Runner, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "copy", "--seed", "7", "--faults", "9"]) == 0
    out = capsys.readouterr().out
    assert "CLEAN: nothing that exactly-once forbids was found under" in out
    assert "report  onceflow-verify/copy-7/report.html" in out
    assert "again   onceflow verify copy --seed 7 --faults 9" in out
    assert Path("onceflow-verify/copy-7/report.html").exists()
    assert Path("onceflow-verify/copy-7/history.jsonl").exists()


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"anomalies": [Anomaly(name="duplicate", sentence="x is there twice")]}, "ANOMALIES under"),
        ({"problems": ["copier-1 did not end"]}, "NOT PROVEN"),
    ],
)
def test_whatever_was_found_is_exit_code_1_and_told(
    found: dict[str, Any], words: str, run: Runner, capsys: pytest.CaptureFixture[str]
) -> None:
    run.answer = lambda settings, _: verdict_for(settings, **found)
    assert main(["verify", "copy", "--seed", "7"]) == 1
    out = capsys.readouterr().out
    assert words in out
    assert "x is there twice" in out or "copier-1 did not end" in out


def test_of_many_findings_one_of_each_kind_is_printed(run: Runner, capsys: pytest.CaptureFixture[str]) -> None:
    found = [Anomaly(name="duplicate", sentence=f"{number} is there twice") for number in range(40)]
    found.append(Anomaly(name="lost write", sentence="y is gone"))
    run.answer = lambda settings, _: verdict_for(settings, anomalies=found, problems=["stuck"])
    assert main(["verify", "copy", "--seed", "7"]) == 1
    out = capsys.readouterr().out
    said = "- duplicate: 0 is there twice\n- lost write: y is gone\n- stuck\n- and 39 more, in the report\n"
    assert said in out


def test_what_a_finding_quotes_cannot_steer_the_terminal(run: Runner, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = Anomaly(name="phantom", sentence="nobody wrote \x1b[2J\ud800[bold]x[/bold]")
    run.answer = lambda settings, _: verdict_for(settings, anomalies=[hostile])
    assert main(["verify", "copy", "--seed", "7"]) == 1
    assert "nobody wrote \\x1b[2J\\ud800[bold]x[/bold]" in capsys.readouterr().out


def test_json_is_the_verdict_and_nothing_else(run: Runner, capsys: pytest.CaptureFixture[str]) -> None:
    run.answer = lambda settings, display: (display.fault("kill"), verdict_for(settings, problems=["stuck"]))[1]
    assert main(["verify", "copy", "--seed", "7", "--json"]) == 1
    out, err = capsys.readouterr()
    assert err == ""
    verdict = json.loads(out)
    assert (verdict["clean"], verdict["seed"], verdict["problems"]) == (False, 7, ["stuck"])
    assert verdict["report"] == "onceflow-verify/copy-7/report.html"


def test_all_runs_the_three_and_is_clean_only_if_each_is(
    run: Runner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("onceflow.verify.workloads.spark.require_spark", lambda: None)
    run.answer = lambda settings, _: verdict_for(settings, problems=["stuck"] if settings.workload == "copy" else [])
    assert main(["verify", "all", "--seed", "7", "--json", "--report", "there"]) == 1
    assert [each["workload"] for each in json.loads(capsys.readouterr().out)] == ["producers", "copy", "spark"]
    assert sorted(each.name for each in Path("there").iterdir()) == ["copy", "producers", "spark"]


@pytest.mark.parametrize("workload", ["spark", "all"])
def test_what_spark_needs_is_asked_for_before_anything_runs(
    workload: str, run: Runner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from onceflow.errors import ConfigError

    def missing() -> None:
        raise ConfigError("the spark workload needs pyspark: pip install 'onceflow[spark]'")

    monkeypatch.setattr("onceflow.verify.workloads.spark.require_spark", missing)
    assert main(["verify", workload]) == 2
    assert "needs pyspark" in complaint(capsys)
    assert run.asked == []


def test_a_second_run_of_a_seed_gets_a_folder_of_its_own(run: Runner) -> None:
    for _ in range(3):
        assert main(["verify", "copy", "--seed", "7"]) == 0
    assert [each.folder.name for each in run.asked] == ["copy-7", "copy-7-2", "copy-7-3"]


def test_a_folder_that_holds_another_run_is_refused(run: Runner, capsys: pytest.CaptureFixture[str]) -> None:
    Path("there/history").mkdir(parents=True)
    assert main(["verify", "copy", "--report", "there"]) == 2
    assert "there holds another run" in complaint(capsys)


@pytest.mark.parametrize("report", ["x" * 300, "file", "file/below", "/dev/null/x"])
@pytest.mark.parametrize("workload", ["copy", "all"])
def test_a_folder_that_cannot_be_used_is_one_sentence(
    workload: str, report: str, run: Runner, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("file").touch()
    assert main(["verify", workload, "--report", report]) == 2
    assert "cannot be used" in (said := complaint(capsys))
    assert "Choose one with --report" in said
    assert run.asked == []


def test_data_of_the_broker_are_kept_only_if_something_was_found(run: Runner) -> None:
    def with_data(**found: Any) -> Outcome:
        def answer(settings: RunSettings, _: Display) -> tuple[Verdict, History]:
            (settings.folder / "broker" / "data").mkdir(parents=True, exist_ok=True)
            return verdict_for(settings, **found)

        return answer

    run.answer = with_data(problems=["stuck"])
    assert main(["verify", "copy", "--report", "bad"]) == 1
    assert Path("bad/broker").exists()
    run.answer = with_data()
    assert main(["verify", "copy", "--report", "good"]) == 0
    assert not Path("good/broker").exists()


def test_the_command_to_run_it_again_has_every_option_and_no_secret(run: Runner) -> None:
    options = ["--seed", "7", "--faults", "3", "--minutes", "2", "--only", "lost answer", "--scale", "2"]
    brokers = ["--bootstrap", "k:9092", "--client-config", "sasl.password=secret", "--control", "./my brokers"]
    assert main(["verify", "copy", *options, *brokers, "--report", "r"]) == 0
    page = Path("r/report.html").read_text()
    assert "secret" not in page
    assert (
        "onceflow verify copy --seed 7 --faults 3 --minutes 2 --only &#x27;lost answer&#x27; --scale 2 "
        "--bootstrap k:9092 --control &#x27;./my brokers&#x27; --client-config sasl.password=..." in page
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_run_and_is_exit_code_130(
    number: signal.Signals, run: Runner, capsys: pytest.CaptureFixture[str]
) -> None:
    healed: list[str] = []

    def interrupted(settings: RunSettings, _: Display) -> tuple[Verdict, History]:
        try:
            os.kill(os.getpid(), number)
        finally:
            os.kill(os.getpid(), number)  # an impatient one, which must not disturb this
            healed.append("all")
        return verdict_for(settings)

    run.answer = interrupted
    before = signal.getsignal(number)
    assert main(["verify", "copy", "--seed", "7", "--json"]) == 130
    assert healed == ["all"]
    out, err = capsys.readouterr()
    assert out == ""
    assert "interrupted (seed 7); everything was stopped, nothing was judged" in err
    assert signal.getsignal(number) is before


def test_brokers_that_do_not_heal_are_one_sentence(run: Runner, capsys: pytest.CaptureFixture[str]) -> None:
    def never(*_: object) -> tuple[Verdict, History]:
        raise TimeoutError("the brokers at k:9092 did not answer within 120 s")

    run.answer = never
    assert main(["verify", "copy", "--json"]) == 1
    assert "there is no verdict: the brokers at k:9092 did not answer" in complaint(capsys)


def test_an_address_where_nobody_listens_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the real runner."""
    monkeypatch.chdir(tmp_path)
    assert main(["verify", "producers", "--bootstrap", "127.0.0.1:1", "--json"]) == 1
    assert "cannot reach a broker at 127.0.0.1:1" in complaint(capsys)


def test_list_faults_names_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--list-faults"]) == 0
    out = capsys.readouterr().out
    assert all(kind in out and words in out for kind, words in KINDS.items())
    assert main(["verify", "--list-faults", "--json"]) == 0
    listed = {kind for group in json.loads(capsys.readouterr().out).values() for kind in group}
    assert listed == {*KINDS, *ON_REQUEST}


# What is seen meanwhile


def progress(display: Display, *, done: int, planned: int | None, counts: dict[str, int] | None = None) -> None:
    display.progress(faults_done=done, faults_planned=planned, elapsed_s=3.0, planned_s=None, counts=counts or {})


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_elsewhere_than_at_a_terminal_there_is_a_line_for_each_fault() -> None:
    out = io.StringIO()
    with displays.display_for(is_silent=False, title="copy, seed 7", stream=out) as display:
        display.stage("faults")
        display.fault("kill copier-1.2")
        progress(display, done=1, planned=2)
        display.fault("cut: 3 connections")
    assert out.getvalue() == (
        "copy, seed 7\n   0:00  faults\n   0:00  fault 1: kill copier-1.2\n   0:00  fault 2: cut: 3 connections\n"
    )


def test_at_a_terminal_the_present_state_is_shown_and_gone_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    with displays.display_for(is_silent=False, title="copy, seed 7", stream=out) as display:
        assert isinstance(display, displays.Live)
        display.stage("faults")
        display.fault("kill [red]copier-1.2[/red]")
        progress(display, done=5, planned=10, counts={"commit ok": 1200, "commit unknown": 3, "take ok": 9})
        shown = rendered(display)
    assert "copy, seed 7" in shown
    assert "━" * 28 + "  5 of 10" in shown
    assert "kill [red]copier-1.2[/red]" in shown
    assert "1,200 committed, 3 unknown" in shown
    assert out.getvalue().rstrip().endswith("\x1b[2K")  # the last thing is that its lines are erased


def rendered(display: displays.Live) -> str:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=100)
    with console.capture() as capture:
        console.print(display.render())
    return capture.get()


def test_a_run_by_time_shows_how_much_of_the_time_is_over() -> None:
    display = displays.Live("copy", Terminal())
    display.progress(faults_done=12, faults_planned=None, elapsed_s=30, planned_s=60, counts={})
    assert display._share() == 0.5
    assert "  12" in rendered(display)


def test_a_silent_display_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with displays.display_for(is_silent=True, title="copy") as display:
        display.stage("faults")
        display.fault("kill")
        progress(display, done=1, planned=2)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("seconds", "shown"), [(5.9, "0:05"), (65, "1:05"), (3725, "1:02:05")])
def test_time_is_shown_like_a_clock(seconds: float, shown: str) -> None:
    assert displays.clock(seconds) == shown
