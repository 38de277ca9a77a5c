// What a checkpoint would say: asked live about a token that was chosen, from exactly the ids that stood before it.

import { ask, isReport } from "./api.js";
import { chip, el, number, percent, swap } from "./dom.js";

export class PolicyPanel {
  constructor(words, tokens) {
    this.words = words;
    this.tokens = tokens;
    this.place = null;
    this.told = new Map();
    this.isAsking = false;
    this.hasAsked = false;
    this.node = el("section", { class: "card policy" });
    this.answer = el("div", { class: "policy-answer", role: "status" });
    this.checkpoint = el("select", { name: "checkpoint", "aria-label": "Checkpoint", on: { change: () => this.#again() } });
    this.length = el("input", { name: "new", type: "number", min: 1, max: 64, value: 24, class: "short", "aria-label": "Tokens to go on", title: "How many tokens it goes on", on: { change: () => this.#again() } });
    this.button = el("button", { class: "small", on: { click: () => this.ask() } }, "ask");
  }

  async open() {
    const heading = el("h2", {}, "What would a checkpoint say here?");
    const { checkpoints } = await ask("checkpoints", { run: this.words.run });
    if (!checkpoints.length) {
      swap(this.node, heading, el("p", { class: "empty" }, "This run has no checkpoint on disk to ask. Train with report.checkpoint_every set."));
      return;
    }
    const options = checkpoints.map(({ step, policy_version: version }) => el("option", { value: step }, `step ${step}, version ${version}`));
    swap(this.checkpoint, el("option", { value: "" }, "the nearest"), options);
    swap(this.node, heading, el("div", { class: "controls" }, this.checkpoint, el("label", {}, this.length, "tokens"), this.button), this.answer);
    this.#show();
  }

  choose(place) {
    this.place = place;
    this.#show();
    if (this.hasAsked) this.ask();
  }

  look(place) {
    if (this.told.has(this.#key(place))) this.#show(place);
  }

  #key(place) {
    return [place, this.checkpoint.value, this.length.value].join(" ");
  }

  #again() {
    if (this.hasAsked) this.ask();
    else this.#show();
  }

  async ask() {
    this.hasAsked = true;
    if (this.place === null || this.isAsking || this.told.has(this.#key(this.place))) {
      this.#show();
      return;
    }
    const [place, key] = [this.place, this.#key(this.place)];
    this.isAsking = true;
    this.#show();
    try {
      this.told.set(key, await ask("policy", { ...this.words, place, checkpoint: this.checkpoint.value, new: this.length.value }));
    } catch (error) {
      this.told.set(key, { why_not: error.message });
    }
    this.isAsking = false;
    this.#show();
    if (this.told.get(key).why_not) this.told.delete(key);
    else if (this.#key(this.place) !== key) this.ask();
  }

  #show(place = this.place) {
    this.button.disabled = this.isAsking || this.place === null;
    if (place === null) {
      swap(this.answer, el("p", { class: "empty" }, "Choose a token: click it, or go there with ← and →. Then ask, or press a. The first answer takes as long as loading the model."));
      return;
    }
    const told = this.told.get(this.#key(place));
    const where = el("p", { class: "quiet" }, "in place of ", el("code", {}, JSON.stringify(this.tokens.text[place])), ` at position ${this.tokens.position[place]}`);
    if (told?.why_not) swap(this.answer, where, el("p", { class: "problem" }, told.why_not));
    else if (told) swap(this.answer, where, drawPolicyAnswer(told));
    else swap(this.answer, where, el("p", { class: "empty" }, this.isAsking ? "is being asked …" : "not asked yet"));
  }
}

export function makePolicyPanel(words, tokens) {
  return isReport ? null : new PolicyPanel(words, tokens);
}

function drawPolicyAnswer(told) {
  const isThere = told.alternatives.some((one) => one.token_id === told.said);
  const rows = told.alternatives.map(({ token_id: token, text, logprob }) => {
    const share = Math.exp(logprob);
    const bar = el("span", { class: "share" }, el("i", { style: { width: `${100 * share}%` } }));
    return el("tr", { class: token === told.said ? "said-here" : "", data: { alternative: token } }, el("th", {}, el("code", {}, JSON.stringify(text))), el("td", { class: "num", title: String(logprob) }, share < 0.001 ? `${number(100 * share, 2)} %` : percent(share)), el("td", {}, bar));
  });
  const heat = told.temperature === 0 ? "the model at temperature 1; it was asked greedily" : `at temperature ${number(told.temperature)}`;
  return [
    el("p", {}, chip(`step ${told.checkpoint.step}, version ${told.checkpoint.policy_version}`), whoSampled(told)),
    el("table", { class: "facts alternatives" }, el("tbody", {}, rows)),
    el("p", { class: "quiet" }, `The likeliest tokens here, ${heat}. `, isThere ? "The one in bold stands there." : "What stands there is not among them."),
    el("h3", {}, "and would go on, greedily"), el("pre", { class: "said continuation" }, told.continuation.join("")),
  ];
}

function whoSampled({ checkpoint, sampled_by: version }) {
  if (version === null) return "This token was given, and sampled by nobody.";
  if (version < 0) return "No policy of this run sampled this token.";
  const apart = version - checkpoint.policy_version;
  if (apart === 0) return "exactly the weights that sampled this token";
  const updates = `${Math.abs(apart)} update${Math.abs(apart) === 1 ? "" : "s"}`;
  return `${updates} ${apart > 0 ? "before" : "after"} the weights that sampled this token (version ${version})`;
}
