// An episode: turn by turn with its world, its tokens in colour, its credit under every rule, and its siblings beside it.

import { ask } from "./api.js";
import { MODES } from "./colours.js";
import { chip, el, number, signed, successChip, swap } from "./dom.js";
import { makePolicyPanel } from "./policy.js";
import { drawCredit, drawGauges, drawInspector, drawScale, splitTurns, TokenText } from "./tokens.js";
import { drawWorld, foldText } from "./worlds.js";

export async function showEpisode(root, words, page) {
  const asked = { run: words.run, step: words.step, id: words.id, is_eval: words.is_eval };
  const payload = await ask("episode", asked);
  const world = payload.worlds[payload.task.tag];
  const isLearnt = payload.tokens?.source === "learning record";
  const turns = payload.tokens ? splitTurns(payload.tokens) : new Map();
  const state = { mode: words.colour in MODES ? words.colour : isLearnt ? "advantage" : "logprob", rule: words.rule, credit: null };
  const inspector = el("section", { class: "card inspector" });
  const creditPanel = el("section", { class: "card" });
  const beside = el("section", { class: "card beside", hidden: true });
  const legend = el("span", {});
  const policy = payload.tokens ? makePolicyPanel(asked, payload.tokens) : null;
  const look = (place) => { drawInspector(inspector, payload.tokens, place, state.credit); policy?.look(place); };
  const text = payload.tokens ? new TokenText(payload.tokens, look, (place) => policy?.choose(place)) : null;

  const modes = Object.entries(MODES).filter(([, mode]) => payload.tokens && mode.key in payload.tokens);
  const colour = el("select", { name: "colour", "aria-label": "Color tokens by", on: { change: (event) => choose(event.target.value, state.rule) } }, modes.map(([key, mode]) => el("option", { value: key }, mode.label)));
  const rule = el("select", { name: "rule", "aria-label": "Advantage estimator", hidden: true, on: { change: (event) => choose("advantage", event.target.value) } });

  function choose(mode, chosen) {
    state.mode = mode;
    state.rule = chosen;
    colour.value = mode;
    const values = mode === "advantage" && state.credit && chosen ? state.credit.rules[chosen] : undefined;
    text.paint(mode, values);
    swap(legend, drawScale(text));
    if (isLearnt) drawGauges(gauges, turns, (chosen && state.credit?.rules[chosen]) || payload.tokens.advantage);
    page.keep("episode", { ...asked, colour: mode, rule: chosen === state.credit?.trained_with ? undefined : chosen });
    if (state.credit) {
      rule.value = chosen;
      drawCredit(creditPanel, turns, state.credit, chosen, (next) => choose("advantage", next));
    }
  }

  const gauges = new Map(payload.turns.map((turn) => [turn.index, el("span", { class: "credited" })]));
  const cards = payload.turns.map((turn) => turnCard(turn, payload, { places: turns.get(turn.index), text, world, gauge: gauges.get(turn.index) }));
  const ending = el("article", { class: "turn last" }, el("header", {}, el("h3", {}, "End"), outcome(payload)), payload.final_observation ? drawWorld(payload.final_observation, world, payload.turns, payload.turns.length) : null, payload.failure ? el("pre", { class: "said failure" }, payload.failure) : null);
  const tools = el("div", { class: "controls" }, text ? [el("label", {}, "colour ", colour), rule, legend] : null);
  const aside = el("aside", {}, text ? inspector : null, policy?.node, isLearnt ? creditPanel : null, siblingPanel(payload, (sibling) => compare(sibling)));
  swap(root,
    el("div", { class: "bar" }, el("a", { class: "back", href: page.link("episodes", page.memory.episodes ?? { run: words.run }) }, "← episodes"), neighbours(), el("h1", { class: "id" }, payload.id), outcome(payload)),
    el("div", { class: "bar sub" }, el("span", { class: "quiet" }, `${words.run} · step ${payload.step}${payload.is_eval ? " · evaluation" : ""}${payload.is_text_kept ? "" : " · reconstructed from tokens"}`), tools),
    beside, el("div", { class: "columns" }, el("div", { class: `turns ${isShort(payload, world) ? "dense" : ""}` }, cards, ending), aside));

  if (text) {
    drawInspector(inspector, payload.tokens, null, null);
    choose(state.mode, state.rule);
  }
  if (isLearnt) loadCredit();
  policy?.open().catch((error) => swap(policy.node, el("p", { class: "empty" }, error.message)));

  function neighbour(by) {
    const here = page.link("episode", asked);
    const place = page.listed.indexOf(here);
    return place < 0 ? undefined : page.listed[place + by];
  }

  function neighbours() {
    const link = (by, sign, what) => (neighbour(by) ? el("a", { class: "pill", href: neighbour(by), title: `${what} episode of the list (${by > 0 ? "j" : "k"})`, "aria-label": `${what} episode` }, sign) : null);
    return [link(-1, "‹", "previous"), link(1, "›", "next")];
  }

  const turnTo = (by) => () => { if (neighbour(by)) location.hash = neighbour(by); };

  async function loadCredit() {
    swap(creditPanel, el("h2", {}, "Advantages by turn, for every estimator"), el("p", { class: "empty" }, "Computing …"));
    try {
      state.credit = await ask("credit", { run: words.run, step: words.step, id: words.id });
    } catch (error) {
      swap(creditPanel, el("h2", {}, "Advantages by turn, for every estimator"), el("p", { class: "empty" }, error.message));
      return;
    }
    const names = Object.keys(state.credit.rules);
    swap(rule, names.map((name) => el("option", { value: name }, name === state.credit.trained_with ? `${name} (trained with)` : name)));
    rule.hidden = false;
    choose(state.mode, names.includes(state.rule) ? state.rule : state.credit.trained_with);
    if (text.at !== null) text.look(text.at);
  }

  async function compare(sibling) {
    const other = await ask("episode", { run: words.run, step: words.step, id: sibling });
    beside.hidden = false;
    swap(beside, el("header", {}, el("h2", {}, "Rollouts side by side"), el("button", { class: "small", on: { click: () => { beside.hidden = true; } } }, "close")), sideBySide(payload, other, world));
    beside.scrollIntoView({ block: "start", behavior: "smooth" });
  }

  const cycle = (by) => () => {
    const names = modes.map(([key]) => key);
    if (names.length) choose(names[(names.indexOf(state.mode) + by + names.length) % names.length], state.rule);
  };
  const nextRule = () => {
    const names = Object.keys(state.credit?.rules ?? {});
    if (names.length) choose("advantage", names[(names.indexOf(state.rule) + 1) % names.length]);
  };
  return { keys: { j: turnTo(1), k: turnTo(-1), ArrowRight: () => text?.step(1), ArrowLeft: () => text?.step(-1), a: () => policy?.ask(), c: cycle(1), C: cycle(-1), r: nextRule, Escape: () => { location.hash = page.link("episodes", page.memory.episodes ?? { run: words.run }); } } };
}

function isShort(payload, world) {
  return Boolean(world?.symbols) && payload.turns.every((turn) => turn.response_text.length < 300);
}

function outcome(payload) {
  return el("span", { class: "outcome" }, successChip(payload.is_success), chip(`return ${number(payload.return)}`), payload.stop_reason ? chip(payload.stop_reason.replaceAll("_", " ")) : null);
}

function turnCard(turn, payload, { places, text, world, gauge }) {
  const actions = (turn.actions ?? []).join(", ");
  const marks = [turn.reward ? chip(`reward ${signed(turn.reward)}`, turn.reward > 0 ? "good" : "bad") : chip("reward 0", "dull"), turn.penalty ? chip(`penalty ${signed(turn.penalty)}`, "bad") : null, turn.is_valid ? null : chip("not understood", "warn"), turn.is_effective || !turn.is_valid ? null : chip("no effect", "dull"), turn.judged === null || turn.judged === undefined ? null : chip(`judge ${signed(turn.judged)}`), turn.shaping ? chip(`shaping ${signed(turn.shaping)}`) : null];
  const reply = places && text && text.tokens.has_texts ? text.draw(replyPlaces(places, text)) : el("div", {}, foldText(turn.response_text), places && text ? text.draw(places.sampled) : null);
  const prompt = places && text && places.given.length ? promptFold(places.given, text) : null;
  return el("article", { class: "turn", data: { turn: turn.index } }, el("header", {}, el("h3", {}, `Turn ${turn.index + 1}`), actions ? el("code", { class: "action" }, actions) : null, marks, gauge),
    el("div", { class: "exchange" }, el("div", { class: "seen" }, payload.is_text_kept ? drawWorld(turn.observation, world, payload.turns, payload.turns.indexOf(turn)) : foldText(turn.observation)), el("div", { class: "reply" }, reply, prompt)));
}

function replyPlaces({ given, sampled }, text) {
  // What the reply was made to begin with stands right before it, after the last line of the prompt.
  const prefix = [];
  for (let place = given.length - 1; place >= 0 && prefix.length < 6; place -= 1) {
    const said = text.tokens.text[given[place]];
    if (given[place] !== sampled[0] - 1 - prefix.length || said.includes("\n") || said.startsWith("<|")) break;
    prefix.unshift(given[place]);
  }
  return [...(prefix.length < 6 ? prefix : []), ...sampled];
}

function promptFold(given, text) {
  const words = given.map((place) => text.tokens.text[place]).join("");
  return el("details", { class: "prompt" }, el("summary", {}, `${given.length} prompt tokens`), el("pre", { class: "said" }, words));
}

function siblingPanel(payload, onCompare) {
  const others = payload.siblings.filter((sibling) => sibling.id !== payload.id);
  if (!others.length) return null;
  const rows = others.map((sibling) => el("tr", {}, el("td", {}, `rollout ${sibling.id.split("/").at(-1)}`), el("td", { class: "num" }, `return ${number(sibling.return)}`), el("td", { class: "num" }, `${sibling.turns} turns`), el("td", {}, el("button", { class: "small", data: { sibling: sibling.id }, on: { click: () => onCompare(sibling.id) } }, "compare"))));
  return el("section", { class: "card" }, el("h2", {}, "Other rollouts of this group"), el("table", { class: "list" }, el("tbody", {}, rows)));
}

export function sideBySide(one, other, world, { isByText = false } = {}) {
  const [mine, theirs] = [one, other].map((payload) => (payload.tokens && !isByText ? splitTurns(payload.tokens) : new Map()));
  const ids = (payload, turns, index) => turns.get(index)?.sampled.map((place) => payload.tokens.token_id[place]).join(" ");
  const text = (payload, index) => payload.turns[index]?.response_text;
  const isSame = (index) => {
    const [said, answered] = [ids(one, mine, index), ids(other, theirs, index)];
    return said === undefined || answered === undefined ? text(one, index) === text(other, index) : said === answered;
  };
  const length = Math.max(one.turns.length, other.turns.length);
  let isApart = false;
  const rows = Array.from({ length }, (_, index) => {
    const differs = !isSame(index);
    const isFirst = differs && !isApart;
    isApart ||= differs;
    return el("div", { class: `pairing ${differs ? "differs" : "same"}`, data: { turn: index } }, isFirst ? el("p", { class: "parting" }, "First difference") : null, [one, other].map((payload) => half(payload, index, world)));
  });
  return el("div", { class: "pairings" }, el("div", { class: "pairing head" }, [one, other].map((payload) => el("div", {}, el("b", {}, payload.id), outcome(payload)))), rows);
}

function half(payload, index, world) {
  const turn = payload.turns[index];
  if (!turn) return el("div", { class: "half none" }, index === payload.turns.length ? "ended" : "");
  return el("div", { class: "half" }, el("small", {}, `turn ${index + 1} · reward ${number(turn.reward)}`), payload.is_text_kept ? drawWorld(turn.observation, world, payload.turns, index) : null, el("pre", { class: "said" }, turn.response_text));
}
