// System: who works and who waits for whom, where the time went, what failed, what was found.

import { ask } from "./api.js";
import { lineColour } from "./colours.js";
import { chip, duration, el, grouped, isNumber, number, percent, swap } from "./dom.js";
import { stateChip } from "./runs.js";

const NAMES = {
  "rollout/success": ["success in training", percent],
  "eval/success": ["success on held-out tasks", percent],
  "rollout/return": ["return", number],
  "eval/return": ["return on held-out tasks", number],
  "learn/entropy": ["entropy", number],
  "learn/approx_kl": ["KL of the update", number],
  "learn/clip_fraction": ["clipped share", percent],
  "rollout/in_group_std": ["spread inside groups", number],
  "rollout/errors": ["episodes that failed", percent],
  "rollout/tokens_per_s": ["tokens per second", (value) => grouped(Math.round(value))],
  "sync/staleness_mean": ["staleness", number],
  "buffer/experiences_left": ["experiences in the buffer", number],
};

export async function showSystem(root, words, page) {
  const runs = (await ask("runs")).runs;
  const run = words.run ?? runs[0]?.name;
  const choose = el("select", { "aria-label": "Run", on: { change: (event) => page.go("system", { run: event.target.value }) } }, runs.map((one) => el("option", { value: one.name }, one.name)));
  choose.value = run;
  const body = el("div", { class: "cards" });
  swap(root, el("div", { class: "bar" }, el("h1", {}, "System"), choose), body);

  async function refresh() {
    const told = await ask("status", { run });
    swap(body, progressCard(told), latestCard(told), timeCard(told), waitsCard(told), failuresCard(told), findingsCard(told), auditCard(told), partsCard(told));
  }
  await refresh();
  return { refresh };
}

function panel(title, ...children) {
  return el("section", { class: "card" }, el("header", {}, el("h2", {}, title)), children);
}

function factList(facts) {
  return el("dl", {}, facts.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

function progressCard(told) {
  const share = isNumber(told.steps) && told.steps > 0 ? Math.min(1, told.step / told.steps) : 0;
  const silent = ["running", "killed"].includes(told.state) ? `nothing written for ${duration(told.silent_s)}` : "";
  return panel("Progress", el("p", { class: "big" }, stateChip(told), ` step ${told.step}${isNumber(told.steps) ? ` of ${told.steps}` : ""}`), el("progress", { value: share, max: 1, "aria-label": "Progress" }),
    factList([["recipe", told.recipe], ["task", told.env], ["seed", told.seed], ["policy version", told.policy_version], ["took", duration(told.time_s)], ["silence", silent], ["rollouts explored", told.explored], ["went on", resumed(told.resumes)], ["checkpoints", told.checkpoints.slice(-6).join(", ") || "none yet"], ["tokens on record", told.recorded_steps ? `${told.recorded_steps.count} updates, steps ${told.recorded_steps.first} to ${told.recorded_steps.last}` : "none"]]));
}

function resumed(resumes) {
  const told = resumes.slice(-4).map(({ step, at }) => `${step < 0 ? "from the start" : `after step ${step}`}, ${String(at).slice(0, 16).replace("T", " ")}`);
  return told.length ? `${resumes.length} times: ${told.join("; ")}`.replace(/^1 times/, "once") : "";
}

function latestCard(told) {
  const facts = Object.entries(told.latest).map(([name, value]) => [NAMES[name]?.[0] ?? name, value === null ? "unknown" : (NAMES[name]?.[1] ?? number)(value)]);
  return panel("Newest numbers", facts.length ? factList(facts) : el("p", { class: "empty" }, "Nothing has been measured yet."));
}

function timeCard(told) {
  const parts = Object.entries(told.time_split);
  const sum = parts.reduce((total, [, seconds]) => total + seconds, 0);
  if (!sum) return panel("Where the time went", el("p", { class: "empty" }, "Nothing has been measured yet."));
  const bar = el("div", { class: "split" }, parts.map(([name, seconds], place) => el("i", { title: `${name}: ${duration(seconds)}`, style: { width: `${(100 * seconds) / sum}%`, background: lineColour(place) } })));
  const keys = parts.map(([name, seconds], place) => el("span", { class: "key" }, el("i", { style: { background: lineColour(place) } }), name, el("span", { class: "quiet" }, `${duration(seconds)} · ${percent(seconds / sum)}`)));
  return panel("Where the time went", bar, el("div", { class: "legend" }, keys));
}

function waitsCard(told) {
  const lines = told.waits.map((wait) => el("p", { class: "finding" }, chip("waits", "warn"), el("b", {}, wait.who), el("span", {}, `for ${wait.for}${isNumber(wait.waited_s) ? `, since ${duration(wait.waited_s)}` : ""}${isNumber(wait.deadline_s) ? ` of at most ${duration(wait.deadline_s)}` : ""}`)));
  const workers = (told.workers ?? []).filter((worker) => worker.is_there !== false).map((worker) => el("p", { class: "finding" }, chip(worker.is_there ? "works" : "elsewhere", worker.is_there ? "live" : ""), el("b", {}, worker.role), el("span", {}, [worker.pid ? `process ${worker.pid}` : "", worker.host ? `on ${worker.host}` : "", worker.since ? `since ${worker.since}` : ""].filter(Boolean).join(", "))));
  return panel("Who works, and who waits for whom", workers, lines.length ? lines : el("p", { class: "empty" }, "Nobody waits."));
}

function failuresCard(told) {
  const causes = Object.entries(told.failures).sort((a, b) => b[1] - a[1]);
  return panel("Failed episodes", causes.length ? el("table", { class: "list" }, el("tbody", {}, causes.map(([cause, times]) => el("tr", {}, el("td", { class: "num" }, grouped(times)), el("td", { class: "failure" }, cause))))) : el("p", { class: "empty" }, "None."));
}

function findingsCard(told) {
  const lines = told.findings.map((finding) => el("p", { class: "finding" }, chip(`step ${finding.step}`, finding.is_collapse ? "bad" : "warn"), el("b", {}, String(finding.kind).replaceAll("_", " ")), el("span", {}, finding.message)));
  return panel("What the watch has found", lines.length ? lines : el("p", { class: "empty" }, "Nothing to worry about."));
}

function auditCard(told) {
  const facts = [...Object.entries(told.audit), ...Object.entries(told.queues)].map(([name, value]) => [name, number(value)]);
  return panel("Audit and buffer", facts.length ? factList(facts) : el("p", { class: "empty" }, "Nothing has been measured yet."));
}

function partsCard(told) {
  const versions = Object.entries(told.manifest.packages ?? {}).map(([name, version]) => `${name} ${version}`).join(", ");
  return panel("Parts and versions", factList([["loop", told.loop], ["engine", told.engine], ["cluster", told.cluster], ["began", (told.manifest.created ?? "").slice(0, 19).replace("T", " ")], ["command", (told.manifest.command ?? []).join(" ")], ["turnwise", told.manifest.turnwise], ["commit", (told.manifest.git_commit ?? "").slice(0, 12)], ["python", told.manifest.python], ["packages", versions], ["machine", `${told.manifest.platform ?? ""}${told.manifest.num_cpus ? `, ${told.manifest.num_cpus} cores` : ""}`]]), el("p", { class: "path" }, told.run));
}
