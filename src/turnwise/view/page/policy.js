// Prediction of a checkpoint at a chosen token, from exactly the recorded ids before it.

import { ask, isReport } from "./api.js";
import { chip, el, number, percent, swap } from "./dom.js";

export class PolicyPanel {
  constructor(words, tokens) {
    this.words = words;
    this.tokens = tokens;
    this.place = null;
    this.payload = new Map();
    this.isAsking = false;
    this.hasAsked = false;
    this.node = el("section", { class: "card policy" });
    this.answer = el("div", { class: "policy-answer", role: "status" });
    this.checkpoint = el("select", { name: "checkpoint", "aria-label": "Checkpoint", on: { change: () => this.#again() } });
    this.length = el("input", { name: "new", type: "number", min: 1, max: 64, value: 24, class: "short", "aria-label": "Tokens to generate", title: "Number of tokens to generate", on: { change: () => this.#again() } });
    this.button = el("button", { class: "small", on: { click: () => this.ask() } }, "Run");
  }

  async open() {
    const heading = el("h2", {}, "Query a checkpoint at this token");
    const { checkpoints } = await ask("checkpoints", { run: this.words.run });
    if (!checkpoints.length) {
      swap(this.node, heading, el("p", { class: "empty" }, "This run has no checkpoint on disk. Set report.checkpoint_every to save checkpoints."));
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
    if (this.payload.has(this.#key(place))) this.#show(place);
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
    if (this.place === null || this.isAsking || this.payload.has(this.#key(this.place))) {
      this.#show();
      return;
    }
    const [place, key] = [this.place, this.#key(this.place)];
    this.isAsking = true;
    this.#show();
    try {
      this.payload.set(key, await ask("policy", { ...this.words, place, checkpoint: this.checkpoint.value, new: this.length.value }));
    } catch (error) {
      this.payload.set(key, { why_not: error.message });
    }
    this.isAsking = false;
    this.#show();
    if (this.payload.get(key).why_not) this.payload.delete(key);
    else if (this.#key(this.place) !== key) this.ask();
  }

  #show(place = this.place) {
    this.button.disabled = this.isAsking || this.place === null;
    if (place === null) {
      swap(this.answer, el("p", { class: "empty" }, "Choose a token: click it, or go there with ← and →. Then press Run, or a. The first query also loads the model."));
      return;
    }
    const payload = this.payload.get(this.#key(place));
    const where = el("p", { class: "quiet" }, "in place of ", el("code", {}, JSON.stringify(this.tokens.text[place])), ` at position ${this.tokens.position[place]}`);
    if (payload?.why_not) swap(this.answer, where, el("p", { class: "problem" }, payload.why_not));
    else if (payload) swap(this.answer, where, drawPolicyAnswer(payload));
    else swap(this.answer, where, el("p", { class: "empty" }, this.isAsking ? "Running …" : "No result yet."));
  }
}

export function makePolicyPanel(words, tokens) {
  return isReport ? null : new PolicyPanel(words, tokens);
}

function drawPolicyAnswer(payload) {
  const isThere = payload.alternatives.some((one) => one.token_id === payload.said);
  const rows = payload.alternatives.map(({ token_id: token, text, logprob }) => {
    const share = Math.exp(logprob);
    const bar = el("span", { class: "share" }, el("i", { style: { width: `${100 * share}%` } }));
    return el("tr", { class: token === payload.said ? "said-here" : "", data: { alternative: token } }, el("th", {}, el("code", {}, JSON.stringify(text))), el("td", { class: "num", title: String(logprob) }, share < 0.001 ? `${number(100 * share, 2)} %` : percent(share)), el("td", {}, bar));
  });
  const heat = payload.temperature === 0 ? "temperature 1 (the run samples greedily)" : `at temperature ${number(payload.temperature)}`;
  return [
    el("p", {}, chip(`step ${payload.checkpoint.step}, version ${payload.checkpoint.policy_version}`), whoSampled(payload)),
    el("table", { class: "facts alternatives" }, el("tbody", {}, rows)),
    el("p", { class: "quiet" }, `Most likely tokens, ${heat}. `, isThere ? "Bold: the actual token." : "The actual token is not among them."),
    el("h3", {}, "Greedy continuation"), el("pre", { class: "said continuation" }, payload.continuation.join("")),
  ];
}

function whoSampled({ checkpoint, sampled_by: version }) {
  if (version === null) return "Prompt token: not sampled by the model.";
  if (version < 0) return "Sampled by another policy than this run's.";
  const apart = version - checkpoint.policy_version;
  if (apart === 0) return "exactly the weights that sampled this token";
  const updates = `${Math.abs(apart)} update${Math.abs(apart) === 1 ? "" : "s"}`;
  return `${updates} ${apart > 0 ? "before" : "after"} the weights that sampled this token (version ${version})`;
}
