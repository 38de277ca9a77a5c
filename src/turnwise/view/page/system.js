// System: progress, workers and blocked waits, time breakdown, failed episodes, findings.

import { ask } from "./api.js";
import { lineColour } from "./colours.js";
import { chip, duration, el, grouped, isNumber, number, percent, swap } from "./dom.js";
import { stateChip } from "./runs.js";

const NAMES = {
  "rollout/success": ["training success", percent],
  "eval/success": ["held-out success", percent],
  "rollout/return": ["return", number],
  "eval/return": ["held-out return", number],
  "learn/entropy": ["entropy", number],
  "learn/approx_kl": ["update KL", number],
  "learn/clip_fraction": ["clip fraction", percent],
  "rollout/in_group_std": ["return std within groups", number],
  "rollout/errors": ["failed episodes", percent],
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
    const payload = await ask("status", { run });
    swap(body, progressCard(payload), latestCard(payload), timeCard(payload), waitsCard(payload), failuresCard(payload), findingsCard(payload), auditCard(payload), partsCard(payload));
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

function progressCard(payload) {
  const share = isNumber(payload.steps) && payload.steps > 0 ? Math.min(1, payload.step / payload.steps) : 0;
  const silent = ["running", "killed"].includes(payload.state) ? `${duration(payload.silent_s)} ago` : "";
  return panel("Progress", el("p", { class: "big" }, stateChip(payload), ` step ${payload.step}${isNumber(payload.steps) ? ` of ${payload.steps}` : ""}`), el("progress", { value: share, max: 1, "aria-label": "Progress" }),
    factList([["recipe", payload.recipe], ["task", payload.env], ["seed", payload.seed], ["policy version", payload.policy_version], ["elapsed", duration(payload.time_s)], ["last write", silent], ["rollouts generated", payload.explored], ["resumed", resumed(payload.resumes)], ["checkpoints", payload.checkpoints.slice(-6).join(", ") || "none yet"], ["token log", payload.recorded_steps ? `${payload.recorded_steps.count} updates, steps ${payload.recorded_steps.first} to ${payload.recorded_steps.last}` : "none"]]));
}

function resumed(resumes) {
  const payload = resumes.slice(-4).map(({ step, at }) => `${step < 0 ? "from the start" : `after step ${step}`}, ${String(at).slice(0, 16).replace("T", " ")}`);
  return payload.length ? `${resumes.length} times: ${payload.join("; ")}`.replace(/^1 times/, "once") : "";
}

function latestCard(payload) {
  const facts = Object.entries(payload.latest).map(([name, value]) => [NAMES[name]?.[0] ?? name, value === null ? "unknown" : (NAMES[name]?.[1] ?? number)(value)]);
  return panel("Latest metrics", facts.length ? factList(facts) : el("p", { class: "empty" }, "No metrics yet."));
}

function timeCard(payload) {
  const parts = Object.entries(payload.time_split);
  const sum = parts.reduce((total, [, seconds]) => total + seconds, 0);
  if (!sum) return panel("Time breakdown", el("p", { class: "empty" }, "No metrics yet."));
  const bar = el("div", { class: "split" }, parts.map(([name, seconds], place) => el("i", { title: `${name}: ${duration(seconds)}`, style: { width: `${(100 * seconds) / sum}%`, background: lineColour(place) } })));
  const keys = parts.map(([name, seconds], place) => el("span", { class: "key" }, el("i", { style: { background: lineColour(place) } }), name, el("span", { class: "quiet" }, `${duration(seconds)} · ${percent(seconds / sum)}`)));
  return panel("Time breakdown", bar, el("div", { class: "legend" }, keys));
}

function waitsCard(payload) {
  const lines = payload.waits.map((wait) => el("p", { class: "finding" }, chip("waits", "warn"), el("b", {}, wait.who), el("span", {}, `for ${wait.for}${isNumber(wait.waited_s) ? `, since ${duration(wait.waited_s)}` : ""}${isNumber(wait.deadline_s) ? ` of at most ${duration(wait.deadline_s)}` : ""}`)));
  const workers = (payload.workers ?? []).filter((worker) => worker.is_there !== false).map((worker) => el("p", { class: "finding" }, chip(worker.is_there ? "running" : "other host", worker.is_there ? "live" : ""), el("b", {}, worker.role), el("span", {}, [worker.pid ? `process ${worker.pid}` : "", worker.host ? `on ${worker.host}` : "", worker.since ? `since ${worker.since}` : ""].filter(Boolean).join(", "))));
  return panel("Workers and blocked waits", workers, lines.length ? lines : el("p", { class: "empty" }, "No blocked waits."));
}

function failuresCard(payload) {
  const causes = Object.entries(payload.failures).sort((a, b) => b[1] - a[1]);
  return panel("Failed episodes", causes.length ? el("table", { class: "list" }, el("tbody", {}, causes.map(([cause, times]) => el("tr", {}, el("td", { class: "num" }, grouped(times)), el("td", { class: "failure" }, cause))))) : el("p", { class: "empty" }, "None."));
}

function findingsCard(payload) {
  const lines = payload.findings.map((finding) => el("p", { class: "finding" }, chip(`step ${finding.step}`, finding.is_collapse ? "bad" : "warn"), el("b", {}, String(finding.kind).replaceAll("_", " ")), el("span", {}, finding.message)));
  return panel("Health findings", lines.length ? lines : el("p", { class: "empty" }, "No findings."));
}

function auditCard(payload) {
  const facts = [...Object.entries(payload.audit), ...Object.entries(payload.queues)].map(([name, value]) => [name, number(value)]);
  return panel("Audit and buffer", facts.length ? factList(facts) : el("p", { class: "empty" }, "No metrics yet."));
}

function partsCard(payload) {
  const versions = Object.entries(payload.manifest.packages ?? {}).map(([name, version]) => `${name} ${version}`).join(", ");
  return panel("Components and versions", factList([["loop", payload.loop], ["engine", payload.engine], ["cluster", payload.cluster], ["started", (payload.manifest.created ?? "").slice(0, 19).replace("T", " ")], ["command", (payload.manifest.command ?? []).join(" ")], ["turnwise", payload.manifest.turnwise], ["commit", (payload.manifest.git_commit ?? "").slice(0, 12)], ["python", payload.manifest.python], ["packages", versions], ["machine", `${payload.manifest.platform ?? ""}${payload.manifest.num_cpus ? `, ${payload.manifest.num_cpus} cores` : ""}`]]), el("p", { class: "path" }, payload.run));
}
