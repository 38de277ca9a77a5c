// Episodes: a list to filter and page through, by mouse or keyboard.

import { ask } from "./api.js";
import { chip, el, grouped, number, successChip, swap } from "./dom.js";

const PAGE = 50;
const FILTERS = ["step_from", "step_to", "tag", "success", "stop", "is_eval", "return_from", "return_to", "turns_from", "turns_to", "failed", "invalid", "id", "text"];

export async function showEpisodes(root, words, page) {
  const runs = (await ask("runs")).runs;
  const state = { ...words, run: words.run ?? runs[0]?.name, offset: Number(words.offset ?? 0), at: 0 };
  if (!state.run) {
    swap(root, el("p", { class: "empty" }, "No runs yet."));
    return {};
  }
  const list = el("div", { class: "scroll" });
  const pager = el("div", { class: "pager" });
  const form = el("form", { class: "filters", on: { submit: (event) => event.preventDefault() } });
  const choose = el("select", { "aria-label": "Run", on: { change: (event) => page.go("episodes", { run: event.target.value }) } }, runs.map((run) => el("option", { value: run.name }, run.name)));
  choose.value = state.run;
  const fold = el("details", { class: "fold", open: matchMedia("(min-width: 700px)").matches }, el("summary", {}, "Filters"), form);
  swap(root, el("div", { class: "bar" }, el("h1", {}, "Episodes"), choose), fold, pager, list);

  let timer = 0;
  let newest = 0;
  const change = (key) => (event) => {
    state[key] = event.target.value;
    state.offset = state.at = 0;
    forgetAnswers();
    timer = setTimeout(refresh, 160);
  };

  function forgetAnswers() {
    clearTimeout(timer);
    return (newest += 1);
  }

  function field(label, key, attributes = {}) {
    return el("label", {}, el("span", {}, label), el("input", { name: key, value: state[key] ?? "", on: { input: change(key) }, ...attributes }));
  }

  function select(label, key, options) {
    const box = el("select", { name: key, on: { change: change(key) } }, options.map(([value, text]) => el("option", { value }, text)));
    box.value = state[key] ?? "";
    return el("label", {}, el("span", {}, label), box);
  }

  function drawFilters(facets) {
    const counted = (values) => [["", "any"], ...Object.entries(values).map(([name, times]) => [name, `${name} (${grouped(times)})`])];
    const digits = { inputmode: "numeric", class: "short" };
    swap(form,
      el("label", { class: "wide" }, el("span", {}, "text"), el("input", { type: "search", name: "text", value: state.text ?? "", placeholder: "text of the model or the environment", on: { input: change("text") } })),
      select("outcome", "success", [["", "any"], ["1", "success"], ["0", "no success"], ["-1", "unknown"]]),
      select("tag", "tag", counted(facets.tags)), select("ended by", "stop", counted(facets.stops)),
      select("split", "is_eval", [["", "any"], ["0", "training"], ["1", "evaluation"]]),
      select("replies", "invalid", [["", "any"], ["1", "invalid"], ["0", "all valid"]]),
      select("failed", "failed", [["", "any"], ["1", "failed"], ["0", "not failed"]]),
      el("div", { class: "pair" }, field("step from", "step_from", digits), field("to", "step_to", digits)),
      el("div", { class: "pair" }, field("return from", "return_from", digits), field("to", "return_to", digits)),
      el("div", { class: "pair" }, field("turns from", "turns_from", digits), field("to", "turns_to", digits)),
      el("button", { type: "button", class: "small", on: { click: () => page.go("episodes", { run: state.run }) } }, "clear"));
  }

  function query() {
    const asked = Object.fromEntries(FILTERS.map((key) => [key, state[key]]).filter(([, value]) => value !== undefined && value !== ""));
    return { run: state.run, ...asked, sort: state.sort, order: state.order, offset: state.offset || undefined };
  }

  async function refresh() {
    const turn = forgetAnswers();
    const asked = query();
    const found = await ask("episodes", { ...asked, limit: PAGE }).catch((error) => ({ error }));
    // Answers overtake each other: only that to the newest question counts, and none after leaving.
    if (turn !== newest) return;
    if (found.error) {
      showError(found.error);
      return;
    }
    page.keep("episodes", asked);
    if (!form.childElementCount) drawFilters(found.facets);
    state.found = found.episodes;
    page.list(state.found.map(address));
    state.isEmpty = !Object.keys(found.facets.stops).length && !found.num_files_left;
    state.at = Math.min(state.at, Math.max(0, state.found.length - 1));
    drawPager(found);
    // Rows that are the same stay where they are: a click that is under way is not lost.
    const payload = JSON.stringify([found.episodes, state.sort, state.order]);
    if (payload !== state.payload) drawList();
    state.payload = payload;
    if (found.num_files_left > 0) timer = setTimeout(refresh, 400);
  }

  function showError(error) {
    // Before there is a list there are no filters to mend either: the frame shows it.
    if (!state.found) throw error;
    swap(pager, el("p", { class: "problem", role: "alert" }, error.message));
  }

  function drawPager(found) {
    const last = state.offset + found.episodes.length;
    const many = found.is_total_known ? grouped(found.total) : `more than ${grouped(found.total - 1)}`;
    const turn = (by) => () => { state.offset = Math.max(0, state.offset + by * PAGE); state.at = 0; refresh(); };
    swap(pager, el("span", {}, found.total ? `${grouped(state.offset + 1)}–${grouped(last)} of ${many}` : state.isEmpty ? "This run has written no episode yet." : "no episode fits", found.num_files_left ? ` · ${grouped(found.num_files_left)} files still to be read` : ""),
      el("span", { class: "grow" }), el("button", { class: "small", disabled: state.offset === 0, on: { click: turn(-1) } }, "← newer"), el("button", { class: "small", disabled: found.is_total_known && last >= found.total, on: { click: turn(1) } }, "older →"));
  }

  function drawList() {
    const sortBy = (key) => () => { state.order = state.sort === key && state.order !== "ascending" ? "ascending" : undefined; state.sort = key; state.offset = 0; refresh(); };
    const arrow = (key) => ((state.sort ?? "step") === key ? (state.order === "ascending" ? "↑" : "↓") : "");
    const head = (label, key, kind) => el("th", { class: kind }, key ? el("button", { class: "head", on: { click: sortBy(key) } }, label, el("span", { class: "sorted" }, arrow(key))) : label);
    const hasFailures = state.found.some((row) => row.failure);
    const rows = state.found.map((row, place) => el("tr", { class: place === state.at ? "at" : "", data: { episode: row.id } },
      el("td", { class: "num", data: { label: "step" } }, row.step), el("td", { class: "name" }, el("a", { href: address(row) }, row.id)), el("td", {}, successChip(row.is_success), row.is_eval ? chip("evaluation") : null, row.is_valid ? null : chip("not understood", "warn")),
      el("td", { class: "num", data: { label: "return" } }, number(row.return)), el("td", { class: "num", data: { label: "turns" } }, row.turns), el("td", {}, (row.stop_reason ?? "").replaceAll("_", " ")), hasFailures ? el("td", { class: "failure" }, row.failure) : null));
    list.hidden = !rows.length;
    swap(list, el("table", { class: "list episodes" }, el("thead", {}, el("tr", {}, head("step", "step", "num"), head("episode", "id"), head("outcome"), head("return", "return", "num"), head("turns", "turns", "num"), head("ended by"), hasFailures ? head("failure") : null)), el("tbody", {}, rows)));
  }

  const address = (row) => page.link("episode", { run: state.run, step: row.step, id: row.id, is_eval: row.is_eval ? "1" : undefined });
  const move = (by) => () => {
    state.at = Math.min(Math.max(0, state.at + by), state.found.length - 1);
    drawList();
    list.querySelector("tr.at")?.scrollIntoView({ block: "nearest" });
  };
  const keys = {
    j: move(1), k: move(-1), ArrowDown: move(1), ArrowUp: move(-1),
    Enter: () => { if (state.found[state.at]) location.hash = address(state.found[state.at]); },
    "/": () => { fold.open = true; form.querySelector("input")?.focus(); },
  };
  await refresh();
  return { refresh, keys, leave: forgetAnswers };
}
