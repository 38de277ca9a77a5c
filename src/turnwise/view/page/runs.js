// Runs: a table to sort, filter, tag and choose from.

import { ask } from "./api.js";
import { chip, count, duration, el, isNumber, number, percent, svg, swap } from "./dom.js";

const STORE = "turnwise.tags";

export async function showRuns(root, words, page) {
  const state = { runs: [], sort: words.sort ?? "created", isDown: words.order !== "ascending", text: words.text ?? "", chosen: new Set((words.chosen ?? "").split(",").filter(Boolean)), rows: [], at: -1 };
  const table = el("div", { class: "scroll" });
  const compare = el("button", { class: "primary", disabled: true, on: { click: () => page.go("curves", { runs: [...state.chosen].join(",") }) } }, "Compare curves");
  const find = el("input", { type: "search", placeholder: "Filter by name, recipe, task, state or tag", "aria-label": "Filter runs", value: state.text, on: { input: (event) => { state.text = event.target.value; draw(); } } });
  swap(root, el("div", { class: "bar" }, el("h1", {}, "Runs"), find, compare), table);

  function draw() {
    const rows = (state.rows = state.runs.filter((run) => fitsRun(run, state.text)).sort(by(state)));
    state.at = Math.min(state.at, rows.length - 1);
    compare.disabled = state.chosen.size === 0;
    compare.textContent = state.chosen.size > 1 ? `Compare ${state.chosen.size} runs` : "Open curves";
    swap(table, rows.length ? runTable(rows, state, draw, page) : el("p", { class: "empty" }, "No matching runs."));
  }

  async function refresh() {
    state.runs = (await ask("runs")).runs;
    // Do not redraw while a tag is being edited.
    if (!table.querySelector("input.tag:focus")) draw();
  }

  const move = (by) => () => {
    state.at = Math.min(Math.max(0, state.at + by), state.rows.length - 1);
    draw();
    table.querySelector("tr.at")?.scrollIntoView({ block: "nearest" });
  };
  const act = (what) => () => { if (state.rows[state.at]) what(state.rows[state.at].name); };
  const choose = act((name) => { if (!state.chosen.delete(name)) state.chosen.add(name); draw(); });
  const open = act((name) => page.go("curves", { runs: state.chosen.size ? [...state.chosen].join(",") : name }));
  await refresh();
  return { refresh, keys: { "/": () => find.focus(), j: move(1), k: move(-1), ArrowDown: move(1), ArrowUp: move(-1), x: choose, Enter: open } };
}

const RUN_COLUMNS = [
  ["name", "run"],
  ["recipe", "recipe"],
  ["env", "task"],
  ["seed", "seed", "num"],
  ["state", "state"],
  ["step", "steps", "num"],
  ["success_after", "success"],
  ["wall_s", "time", "num"],
  ["tokens_sampled", "tokens", "num"],
  ["created", "started"],
];

function runTable(rows, state, draw, page) {
  const turnTo = (key) => () => {
    state.isDown = state.sort === key ? !state.isDown : true;
    state.sort = key;
    draw();
  };
  const heads = RUN_COLUMNS.map(([key, label, kind]) =>
    el("th", { class: kind, "aria-sort": state.sort === key ? (state.isDown ? "descending" : "ascending") : null }, el("button", { class: "head", on: { click: turnTo(key) } }, label, el("span", { class: "sorted" }, state.sort === key ? (state.isDown ? "↓" : "↑") : ""))));
  const body = rows.map((run, place) => runRow(run, place === state.at, state, draw, page));
  return el("table", { class: "list runs" }, el("thead", {}, el("tr", {}, el("th", {}, el("span", { class: "hidden" }, "chosen")), heads, el("th", {}, "tags"))), el("tbody", {}, body));
}

function runRow(run, isAt, state, draw, page) {
  const choose = el("input", { type: "checkbox", checked: state.chosen.has(run.name), "aria-label": `Choose ${run.name}`, on: { change: (event) => { event.target.checked ? state.chosen.add(run.name) : state.chosen.delete(run.name); draw(); } } });
  const open = el("a", { href: page.link("curves", { runs: run.name }) }, run.name);
  const steps = isNumber(run.steps) ? `${run.step} / ${run.steps}` : String(run.step);
  return el("tr", { class: [state.chosen.has(run.name) ? "chosen" : "", isAt ? "at" : ""].join(" "), data: { run: run.name } },
    el("td", {}, choose), el("td", { class: "name" }, open), el("td", {}, run.recipe ?? "–"), el("td", {}, run.env ?? "–"),
    el("td", { class: "num", data: { label: "seed" } }, run.seed ?? "–"), el("td", {}, stateChip(run), run.num_findings ? chip(`${run.num_findings} finding${run.num_findings === 1 ? "" : "s"}`, "warn") : null),
    el("td", { class: "num", data: { label: "steps" } }, steps), el("td", {}, successTrack(run)), el("td", { class: "num", data: { label: "time" } }, duration(run.wall_s)),
    el("td", { class: "num", data: { label: "tokens" } }, count(run.tokens_sampled)), el("td", { class: "quiet began", title: run.created ?? "", data: { label: "began" } }, (run.created ?? "").slice(5, 16).replace("T", " ")),
    el("td", { data: { label: "tags" } }, tagEditor(run, draw)));
}

export function stateChip(run) {
  const kinds = { running: "live", ended: "good", collapsed: "bad", killed: "warn" };
  return chip(run.state, kinds[run.state] ?? "");
}

function returnCell(run) {
  // Success is not reported: show the return.
  const payload = formatChange(run.return_before, run.return_after, run.return_now, number);
  return payload ? el("div", { class: "success" }, chip("unknown", "dull"), el("span", {}, `return ${payload}`)) : el("span", { class: "quiet" }, "–");
}

function formatChange(before, after, training, words) {
  // Held-out tasks and training tasks are two things: an arrow stands between numbers of the same kind alone.
  if (isNumber(after)) return isNumber(before) ? `${words(before)} → ${words(after)}` : words(after);
  if (isNumber(before)) return `${words(before)} before`;
  return isNumber(training) ? `${words(training)} in training` : "";
}

function successTrack(run) {
  const [width, height, y] = [150, 22, 11];
  const at = (share) => 5 + share * (width - 10);
  const now = run.success_after ?? run.success_before ?? run.success_now;
  if (!isNumber(now)) return returnCell(run);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "track", role: "img" });
  const label = formatChange(run.success_before, run.success_after, run.success_now, percent);
  const words = [label];
  picture.append(svg("line", { x1: at(0), x2: at(1), y1: y, y2: y, class: "rail" }));
  for (const [name, share] of Object.entries(run.baselines)) {
    picture.append(svg("line", { x1: at(share), x2: at(share), y1: y - 5, y2: y + 5, class: "baseline" }));
    words.push(`${name.replaceAll("_", " ")} ${percent(share)}`);
  }
  for (const [when, interval] of [["before", run.success_before_interval], ["after", run.success_after_interval]]) {
    if (!interval) continue;
    const [low, high] = interval;
    picture.append(svg("line", { x1: at(low), x2: at(high), y1: y, y2: y, class: `interval ${when}` }));
    words.push(`95 % interval ${when} ${percent(low)} to ${percent(high)}`);
  }
  if (isNumber(run.success_before)) picture.append(svg("circle", { cx: at(run.success_before), cy: y, r: 4, class: "before" }));
  if (isNumber(run.success_after) || !isNumber(run.success_before)) picture.append(svg("circle", { cx: at(now), cy: y, r: 4.5, class: "after" }));
  picture.append(svg("title", {}, words.join("\n")));
  const [low, high] = (run.success_after_interval ?? []).map((share) => (100 * share).toFixed(0));
  return el("div", { class: "success" }, picture, el("span", {}, label, low === undefined ? null : el("small", { class: "quiet" }, `${low} to ${high} %`)));
}

function readTags() {
  try {
    return JSON.parse(localStorage.getItem(STORE)) ?? {};
  } catch {
    return {};
  }
}

function tagEditor(run, draw) {
  const tags = readTags();
  const keep = (event) => {
    tags[run.path] = event.target.value.trim();
    try {
      localStorage.setItem(STORE, JSON.stringify(tags));
    } catch {
      return;
    }
    draw();
  };
  return el("input", { class: "tag", value: tags[run.path] ?? "", placeholder: "add", "aria-label": `Tags of ${run.name}`, on: { change: keep } });
}

function fitsRun(run, text) {
  const said = [run.name, run.recipe, run.env, run.state, run.credit, run.model, readTags()[run.path]].join(" ").toLowerCase();
  return text.toLowerCase().split(/\s+/).every((word) => said.includes(word));
}

function by({ sort, isDown }) {
  return (a, b) => {
    const [left, right] = [a[sort] ?? "", b[sort] ?? ""];
    return (left < right ? -1 : left > right ? 1 : 0) * (isDown ? -1 : 1);
  };
}
