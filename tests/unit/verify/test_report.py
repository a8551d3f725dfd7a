"""Reports: the files, what the page says, and that nothing from a topic can do harm in it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from onceflow.verify import report
from onceflow.verify.anomalies import ANOMALIES
from onceflow.verify.history import NEVER, History, Operation, Outcome, Record, Seen
from onceflow.verify.report_page import timeline as timeline_module
from onceflow.verify.report_page.lanes import Fault, Lanes
from onceflow.verify.report_page.markup import duration, script_json
from onceflow.verify.report_page.timeline import Timeline
from onceflow.verify.verdict import Anomaly, Verdict
from tests.unit.verify.sample_run import SampleRun

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&<!--"


class Elements(HTMLParser):
    """Every element of a page with its attributes, and all text outside of scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside not in ("script", "style"):
            self.text += data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def embedded(page: str) -> dict[str, Any]:
    """The data of the timeline, as a browser would find it: up to the first end of a script."""
    data: dict[str, Any] = json.loads(page.split('id="data">')[1].split("</script")[0])
    return data


def operation(op: str, f: str, began: float, ended: float, outcome: Outcome = Outcome.OK, **asked: Any) -> Operation:
    return Operation(id=op, f=f, began=began, ended=ended, outcome=outcome, asked=asked)


def fault(kind: str, target: str, began: float, ended: float, **asked: Any) -> Operation:
    return operation("nemesis:1", "fault", began, ended, kind=kind, target=target, **asked)


def verdict_of(history: History, **rest: Any) -> Verdict:
    return Verdict(workload="copy", seed=12, brokers="onceflow", seconds=3.0, faults=history.of("fault"), **rest)


def page_of(history: History, **rest: Any) -> str:
    return report.page(verdict_of(history, **rest), history, "onceflow verify copy --seed 12")


def test_the_folder_has_the_page_the_verdict_and_every_operation(tmp_path: Path) -> None:
    run = SampleRun()
    verdict, history = run.verdict(anomalies=run.anomalies()), run.history()
    path = report.write(tmp_path / "new" / "folder", verdict, history)
    assert path == tmp_path / "new" / "folder" / "report.html"
    assert json.loads((path.parent / "report.json").read_text()) == json.loads(json.dumps(verdict.to_json()))
    lines = (path.parent / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == [each.id for each in history.operations]


def test_the_page_loads_nothing_and_lets_no_other_script_run(tmp_path: Path) -> None:
    run = SampleRun()
    page = report.write(tmp_path, run.verdict(anomalies=run.anomalies()), run.history()).read_text()
    elements = Elements(page)
    for _, attributes in elements.found:
        assert not attributes.keys() & {"src", "srcset", "background", "onload", "onclick", "onerror"}
        assert not re.match(r"(https?:)?//", attributes.get("href") or "")
    assert not elements.named("link")
    assert "url(" not in page
    assert "@import" not in page
    policy = next(each["content"] for each in elements.named("meta") if each.get("http-equiv"))
    assert policy is not None
    assert re.fullmatch(
        r"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-[A-Za-z0-9+/]{43}='", policy
    )


def test_nothing_from_a_run_becomes_markup(tmp_path: Path) -> None:
    process = HOSTILE + ".1"
    operations = [
        operation(f"{process}:1", "write", 0.1, 0.2, transaction=HOSTILE, records=[[HOSTILE, 0, HOSTILE]]),
        operation(f"{process}:{HOSTILE}", HOSTILE, 0.3, NEVER, Outcome.UNKNOWN, group=HOSTILE),
        fault(HOSTILE, HOSTILE, 0.2, 0.4, detail=HOSTILE),
    ]
    seen = Seen(HOSTILE, 0, 1, Record(id=HOSTILE, transaction=HOSTILE))
    history = History(operations, [seen])
    anomaly = Anomaly(name=HOSTILE, sentence=HOSTILE, operations=operations, records=[seen])
    verdict = Verdict(
        workload=HOSTILE,
        seed=1,
        brokers=HOSTILE,
        seconds=1.0,
        anomalies=[anomaly],
        problems=[HOSTILE],
        faults=history.of("fault"),
    )
    page = report.write(tmp_path, verdict, history).read_text()
    elements = Elements(page)
    assert not elements.named("img")
    assert len(elements.named("script")) == 2
    assert page.count("</script") == 2
    assert "<!--" not in page
    assert HOSTILE in elements.text
    assert embedded(page)["faults"][0]["kind"] == HOSTILE[:39] + "…"


def test_text_that_no_encoding_can_write_is_written_all_the_same(tmp_path: Path) -> None:
    half = json.loads('"\\ud800"')
    history = History([operation("p.1:1", "write", 0.0, 1.0, records=[["t", 0, half]])])
    anomaly = Anomaly(name="phantom", sentence=f"nobody wrote {half}", operations=history.operations)
    page = report.write(tmp_path, verdict_of(history, anomalies=[anomaly]), history).read_text()
    assert "nobody wrote \\ud800" in page


@pytest.mark.parametrize("value", ["</script>", "<!--", "<script", "&lt;", "\u2028"])
def test_embedded_json_says_the_same_and_cannot_end_its_element(value: str) -> None:
    written = script_json({"value": value})
    assert json.loads(written) == {"value": value}
    assert not set("<>&") & set(written)


def test_a_dollar_sign_in_a_run_is_only_a_dollar_sign() -> None:
    history = History([operation("p.1:1", "write", 0.0, 1.0, group="$data ${script} $$")])
    assert embedded(page_of(history))["texts"] == ["$data ${script} $$"]


def test_a_clean_run_says_so_with_seed_and_command() -> None:
    history = SampleRun().history()
    page = Elements(page_of(history))
    assert "Clean" in page.text
    assert "onceflow verify copy --seed 12" in page.text
    assert not [each for each in page.named("section") if each["id"] in ("anomalies", "problems")]


def test_a_run_with_problems_only_is_not_called_clean() -> None:
    page = Elements(page_of(SampleRun().history(), problems=["copier-1 did not end"]))
    assert "Not proven" in page.text
    assert "copier-1 did not end" in page.text
    assert "Clean" not in page.text


def test_an_anomaly_is_shown_with_its_definition_and_a_way_to_the_timeline() -> None:
    run = SampleRun()
    lost, *_ = anomalies = run.anomalies()
    page = Elements(page_of(run.history(), anomalies=anomalies))
    assert "2 anomalies found" in page.text
    assert lost.sentence in page.text
    assert report.definitions()["lost write"] in page.text
    button = next(each for each in page.named("button") if each.get("data-operations"))
    assert json.loads(button["data-operations"] or "") == [each.id for each in lost.operations]
    assert button["data-from"] == str(round(min(each.began for each in lost.operations) * 10_000))


def test_every_anomaly_has_a_definition_of_one_paragraph() -> None:
    assert report.definitions().keys() == ANOMALIES.keys()
    assert all(len(each) > 30 and "\n" not in each for each in report.definitions().values())


def test_of_a_long_list_in_an_anomaly_the_record_in_question_comes_first() -> None:
    records = [["t", 0, f"id-{number}"] for number in range(100)]
    write = operation("p.1:1", "write", 0.0, 1.0, records=records)
    seen = Seen("t", 0, 5, Record(id="id-77"))
    anomaly = Anomaly(name="duplicate", sentence="twice", operations=[write], records=[seen])
    text = Elements(page_of(History([write]), anomalies=[anomaly])).text
    assert 'records: ["t", 0, "id-77"], ["t", 0, "id-0"]' in text
    assert "… 94 more" in text


def test_a_fault_is_listed_with_what_it_hit() -> None:
    operations = [
        operation("p-1.1:1", "commit", 1.0, 2.5, Outcome.UNKNOWN),
        operation("p-1.1:2", "commit", 9.0, 9.5, Outcome.FAILED),
        operation("p-2.1:1", "commit", 1.0, 2.5, Outcome.FAILED),
        fault("pause", "p-1.1", 2.0, 3.0),
    ]
    assert "1 commit unknown" in Elements(page_of(History(operations))).text
    assert "commit failed" not in Elements(page_of(History(operations))).text


def test_what_was_never_answered_is_not_put_down_to_faults_after_its_process_had_died() -> None:
    operations = [
        operation("p-1.1:1", "commit", 1.0, NEVER, Outcome.UNKNOWN),
        operation("p-1.2:1", "take", 3.0, 3.1),
        fault("pause", "p-1.2", 30.0, 31.0),
    ]
    assert "nothing that was noticed" in Elements(page_of(History(operations))).text


def test_counts_are_of_operations_records_and_faults() -> None:
    operations = [
        operation("p.1:1", "write", 0.0, 0.1, transaction="p.1/1", records=[["t", 0, "a"], ["t", 0, "b"]]),
        operation("p.1:2", "abort", 0.2, 0.3, transaction="p.1/1"),
        operation("p.1:3", "write", 0.4, NEVER, Outcome.UNKNOWN, transaction="p.1/2", records=[["t", 0, "c"]]),
        fault("kill", "p.1", 0.5, 0.5),
    ]
    rows = re.findall(r"<tr>(.*?)</tr>", page_of(History(operations)))
    cells = [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in rows]
    assert ["write", "1", "0", "1"] in cells
    assert ["abort", "1", "0", "0"] in cells
    assert ["handed to producers", "3"] in cells
    assert ["in transactions that were aborted", "2"] in cells
    assert ["kill", "p", "1"] in cells


def test_lives_that_overlap_get_rows_of_their_own() -> None:
    operations = [
        operation("copier-1.1:1", "take", 0.0, 1.0),
        operation("copier-1.2:1", "take", 2.0, 5.0),
        operation("copier-1.1:2", "commit", 4.0, 4.5, Outcome.FAILED),
        operation("copier-1.3:1", "take", 6.0, 6.5),
    ]
    lanes = Lanes(operations, [])
    assert [(each.name, each.row) for each in lanes.lives] == [
        ("copier-1.1", 0),
        ("copier-1.2", 1),
        ("copier-1.3", 0),
    ]
    assert [each.rows for each in lanes.lanes] == [2]


def test_a_life_lasts_until_the_last_thing_that_struck_it() -> None:
    operations = [operation("p-1.1:1", "take", 0.0, 1.0), operation("p-1.2:1", "take", 12.0, 13.0)]
    lanes = Lanes(operations, [Fault(fault("kill", "p-1.1", 9.4, 9.4)), Fault(fault("pause", "p-1.2", 20.0, 21.0))])
    assert [(each.ended, each.is_killed) for each in lanes.lives] == [(9.4, True), (20.0, False)]


def test_of_many_anomalies_of_a_kind_most_are_folded_away() -> None:
    anomalies = [Anomaly(name="duplicate", sentence=f"record {number} is there twice") for number in range(12)]
    page = page_of(History([]), anomalies=anomalies)
    shown, folded = page.split("<summary>7 more of this kind</summary>")
    assert "record 4 is there twice" in shown
    assert "record 5 is there twice" in folded


def test_faults_strike_their_lane_and_those_of_the_network_all_of_them() -> None:
    operations = [operation("p-2.1:1", "take", 0.0, 1.0), operation("p-10.1:1", "take", 0.0, 1.0)]
    broker, process, network = (
        Fault(fault(*each, 0.5, 0.6)) for each in (("kill", "broker-1"), ("kill", "p-10.1"), ("cut", "network"))
    )
    lanes = Lanes(operations, [broker, process, network])
    assert [each.name for each in lanes.lanes] == ["broker-1", "p-2", "p-10"]
    assert lanes.struck_by(broker) == [0]
    assert lanes.struck_by(process) == [2]
    assert lanes.struck_by(network) == [0, 1, 2]


def test_what_a_broker_s_death_hit_is_looked_for_everywhere() -> None:
    operations = [operation("p-1.1:1", "commit", 1.0, 2.5, Outcome.UNKNOWN), fault("kill", "broker-1", 2.0, 3.0)]
    assert "1 commit unknown" in Elements(page_of(History(operations))).text


@pytest.mark.parametrize(
    ("ends", "shown"),
    [
        ([("commit", Outcome.OK)], "committed"),
        ([("commit", Outcome.UNKNOWN), ("commit", Outcome.OK)], "committed"),
        ([("abort", Outcome.OK)], "aborted"),
        ([("commit", Outcome.FAILED)], "aborted"),
        ([("commit", Outcome.UNKNOWN), ("abort", Outcome.OK)], "open or unknown"),
        ([("commit", Outcome.UNKNOWN)], "open or unknown"),
        ([], "open or unknown"),
    ],
)
def test_a_transaction_is_shown_by_what_is_known_of_its_end(ends: list[tuple[str, Outcome]], shown: str) -> None:
    operations = [operation("p.1:1", "write", 0.0, 0.1, transaction="p.1/1")]
    operations += [
        operation(f"p.1:{number}", f, number, number + 0.5, outcome, transaction="p.1/1")
        for number, (f, outcome) in enumerate(ends, 2)
    ]
    data = Timeline(History(operations), []).to_json()
    [[_, began, _, end, name]] = data["transactions"]
    assert (began, data["ends"][end], name) == (0, shown, "p.1/1")


def test_readers_progress_adds_up_over_partitions() -> None:
    reads = [
        Operation(
            id=f"reader-1.1:{number}",
            f="read",
            began=number,
            ended=number + 0.5,
            outcome=Outcome.OK,
            told={"moved": [["t", 0, 10 * number, 10 * number + 10], ["t", 1, 0, 1]]},
        )
        for number in range(3)
    ]
    [line] = Timeline(History(reads), []).to_json()["progress"]
    assert line["read"] == [0, 11, 22, 33]
    assert line["at"] == [0, 5000, 15000, 25000]


def test_a_large_run_is_thinned_to_what_matters_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_module, "OPERATIONS_MAX", 100)
    operations = [operation(f"p.1:{number}", "read", number, number + 0.5) for number in range(1000)]
    operations += [operation(f"q.1:{number}", "commit", number * 7.0, NEVER, Outcome.UNKNOWN) for number in range(40)]
    timeline = Timeline(History(operations), [], shown={"p.1:501"})
    data = timeline.to_json()
    columns = data["operations"]
    shown = {
        f"{data['lives'][life]['name']}:{number}"
        for life, number in zip(columns["life"], columns["number"], strict=True)
    }
    assert len(shown) == 100
    assert "p.1:501" in shown
    assert {f"q.1:{number}" for number in range(40)} <= shown
    assert columns["began"] == sorted(columns["began"])
    assert sum(good + other for good, other in data["density"]) == 1040
    assert "100 of 1,040 operations" in timeline.left_out[0]


def test_as_many_operations_as_a_page_may_hold_stay_below_ten_megabytes() -> None:
    """By what one of them takes: transactions, faults and texts grow with them."""
    run = SampleRun(rounds=200, transactors=10)
    history = run.history()
    size = len(report.page(run.verdict(), history, "onceflow verify producers"))
    assert len(history.operations) > 4_000
    assert size / len(history.operations) * timeline_module.OPERATIONS_MAX < 10_000_000


def test_an_empty_run_has_a_page_too() -> None:
    assert "Not proven" in page_of(History([]), problems=["the brokers never answered"])


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.0004, "0.4 ms"), (1.25, "1.2 s"), (119.9, "119.9 s"), (125, "2 min 05 s")]
)
def test_durations_are_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_the_pieces_of_the_page_are_packaged() -> None:
    names = {each.name for each in files("onceflow.verify.report_page").iterdir()}
    assert {"template.html", "page.css", "timeline.js"} <= names
