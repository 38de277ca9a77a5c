// Tool calls in what a model says, and their results: found in the text, folded, expanded on click.

import { el } from "./dom.js";

const CALL = /<tool_call>[\s\S]*?(?:<\/tool_call>|$)|\[TOOL_CALLS\][^\n]*|<\|python_tag\|>[\s\S]*?(?:<\|eom_id\|>|<\|eot_id\|>|$)/g;
const SHOWN = 70;

export function findCalls(text) {
  return [...text.matchAll(CALL)].map((found) => ({ start: found.index, end: found.index + found[0].length, name: nameOf(found[0]) }));
}

function nameOf(call) {
  return /"name"\s*:\s*"([^"\\]{1,60})"/.exec(call)?.[1] ?? "a tool";
}

export function foldCalls(spans, texts) {
  const calls = findCalls(texts.join(""));
  if (!calls.length) return spans;
  const shown = [];
  let [at, place] = [0, 0];
  for (const call of calls) {
    const inside = [];
    for (; place < spans.length && at < call.end; place += 1) {
      (at + texts[place].length > call.start ? inside : shown).push(spans[place]);
      at += texts[place].length;
    }
    if (inside.length) shown.push(el("details", { class: "call" }, el("summary", {}, `calls ${call.name}`), inside));
  }
  return [...shown, ...spans.slice(place)];
}

export function drawResult(text, before) {
  const names = findCalls(before ?? "").map((call) => call.name);
  if (!names.length) return null;
  const first = text.length > SHOWN ? `${text.slice(0, SHOWN)} …` : text;
  return el("details", { class: "call result" }, el("summary", {}, `result of ${names.join(", ")}: `, el("code", {}, first)), el("pre", { class: "said" }, text));
}
