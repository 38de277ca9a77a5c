"""Who is answered, and that nothing a model said can become anything but text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from turnwise.view.server import ASSETS, POLICY, SCRIPTS, RunCollection, make_app, read_asset

from .made_run import make_run

testclient = pytest.importorskip("starlette.testclient", reason="needs the extra serve: pip install 'turnwise[serve]'")

PAGE = Path(__file__).parents[3] / "src" / "turnwise" / "view" / "page"


@pytest.fixture
def client(tmp_path: Path):  # type: ignore[no-untyped-def]
    make_run(tmp_path / "run")
    app = make_app(RunCollection([tmp_path]), token="secret", port=8000)
    return testclient.TestClient(app, base_url="http://127.0.0.1:8000", follow_redirects=False)


def test_a_stranger_is_refused_everywhere(client) -> None:  # type: ignore[no-untyped-def]
    for path in ("/", "/page/main.js", "/api/runs", "/?token=wrong"):
        assert client.get(path).status_code == 403


def test_the_printed_address_lets_a_browser_in(client) -> None:  # type: ignore[no-untyped-def]
    entered = client.get("/?token=secret")
    assert (entered.status_code, entered.headers["location"]) == (303, "/")
    assert "httponly" in entered.headers["set-cookie"].lower()
    page = client.get("/")
    assert page.status_code == 200
    assert page.headers["content-security-policy"] == POLICY
    assert [run["name"] for run in client.get("/api/runs").json()["runs"]] == ["run"]


def test_another_name_of_the_host_is_refused_even_with_the_token(client) -> None:  # type: ignore[no-untyped-def]
    given = {"x-turnwise-token": "secret"}
    assert client.get("/api/runs", headers=given).status_code == 200
    assert client.get("/api/runs", headers={**given, "host": "evil.example:8000"}).status_code == 421
    assert client.get("/?token=secret", headers={"host": "evil.example:8000"}).status_code == 421


def test_mistakes_are_told_as_json(client) -> None:  # type: ignore[no-untyped-def]
    given = {"x-turnwise-token": "secret"}
    missing = client.get("/api/metrics?run=nothing", headers=given)
    assert missing.status_code == 404
    assert "there is no run 'nothing'" in missing.json()["error"]
    assert client.get("/api/nothing", headers=given).status_code == 404
    assert client.get("/page/../server.py", headers=given).status_code == 404


def test_every_file_of_the_page_is_served_and_every_import_is_one_of_them() -> None:
    on_disk = {str(file.relative_to(PAGE)) for file in PAGE.rglob("*") if file.suffix in (".js", ".css")}
    assert on_disk == ASSETS
    for place, name in enumerate(SCRIPTS):
        imported = re.findall(r'^import .* from "\./(.+)";$', read_asset(name), flags=re.MULTILINE)
        assert set(imported) <= set(SCRIPTS[:place])


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_of_the_page_makes_html_or_code_of_text(name: str) -> None:
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc|DOMParser"
    assert re.findall(forbidden, read_asset(name)) == []


def test_top_level_names_differ_between_scripts() -> None:
    """A report puts all of them into one script."""
    declared = [
        name
        for script in SCRIPTS
        for name in re.findall(
            r"^(?:export )?(?:async )?(?:function|const|let|class) (\w+)", read_asset(script), flags=re.MULTILINE
        )
    ]
    assert sorted(declared) == sorted(set(declared))
