// Curves: several runs over each other, seeds grouped into median and range, findings on the axis with their advice.

import { ask } from "./api.js";
import { align, band, drawChart, savePng, saveCsv, smooth } from "./charts.js";
import { lineColour } from "./colours.js";
import { chip, el, swap } from "./dom.js";
import { stateChip } from "./runs.js";

const USUAL = [
  ["rollout/success", "training success"],
  ["eval/success", "held-out success"],
  ["rollout/return", "return"],
  ["eval/return", "held-out return"],
  ["learn/entropy", "entropy"],
  ["learn/approx_kl", "update KL"],
  ["learn/reference_kl", "reference KL"],
  ["learn/clip_fraction", "clip fraction"],
  ["rollout/in_group_std", "return std within groups"],
  ["sync/staleness_mean", "staleness"],
  ["rollout/tokens_per_s", "tokens per second"],
  ["time/rollout_s", "rollout seconds per step"],
  ["time/learn_s", "update seconds per step"],
];

export async function showCurves(root, words, page) {
  const all = (await ask("runs")).runs;
  const wanted = (words.runs ?? "").split(",").filter(Boolean);
  const missing = wanted.find((name) => !all.some((run) => run.name === name));
  if (missing !== undefined) throw new Error(`No run named '${missing}'.`);
  const state = {
    runs: wanted.length ? wanted : all.slice(0, 1).map((run) => run.name),
    weight: Number(words.smooth ?? 0),
    isLog: words.log === "1",
    isLogX: words.logx === "1",
    x: words.x ?? "step",
    isGrouped: words.group === "1",
    more: (words.more ?? "").split(",").filter(Boolean),
    charts: [],
    boxes: {},
  };
  const charts = el("div", { class: "charts" });
  const notes = el("div", { class: "findings" });
  const chooser = el("div", { class: "legend" });
  swap(root, el("div", { class: "bar" }, el("h1", {}, "Curves"), controls()), chooser, charts, notes);

  const about = (name) => all.find((run) => run.name === name);
  const groupOf = (name) => `${about(name).recipe} on ${about(name).env}`;

  function controls() {
    const redraw = () => draw();
    const slider = el("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: state.weight, "aria-label": "Smoothing", on: { input: (event) => { state.weight = Number(event.target.value); redraw(); } } });
    const axis = el("select", { "aria-label": "Axis", on: { change: (event) => { state.x = event.target.value; redraw(); } } }, el("option", { value: "step" }, "by step"), el("option", { value: "time" }, "by time"));
    axis.value = state.x;
    return el("div", { class: "controls" }, el("label", {}, "smooth ", slider), axis, toggle("log scale", "isLog", redraw), toggle("log axis", "isLogX", redraw), toggle("group seeds", "isGrouped", redraw), picker());
  }

  function toggle(label, key, redraw) {
    state.boxes[key] = el("input", { type: "checkbox", checked: state[key], on: { change: (event) => { state[key] = event.target.checked; redraw(); } } });
    return el("label", { class: "check" }, state.boxes[key], label);
  }

  function picker() {
    const known = [...new Set(all.flatMap((run) => run.metric_names))].filter((name) => !USUAL.some(([usual]) => usual === name)).sort();
    const choose = el("select", { "aria-label": "Add a metric", on: { change: (event) => { if (event.target.value) state.more.push(event.target.value); event.target.value = ""; refresh(); } } }, el("option", { value: "" }, "add a metric …"), known.map((name) => el("option", { value: name }, name)));
    return choose;
  }

  function drawLegend() {
    const options = all.filter((run) => !state.runs.includes(run.name)).map((run) => el("option", { value: run.name }, run.name));
    const add = options.length ? el("select", { "aria-label": "Add a run", on: { change: (event) => { event.target.blur(); state.runs.push(event.target.value); page.keep("curves", { runs: state.runs.join(",") }); refresh(); } } }, el("option", { value: "" }, "add a run …"), options) : null;
    const groups = [...new Set(state.runs.map(groupOf))];
    const shown = state.runs.map((name, place) => {
      const colour = lineColour(state.isGrouped ? groups.indexOf(groupOf(name)) : place);
      const drop = () => { state.runs = state.runs.filter((one) => one !== name); page.keep("curves", { runs: state.runs.join(",") }); refresh(); };
      const links = [el("a", { href: page.link("episodes", { run: name }) }, "episodes"), el("a", { href: page.link("system", { run: name }) }, "system")];
      return el("span", { class: "key" }, el("i", { style: { background: colour } }), el("b", {}, name), stateChip(about(name)), links, state.runs.length > 1 ? el("button", { class: "drop", "aria-label": `Remove ${name}`, on: { click: drop } }, "×") : null);
    });
    swap(chooser, shown, add);
  }

  async function refresh() {
    const names = [...USUAL.map(([name]) => name), ...state.more];
    state.payload = await Promise.all(state.runs.map((run) => ask("metrics", { run, names: names.join(",") })));
    draw();
  }

  function draw() {
    // A list that is open stays open while runs write.
    if (!chooser.querySelector("select:focus")) drawLegend();
    state.charts.forEach(({ chart }) => chart.destroy());
    state.charts = [];
    const titles = [...USUAL, ...state.more.map((name) => [name, name])];
    const cards = titles.filter(([name]) => state.payload.some((payload) => (payload.columns[name] ?? []).some((value) => value !== null))).map(([name, title]) => card(name, title));
    swap(charts, cards.map(({ node }) => node), cards.length ? null : el("p", { class: "empty" }, "No metrics yet."));
    cards.forEach(({ start }) => start());
    drawFindings();
  }

  function card(name, title) {
    const plot = el("div", { class: "plot" });
    const heading = el("h2", {}, title, el("small", {}, name));
    const buttons = el("span", { class: "tools" });
    const node = el("section", { class: "card chart", data: { metric: name } }, el("header", {}, heading, buttons), plot);
    const start = () => {
      const { data, lines, bands } = gather(name);
      const at = (payload, step) => (state.x === "step" ? step : payload.time_s[payload.steps.findIndex((known) => known >= step)]);
      const marks = state.payload.flatMap((payload) => payload.findings.map((found) => ({ x: at(payload, found.step), isCollapse: found.is_collapse }))).filter((mark) => mark.x > 0 || !state.isLogX);
      const xLabel = state.x === "step" ? "step" : "seconds";
      const drawn = drawChart(plot, { title, data, lines, bands, marks, isLog: state.isLog, isLogX: state.isLogX, xLabel });
      const file = name.replaceAll("/", "_");
      swap(buttons, drawn.readout, el("button", { class: "small", title: "Download the numbers", on: { click: () => saveCsv(file, xLabel, lines, data) } }, "CSV"), el("button", { class: "small", title: "Download the picture", on: { click: () => savePng(file, drawn.chart) } }, "PNG"));
      state.charts.push(drawn);
    };
    return { node, start };
  }

  function gather(name) {
    const series = state.payload.map((payload) => {
      const x = state.x === "step" ? payload.steps : payload.time_s;
      const known = (payload.columns[name] ?? []).map((value, place) => [x[place], value]).filter(([at, value]) => value !== null && (at > 0 || !state.isLogX));
      return { x: known.map(([at]) => at), y: smooth(known.map(([, value]) => value), state.weight) };
    });
    const [places, ...columns] = align(series);
    if (!state.isGrouped) return { data: [places, ...columns], lines: state.runs.map((run, place) => ({ label: run, colour: lineColour(place) })), bands: [] };
    return groupSeeds(places, columns);
  }

  function groupSeeds(places, columns) {
    const groups = new Map();
    state.runs.forEach((name, place) => {
      const key = groupOf(name);
      groups.set(key, [...(groups.get(key) ?? []), columns[place]]);
    });
    const [data, lines, bands] = [[places], [], []];
    [...groups].forEach(([key, members], place) => {
      const { low, middle, high } = band(members);
      const colour = lineColour(place);
      const first = data.length;
      data.push(high, low, middle);
      lines.push({ label: `${key}, highest`, colour: "transparent", isQuiet: true }, { label: `${key}, lowest`, colour: "transparent", isQuiet: true }, { label: `${key}, median of ${members.length}`, colour, width: 2.2 });
      bands.push({ series: [first, first + 1], fill: `${colour}2e` });
    });
    return { data, lines, bands };
  }

  function drawFindings() {
    const found = state.payload.flatMap((payload, place) => payload.findings.map((finding) => ({ ...finding, run: state.runs[place] })));
    swap(notes, found.length ? el("h2", {}, "Health findings") : null, found.map((finding) => el("p", { class: "finding" }, chip(`step ${finding.step}`, finding.is_collapse ? "bad" : "warn"), el("b", {}, finding.kind.replaceAll("_", " ")), state.runs.length > 1 ? el("span", { class: "quiet" }, finding.run) : null, el("span", {}, finding.message))));
  }

  const flip = (key) => () => { state[key] = state.boxes[key].checked = !state[key]; draw(); };
  await refresh();
  const resize = () => draw();
  addEventListener("resize", resize);
  return { refresh, leave: () => removeEventListener("resize", resize), keys: { l: flip("isLog"), L: flip("isLogX") } };
}
