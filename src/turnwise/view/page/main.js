// The frame: where we are is in the address, every view is one function, and what changes on disk is shown within seconds.

import { ask, isReport } from "./api.js";
import { isDark } from "./colours.js";
import { showCurves } from "./curves.js";
import { el, swap } from "./dom.js";
import { showEpisode } from "./episode.js";
import { showEpisodes } from "./episodes.js";
import { showRuns } from "./runs.js";
import { showSystem } from "./system.js";
import { showTask } from "./task.js";

const VIEWS = { runs: showRuns, curves: showCurves, episodes: showEpisodes, episode: showEpisode, system: showSystem, task: showTask };
const TABS = [["runs", "Runs"], ["curves", "Curves"], ["episodes", "Episodes"], ["system", "System"]];
const LOOK_EVERY_MS = 2000;
const HELP = [["1 2 3 4", "runs, curves, episodes, system"], ["j k", "next and previous run or episode"], ["Enter", "open it"], ["x", "select a run to compare"], ["/", "filter"], ["← →", "previous and next token"], ["a", "query a checkpoint at this token"], ["c", "next color of the tokens"], ["r", "next advantage estimator"], ["l L", "log scale of the curves, of their axis"], ["t", "light or dark"], ["Esc", "back to the list"], ["?", "this help"]];

const main = el("main", { tabindex: -1 });
const tabs = el("nav", { "aria-label": "Views" });
const pulse = el("span", { class: "pulse", role: "status" });
const help = el("dialog", { class: "help" }, el("h2", {}, "Keyboard"), el("dl", {}, HELP.map(([keys, what]) => [el("dt", {}, el("kbd", {}, keys)), el("dd", {}, what)])), el("form", { method: "dialog" }, el("button", { class: "small" }, "close")));
const notice = el("p", { class: "problem", role: "alert", hidden: true });
let current = {};
let shown = 0;
let shownAt = "";

const page = {
  memory: {},
  listed: [],
  link: (view, words) => `#/${view}?${new URLSearchParams(Object.entries(words).filter(([, value]) => value !== undefined && value !== ""))}`,
  go: (view, words) => { location.hash = page.link(view, words); },
  keep: (view, words) => {
    page.memory[view] = words;
    history.replaceState(null, "", page.link(view, words));
    shownAt = location.hash;
  },
  list: (addresses) => { page.listed = addresses; },
};

function pageFor(turn) {
  // A view that was left may still receive responses: ignore them, also before the next view is drawn.
  const ifShown = (act) => (...given) => { if (turn === shown && location.hash === shownAt) act(...given); };
  return { ...page, keep: ifShown(page.keep), list: ifShown(page.list) };
}

function where() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { view: path in VIEWS ? path : "runs", words: Object.fromEntries(new URLSearchParams(query ?? "")) };
}

async function show() {
  const { view, words } = where();
  const turn = (shown += 1);
  shownAt = location.hash;
  current.leave?.();
  current = {};
  drawTabs(view, words);
  document.title = words.id || words.task ? `${words.id ?? words.task} · turnwise` : `${view} · turnwise`;
  page.memory[view] = words;
  const root = el("div", { class: `view ${view}` });
  tellProblem("");
  swap(main, notice, root);
  try {
    const made = await VIEWS[view](root, words, pageFor(turn));
    if (turn === shown) current = made;
    else made.leave?.();
  } catch (error) {
    if (turn === shown) swap(root, el("p", { class: "problem", role: "alert" }, error.message));
  }
  main.dataset.ready = String(turn);
}

function tellProblem(message) {
  notice.hidden = !message;
  notice.textContent = message;
}

function drawTabs(view, words) {
  const run = words.run ?? words.runs?.split(",")[0];
  const at = view === "episode" ? "episodes" : view;
  swap(tabs, TABS.map(([key, label]) => el("a", { href: page.link(key, page.memory[key] ?? (key === "curves" ? { runs: run } : key === "runs" ? {} : { run })), "aria-current": key === at ? "page" : null }, label)));
}

function turnLight() {
  setLight(isDark() ? "light" : "dark");
  show();
}

function setLight(theme) {
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("turnwise.theme", theme);
  } catch {
    return;
  }
}

const KEYS = { 1: () => page.go("runs", {}), 2: () => page.go("curves", page.memory.curves ?? {}), 3: () => page.go("episodes", page.memory.episodes ?? {}), 4: () => page.go("system", page.memory.system ?? {}), t: turnLight, "?": () => help.showModal() };

addEventListener("keydown", (event) => {
  const isTyping = event.target.matches?.("input:not([type=checkbox]):not([type=range]), select, textarea") || help.open;
  if (event.key === "Escape" && isTyping) {
    event.target.blur?.();
    return;
  }
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Enter" && event.target.matches?.("a, button, summary")) return;
  const act = current.keys?.[event.key] ?? KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});

let before = null;

async function lookForChanges() {
  if (document.visibilityState === "visible") {
    const now = await askForChanges();
    const isNew = before !== null && now !== before;
    // What could not be asked or shown is looked at again when it can.
    before = now !== null && (!isNew || (await refreshView())) ? now : "";
  }
  setTimeout(lookForChanges, LOOK_EVERY_MS);
}

async function askForChanges() {
  try {
    const { runs } = await ask("changes");
    const isLive = Object.values(runs).some((mark) => mark.startsWith("running"));
    pulse.className = isLive ? "pulse live" : "pulse";
    pulse.textContent = isLive ? "live" : "";
    return JSON.stringify(runs);
  } catch {
    pulse.className = "pulse lost";
    pulse.textContent = "Connection to the server lost";
    return null;
  }
}

async function refreshView() {
  const turn = shown;
  try {
    await current.refresh?.();
    if (turn === shown) tellProblem("");
    return true;
  } catch (error) {
    if (turn === shown) tellProblem(error.message);
    return false;
  }
}

function start() {
  let theme = null;
  try {
    theme = localStorage.getItem("turnwise.theme");
  } catch {
    theme = null;
  }
  if (theme) document.documentElement.dataset.theme = theme;
  const light = el("button", { class: "icon", title: "Light or dark (t)", "aria-label": "Light or dark", on: { click: turnLight } }, "◐");
  const keys = el("button", { class: "icon", title: "Keyboard (?)", "aria-label": "Keyboard help", on: { click: () => help.showModal() } }, "?");
  swap(document.getElementById("app"), el("header", { class: "top" }, el("a", { class: "brand", href: "#/runs" }, "turn", el("b", {}, "wise")), tabs, el("span", { class: "grow" }), pulse, light, keys), main, help);
  addEventListener("hashchange", show);
  // Errors of a click are shown like errors of a view.
  addEventListener("unhandledrejection", (event) => {
    event.preventDefault();
    tellProblem(event.reason?.message ?? String(event.reason));
  });
  show();
  if (isReport) pulse.textContent = "report";
  else lookForChanges();
}

start();
