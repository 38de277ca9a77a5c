// Tokens: each one a span that is colored by a value and shows all its values when selected.

import { foldCalls } from "./calls.js";
import { colourOf, makeScale, MODES, signColour } from "./colours.js";
import { el, isNumber, number, signed, svg, swap } from "./dom.js";

const FIELDS = [
  ["behavior_logprob", "log-prob when sampled"],
  ["proximal_logprob", "log-prob before the update"],
  ["reference_logprob", "reference log-prob"],
  ["first_ratio", "ratio, first epoch"],
  ["last_ratio", "ratio, last epoch"],
  ["is_clipped", "clipped"],
  ["advantage", "advantage"],
  ["return_", "return"],
  ["value", "value"],
  ["entropy", "entropy"],
  ["raw_reward", "reward of its turn"],
  ["turn_reward", "shaped reward of its turn"],
  ["reward_share", "reward fraction"],
  ["policy_version", "policy version"],
];

export function splitTurns(tokens) {
  const turns = new Map();
  let before = [];
  tokens.turn.forEach((turn, place) => {
    if (turn < 0) {
      before.push(place);
      return;
    }
    if (!turns.has(turn)) turns.set(turn, { given: [], sampled: [] });
    turns.get(turn).given.push(...before);
    turns.get(turn).sampled.push(place);
    before = [];
  });
  return turns;
}

export class TokenText {
  constructor(tokens, onLook, onChoose) {
    this.tokens = tokens;
    this.onLook = onLook;
    this.onChoose = onChoose;
    this.spans = new Map();
    this.at = null;
    this.mode = "mask";
    this.values = null;
  }

  draw(places) {
    return el("div", { class: "tokens" }, foldCalls(places.map((place) => this.#span(place)), places.map((place) => this.tokens.text[place])));
  }

  #span(place) {
    const isSampled = this.tokens.is_sampled[place];
    const look = () => this.look(place);
    const text = this.tokens.text[place];
    const shown = text === "\n" ? "↵\n" : text;
    const span = el("span", { class: `tok ${isSampled ? "sampled" : "given"}`, data: { place }, tabindex: -1, on: { mouseenter: look, click: () => this.choose(place), focus: look } }, shown);
    this.spans.set(place, span);
    return span;
  }

  paint(mode, values) {
    this.mode = mode;
    const { tokens } = this;
    this.values = values ?? tokens[MODES[mode].key] ?? [];
    this.scale = makeScale(MODES[mode], this.values, tokens.is_sampled);
    for (const [place, span] of this.spans) {
      span.style.backgroundColor = tokens.is_sampled[place] ? colourOf(this.scale, this.values[place]) : "";
      span.classList.toggle("clipped", mode !== "mask" && Boolean(tokens.is_clipped?.[place]));
    }
  }

  look(place) {
    this.spans.get(this.at)?.classList.remove("looked");
    this.at = place;
    this.spans.get(place)?.classList.add("looked");
    this.onLook(place);
  }

  choose(place) {
    this.look(place);
    for (const span of this.spans.values()) span.classList.toggle("chosen", span === this.spans.get(place));
    this.onChoose(place);
  }

  step(by) {
    const sampled = [...this.spans.keys()].filter((place) => this.tokens.is_sampled[place]).sort((a, b) => a - b);
    if (!sampled.length) return;
    const now = sampled.indexOf(this.at);
    const next = sampled[Math.min(Math.max(0, now < 0 ? 0 : now + by), sampled.length - 1)];
    this.choose(next);
    this.spans.get(next).closest("details")?.setAttribute("open", "");
    this.spans.get(next).scrollIntoView({ block: "nearest" });
  }
}

export function drawScale(text) {
  const mode = MODES[text.mode];
  if (mode.kind === "flag") return el("span", { class: "scale" }, el("i", { style: { background: colourOf(text.scale, true) } }), mode.label);
  const { most } = text.scale;
  const ends = mode.kind === "signed" ? [-1, -0.5, 0, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1];
  const plain = { mode: { kind: mode.kind }, of: (value) => value, most };
  const boxes = ends.map((end) => el("i", { style: { background: colourOf(plain, end * most) } }));
  const low = mode.kind === "signed" ? `−${number(most)}` : "0";
  return el("span", { class: "scale" }, low, boxes, mode.kind === "signed" ? `+${number(most)}` : number(most));
}

export function drawInspector(node, tokens, place, credit) {
  if (place === null) {
    swap(node, el("h2", {}, "Token"), el("p", { class: "empty" }, "Point at a token, tap it, or use ← and →. All recorded values are shown here."));
    return;
  }
  const isSampled = tokens.is_sampled[place];
  const facts = [["token", tokens.token_id[place]], ["segment", tokens.segment_index[place]], ["position", tokens.position[place]], ["turn", isSampled ? tokens.turn[place] + 1 : "prompt"]];
  const rows = facts.map(([name, value]) => factRow(name, String(value), name));
  if (isSampled) rows.push(...FIELDS.filter(([key]) => key in tokens && !isAbsent(tokens, key)).map(([key, label]) => factRow(label, exact(tokens[key][place]), key)));
  const rules = isSampled && credit ? Object.entries(credit.rules).map(([rule, values]) => factRow(rule, signed(values[place], 4), `rule:${rule}`)) : [];
  swap(node, el("h2", {}, "Token"), el("p", { class: "token-text" }, JSON.stringify(tokens.text[place])), el("table", { class: "facts" }, el("tbody", {}, rows)),
    rules.length ? el("details", {}, el("summary", {}, "advantage by estimator"), el("table", { class: "facts" }, el("tbody", {}, rules))) : null);
}

function factRow(label, value, key) {
  return el("tr", {}, el("th", {}, label), el("td", { data: { field: key } }, value));
}

function isAbsent(tokens, key) {
  const needs = { value: "has_values", return_: null, reference_logprob: "has_reference", proximal_logprob: "has_trace", first_ratio: "has_trace", last_ratio: "has_trace", entropy: "has_trace", is_clipped: "has_trace" };
  return Boolean(needs[key]) && tokens[needs[key]] === false;
}

function exact(value) {
  if (typeof value === "boolean") return value ? "yes" : "no";
  return value === null ? "unknown" : String(value);
}

export function drawCredit(node, turns, credit, chosen, onChoose) {
  const numbers = [...turns.keys()];
  const rows = Object.entries(credit.rules).map(([rule, values]) => {
    const means = numbers.map((turn) => mean(turns.get(turn).sampled.map((place) => values[place])));
    const most = Math.max(...means.map((value) => Math.abs(value ?? 0)));
    const bars = numbers.map((turn, place) => el("td", { title: `turn ${turn + 1}: ${signed(means[place], 4)}` }, turnBar(means[place], most)));
    const label = el("button", { class: "rule", "aria-pressed": String(rule === chosen), on: { click: () => onChoose(rule) } }, rule, rule === credit.trained_with ? el("small", {}, " trained") : null);
    return el("tr", { class: rule === chosen ? "chosen" : "", data: { rule } }, el("th", { title: `at most ±${number(most)}` }, label), bars);
  });
  const left = Object.entries(credit.left_out);
  swap(node, el("h2", {}, "Advantages by turn, for every estimator"), el("div", { class: "scroll" }, el("table", { class: "credit" }, el("thead", {}, el("tr", {}, el("th", {}, "rule"), numbers.map((turn) => el("th", { class: "turn" }, turn + 1)))), el("tbody", {}, rows))),
    credit.is_complete ? null : el("p", { class: "quiet" }, "The token log holds a part of this update; estimators over the whole batch use that part."),
    left.length ? el("details", {}, el("summary", {}, `${left.length} estimators are not available here`), el("dl", {}, left.map(([rule, why]) => [el("dt", {}, rule), el("dd", {}, why)]))) : null);
}

export function drawGauges(gauges, turns, values) {
  const means = new Map([...gauges.keys()].map((turn) => [turn, mean((turns.get(turn)?.sampled ?? []).map((place) => values[place]))]));
  const most = Math.max(...[...means.values()].map((value) => Math.abs(value ?? 0)));
  for (const [turn, node] of gauges) {
    const value = means.get(turn);
    if (!isNumber(value)) continue;
    const width = most ? (50 * Math.abs(value)) / most : 0;
    swap(node, "credit ", el("span", { class: "gauge" }, el("i", { style: { width: `${width}%`, left: `${value >= 0 ? 50 : 50 - width}%`, background: signColour(value) } })), signed(value));
  }
}

function turnBar(value, most) {
  const [width, height, middle] = [26, 26, 13];
  const size = isNumber(value) && most ? (11 * Math.abs(value)) / most : 0;
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" }, svg("line", { x1: 2, x2: width - 2, y1: middle, y2: middle, class: "zero" }),
    svg("rect", { x: 6, width: 14, rx: 1.5, y: value >= 0 ? middle - size : middle, height: size, fill: signColour(value ?? 0) }));
}

function mean(values) {
  const known = values.filter(isNumber);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}
