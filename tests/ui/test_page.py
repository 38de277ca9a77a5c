"""The page in a real browser: open, filter, look at an episode and its tokens, compare, live, hostile text."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.view.made_run import CONFIG, add_step, forget_success, make_run
from turnwise.report.manifest import collect_manifest
from turnwise.report.run_dir import RunDirectory
from turnwise.report.token_log_reader import RecordedToken
from turnwise.view.report_file import write_report
from turnwise.view.run_files import RunFiles
from turnwise.view.server import RunCollection, ViewServer

pytestmark = [pytest.mark.ui, pytest.mark.slow, pytest.mark.xdist_group("ui")]
Open = Callable[..., Any]
Serve = Callable[..., ViewServer]

NAME = "2/frozen_lake/train/200/1"


def address(server: ViewServer, view: str) -> str:
    return f"http://127.0.0.1:{server.port}/#/{view}"


def wait_until(page: Any, expression: str) -> None:
    """The page's own policy forbids to evaluate text inside it, so that it is asked from outside."""
    deadline_s = time.monotonic() + 30
    while not page.evaluate(expression):
        assert time.monotonic() < deadline_s, f"this has not come true: {expression}"
        page.wait_for_timeout(50)


def test_runs_are_filtered_chosen_and_compared(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    for name in ("first", "second", "third"):
        make_run(tmp_path / name)
    page = open_page(serve(tmp_path).address)
    page.wait_for_selector("tr[data-run]")
    assert page.locator("tr[data-run]").count() == 3
    assert "token" not in page.url
    # Success before and after, each with its interval; the baselines beside them.
    assert "25.0 % → 75.0 %\n60 to 90 %" in page.inner_text("tr[data-run=second]")
    told = page.locator("tr[data-run=second] .track title").text_content()
    assert "95 % interval before 10.0 % to 40.0 %" in told
    assert "oracle 100.0 %" in told
    page.fill("input[type=search]", "sec")
    assert page.locator("tr[data-run]").count() == 1
    page.check("tr[data-run=second] input[type=checkbox]")
    page.fill("input[type=search]", "")
    page.check("tr[data-run=first] input[type=checkbox]")
    page.click("text=Compare 2 runs")
    page.wait_for_selector(".chart canvas")
    assert page.locator(".legend .key").all_inner_texts()[0].startswith("second")
    assert page.locator(".legend .key").count() == 2
    page.check("text=group seeds")
    page.check("text=log scale")
    with page.expect_download() as saved:
        page.click("section[data-metric='learn/entropy'] >> text=CSV")
    lines = Path(saved.value.path()).read_text().splitlines()
    assert lines[0].endswith('"made on frozen_lake, median of 2"')
    assert lines[2].split(",") == ["2", "0.5", "0.5", "0.5"]
    page.check("text=log axis")
    page.select_option("select[aria-label=Axis]", "time")
    with page.expect_download() as saved:
        page.click("section[data-metric='learn/entropy'] >> text=PNG")
    assert Path(saved.value.path()).read_bytes().startswith(b"\x89PNG")


def test_findings_are_marked_by_step_and_by_time(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    run = make_run(tmp_path / "run")
    finding = {"step": 2, "kind": "low_entropy", "since": 1, "is_collapse": True, "message": "Raise learn.entropy."}
    (run / "findings.jsonl").write_text(json.dumps(finding) + "\n")
    server = serve(run)
    page = open_page(server.address)
    page.goto(address(server, "curves?runs=run"))
    page.wait_for_selector(".chart canvas")
    assert "Raise learn.entropy." in page.inner_text(".findings")
    red = """() => {
        const canvas = document.querySelector("section[data-metric='learn/entropy'] canvas");
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        let found = 0;
        for (let at = 0; at < data.length; at += 4) {
            if (data[at] > 150 && data[at + 1] < 60 && data[at + 3] > 200) found += 1;
        }
        return found;
    }"""
    assert page.evaluate(red) > 20
    page.select_option("select[aria-label=Axis]", "time")
    assert page.evaluate(red) > 20
    (run / "resumes.jsonl").write_text(json.dumps({"step": 1, "at": "2026-01-02T03:04:05+0000"}) + "\n")
    page.goto(address(server, "system?run=run"))
    page.wait_for_selector("dl")
    assert "once: after step 1, 2026-01-02 03:04" in page.inner_text(".cards")


def test_success_that_nobody_said_is_unknown_on_every_page(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    forget_success(make_run(tmp_path / "run"))
    server = serve(tmp_path)
    page = open_page(server.address)
    page.wait_for_selector("tr[data-run]")
    assert "unknown" in page.inner_text("tr[data-run=run] .success")
    assert "return 0.25 → 0.75" in page.inner_text("tr[data-run=run] .success")
    page.goto(address(server, "episodes?run=run&success=-1"))
    page.wait_for_selector("tr[data-episode]")
    assert page.locator("tr[data-episode]").count() == page.locator("tr[data-episode] >> text=success unknown").count()
    page.click("tr[data-episode] a")
    page.wait_for_selector("article.turn")
    assert "success unknown" in page.inner_text(".bar .outcome")
    page.goto(address(server, "system?run=run"))
    page.wait_for_selector("dl")
    assert page.locator("dd >> text=unknown").count() == 2


def test_episodes_are_filtered_and_opened_by_keyboard(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    make_run(tmp_path / "run", groups=20)
    page = open_page(serve(tmp_path).address)
    page.wait_for_selector("tr[data-run]")
    page.keyboard.press("3")
    page.wait_for_selector("tr[data-episode]")
    assert "50 of 120" in page.inner_text(".pager")
    page.select_option("select[name=success]", "0")
    wait_until(page, "document.querySelector('.pager').textContent.includes('of 20')")
    page.fill("input[name=text]", "no such words")
    wait_until(page, "document.querySelector('.pager').textContent.includes('no episode fits')")
    page.fill("input[name=text]", "i walk")
    wait_until(page, "document.querySelector('.pager').textContent.includes('of 20')")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    second = page.locator("tr.at").get_attribute("data-episode")
    page.keyboard.press("Enter")
    page.wait_for_selector("article.turn")
    assert page.inner_text("h1") == second
    assert page.locator("svg.grid").count() == 3
    page.keyboard.press("Escape")
    page.wait_for_selector("tr[data-episode]")
    assert page.input_value("input[name=text]") == "i walk"


def test_keys_lead_through_runs_and_from_episode_to_episode(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    for name in ("first", "second"):
        make_run(tmp_path / name)
    page = open_page(serve(tmp_path).address)
    page.wait_for_selector("tr[data-run]")
    for key in ("j", "x", "j", "x"):
        page.keyboard.press(key)
    assert page.locator("tr.chosen").count() == 2
    page.keyboard.press("Enter")
    page.wait_for_selector(".chart canvas")
    assert page.locator(".legend .key").count() == 2
    page.keyboard.press("l")
    assert page.is_checked("text=log scale")
    page.keyboard.press("3")
    page.wait_for_selector("tr[data-episode]")
    listed = page.locator("tr[data-episode]").evaluate_all("(rows) => rows.map((row) => row.dataset.episode)")
    page.keyboard.press("Enter")
    for key, place in (("j", 1), ("j", 2), ("k", 1)):
        page.wait_for_selector("table.credit")
        page.keyboard.press(key)
        wait_until(page, f"document.querySelector('h1')?.textContent === '{listed[place]}'")
    assert page.locator("a[aria-label='previous episode']").count() == 1


def test_a_tag_that_is_being_written_is_not_lost_while_runs_write(
    tmp_path: Path, serve: Serve, open_page: Open
) -> None:
    run = make_run(tmp_path / "run", steps=2, has_ended=False)
    page = open_page(serve(tmp_path).address)
    page.wait_for_selector(".pulse.live")
    page.click("input.tag")
    page.keyboard.type("good")
    with page.expect_response(lambda reply: "/api/runs" in reply.url):
        add_step(RunDirectory.open(run), 3)
    page.keyboard.type(" one")
    assert page.input_value("input.tag") == "good one"
    page.keyboard.press("Enter")
    wait_until(page, "document.querySelector('tr[data-run]').textContent.includes('3 / 4')")
    assert page.input_value("input.tag") == "good one"


def test_a_run_that_has_written_nothing_says_so_on_every_page(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    manifest = collect_manifest("made", 3, command=["turnwise", "train"])
    RunDirectory.create(tmp_path / "new", config_yaml=CONFIG, manifest=manifest)
    server = serve(tmp_path)
    page = open_page(server.address)
    page.wait_for_selector("tr[data-run=new]")
    for view, told in (
        ("curves?runs=new", "No metrics yet."),
        ("episodes?run=new", "This run has written no episode yet."),
        ("system?run=new", "No metrics yet."),
        ("curves?runs=gone", "No run named 'gone'."),
    ):
        page.goto(address(server, view))
        page.wait_for_selector(f"main >> text={told}")


def test_a_thousand_tokens_show_the_numbers_of_the_record(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    run = make_run(tmp_path / "run", steps=3, groups=1, siblings=3, replies=[str(n) for n in range(60)])
    server = serve(run)
    page = open_page(server.address)
    record = RunFiles(run)
    compared = 0
    for step in (1, 2, 3):
        for name in map(str, record.tokens(step).rows.trajectory_ids):
            page.goto(address(server, f"episode?run=run&step={step}&id={name}"))
            wait_until(page, f"document.querySelector('h1')?.textContent === '{name}'")
            page.wait_for_selector("table.credit")
            compared += compare_tokens(page, [token for token in record.tokens(step).of(name) if token.is_sampled])
    assert compared >= 1000


def compare_tokens(page: Any, tokens: list[RecordedToken]) -> int:
    shown = page.evaluate(
        """() => [...document.querySelectorAll('.tok.sampled')].map((span) => {
            span.dispatchEvent(new MouseEvent('mouseenter'));
            const cells = [...document.querySelectorAll('.inspector > table [data-field]')];
            return Object.fromEntries(cells.map((cell) => [cell.dataset.field, cell.textContent]));
        })"""
    )
    assert len(shown) == len(tokens)
    for told, token in zip(shown, tokens, strict=True):
        assert (told["token"], told["turn"]) == (str(token.token_id), str(token.turn + 1))
        assert told["is_clipped"] == ("yes" if token.is_clipped else "no")
        for field in ("behavior_logprob", "advantage", "return_", "value", "first_ratio", "last_ratio", "entropy"):
            assert np.float32(told[field]) == np.float32(getattr(token, field))
    return len(shown)


def test_another_credit_rule_recolours_tokens_and_keys_walk_through_them(
    tmp_path: Path, serve: Serve, open_page: Open
) -> None:
    make_run(tmp_path / "run", siblings=3)
    server = serve(tmp_path)
    page = open_page(server.address)
    page.goto(address(server, f"episode?run=run&step=2&id={NAME}"))
    page.wait_for_selector("tr[data-rule=grpo]")
    colours = "[...document.querySelectorAll('.tok.sampled')].map((span) => span.style.backgroundColor).join()"
    trained = page.evaluate(colours)
    page.click("tr[data-rule=grpo] button")
    assert page.evaluate(colours) != trained
    assert page.input_value("select[name=rule]") == "grpo"
    assert "rule=grpo" in page.url
    page.locator("h1").click()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.inner_text(".inspector [data-field=position]") == "4"
    page.keyboard.press("c")
    assert page.input_value("select[name=colour]") == "mask"
    page.select_option("select[name=colour]", "entropy")
    assert page.evaluate(colours) != trained


def test_siblings_stand_side_by_side_with_what_differs(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    make_run(tmp_path / "run", siblings=3)
    server = serve(tmp_path)
    page = open_page(server.address)
    page.goto(address(server, f"episode?run=run&step=2&id={NAME}"))
    page.click("button[data-sibling='2/frozen_lake/train/200/2']")
    page.wait_for_selector(".pairing.differs")
    assert page.locator(".parting").count() == 1
    assert page.locator(".pairings .half").count() == 4


def test_siblings_without_tokens_are_compared_by_their_words(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    make_run(tmp_path / "run", siblings=3)
    server = serve(tmp_path)
    page = open_page(server.address)

    def without_tokens(route: Any) -> None:
        told = route.fetch().json()
        told["turns"][1]["response_text"] += told["id"]
        route.fulfill(json={**told, "tokens": None})

    page.route("**/api/episode?*", without_tokens)
    page.goto(address(server, f"episode?run=run&step=2&id={NAME}"))
    page.click("button[data-sibling='2/frozen_lake/train/200/2']")
    page.wait_for_selector(".pairing.differs")
    kinds = page.locator(".pairing[data-turn]").evaluate_all("(rows) => rows.map((row) => row.className)")
    assert kinds == ["pairing same", "pairing differs"]


HOSTILE = [
    "<script>document.title = 'owned'; fetch('/api/runs')</script>",
    "<img src=x onerror=\"document.title = 'owned'\"><svg onload=alert(1)>",
    "</pre></div><style>body { display: none }</style><iframe srcdoc='<script>top.document.title=1</script>'></iframe>",
    '<a href="javascript:alert(1)">press</a> \u202e\x00\x1b[2J </script><!-- ]]>',
]


def test_a_hostile_transcript_is_text(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    run = make_run(tmp_path / "run", replies=HOSTILE)
    tokens = {f"<img src=x onerror=alert({n})>": n for n in range(300)}
    vocabulary = {"version": "1.0", "model": {"type": "WordLevel", "vocab": tokens, "unk_token": next(iter(tokens))}}
    (run / "tokenizer.json").write_text(json.dumps(vocabulary))
    finding = {"step": 2, "kind": "<b>kind</b>", "since": 1, "is_collapse": False, "message": HOSTILE[0]}
    (run / "findings.jsonl").write_text(json.dumps(finding) + "\n")
    server = serve(run)
    page = open_page(server.address)
    for view in (f"episode?run=run&step=2&id={NAME}", "episodes?run=run", "system?run=run", "curves?runs=run", "runs"):
        page.goto(address(server, view))
        wait_until(page, "document.querySelector('main').dataset.ready")
        page.wait_for_timeout(300)
        assert "owned" not in page.title()
        assert page.evaluate("document.querySelectorAll('main :is(script, img, iframe, style, b > b)').length") == 0
    page.goto(address(server, f"episode?run=run&step=2&id={NAME}"))
    page.wait_for_selector(".tok.sampled")
    assert "onerror=alert" in page.inner_text(".tokens >> nth=0")
    report = tmp_path / "report.html"
    report.write_text(write_report(RunCollection([run]), "run", num_episodes=8))
    page.goto(f"{report.as_uri()}#/episode?run=run&step=2&id={NAME}")
    page.wait_for_selector(".tok.sampled")
    assert "onerror=alert" in page.inner_text(".tokens >> nth=0")
    assert page.evaluate("document.querySelectorAll('main :is(script, img, iframe, style)').length") == 0


def test_what_a_run_writes_is_shown_while_it_trains(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    run = make_run(tmp_path / "run", steps=2, has_ended=False)
    page = open_page(serve(tmp_path).address)
    page.wait_for_selector("tr[data-run]")
    page.wait_for_selector(".pulse.live")
    assert "2 / 4" in page.inner_text("tr[data-run]")
    training = threading.Thread(target=lambda: add_step(RunDirectory.open(run), 3))
    training.start()
    wait_until(page, "document.querySelector('tr[data-run]').textContent.includes('3 / 4')")
    training.join()
    make_run(tmp_path / "later")
    page.wait_for_selector("tr[data-run=later]")


def test_a_report_is_the_page_without_a_server(tmp_path: Path, open_page: Open) -> None:
    run = make_run(tmp_path / "run", groups=4)
    report = tmp_path / "report.html"
    report.write_text(write_report(RunCollection([run]), "run", num_episodes=12))
    page = open_page(report.as_uri())
    page.wait_for_selector("tr[data-run=run]")
    page.click("nav >> text=Episodes")
    page.wait_for_selector("tr[data-episode]")
    shown = page.locator("tr[data-episode]").count()
    assert 8 <= shown <= 16
    page.select_option("select[name=success]", "1")
    wait_until(page, f"document.querySelectorAll('tr[data-episode]').length < {shown}")
    page.click("tr[data-episode] a")
    page.wait_for_selector("table.credit")
    page.click("nav >> text=Curves")
    page.wait_for_selector(".chart canvas")
    page.click("nav >> text=System")
    page.wait_for_selector("dl")


@pytest.mark.parametrize(
    "view", ["runs", "curves?runs=run", "episodes?run=run", f"episode?run=run&step=2&id={NAME}", "system?run=run"]
)
def test_nothing_sticks_out_on_a_telephone(tmp_path: Path, serve: Serve, open_page: Open, view: str) -> None:
    make_run(tmp_path / "run", replies=["word" * 100, "b", "c", "d", "e", "f", "g", "h"])
    server = serve(tmp_path)
    page = open_page(server.address, width=390, height=844, scheme="dark")
    page.goto(address(server, view))
    wait_until(page, "document.querySelector('main').dataset.ready")
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_numbers_of_a_token_are_in_sight_on_a_telephone(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    make_run(tmp_path / "run", replies=[str(n) for n in range(12)])
    server = serve(tmp_path)
    page = open_page(server.address, width=390, height=844)
    page.goto(address(server, f"episode?run=run&step=2&id={NAME}"))
    page.locator(".tok.sampled").first.click()
    box = page.locator(".inspector [data-field=token]").bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= 844
