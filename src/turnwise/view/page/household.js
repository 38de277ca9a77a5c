// A household as far as the player has seen it: furniture, what lies there, where the player stands, what is in the hand.

import { el } from "./dom.js";

const LIST = "((?:an? [^,.]+?)(?:, (?:and )?an? [^,.]+?)*|nothing)";
const SENTENCES = [
  [new RegExp(`Looking quickly around you, you see ${LIST}\\.`), (home, list) => things(list).forEach((name) => piece(home, name))],
  [/You(?:r task is| are) to: ([^\n]+?)\.?(?=\n|$)/, (home, task) => { home.task = task; }],
  [/You arrive at (?:the )?([a-z]+ \d+)\./, (home, name) => { home.at = name; piece(home, name); }],
  [/You are facing the ([a-z]+ \d+)\b/, (home, name) => { home.at = name; piece(home, name); }],
  [/The ([a-z]+ \d+) is closed\./, (home, name) => { piece(home, name).isOpen = false; }],
  [new RegExp(`The ([a-z]+ \\d+) is open\\. In it, you see ${LIST}\\.`), (home, name, list) => { Object.assign(piece(home, name), { isOpen: true, holds: new Set(things(list)) }); }],
  [new RegExp(`On the ([a-z]+ \\d+), you see ${LIST}\\.`), (home, name, list) => { piece(home, name).holds = new Set(things(list)); }],
  [/You close the ([a-z]+ \d+)\./, (home, name) => { piece(home, name).isOpen = false; }],
  [/You pick up the ([a-z]+ \d+) from the ([a-z]+ \d+)\./, (home, thing, name) => { home.hand = thing; piece(home, name).holds?.delete(thing); }],
  [/You (?:move|put) the ([a-z]+ \d+) (?:to|in\/on|in|on) the ([a-z]+ \d+)\./, (home, thing, name) => { home.hand = null; (piece(home, name).holds ??= new Set()).add(thing); }],
  [/You (heat|cool|clean) the ([a-z]+ \d+) using/, (home, verb, thing) => { home.marks.set(thing, { heat: "hot", cool: "cold", clean: "clean" }[verb]); }],
  [/You turn on the ([a-z]+ \d+)\./, (home, thing) => { home.marks.set(thing, "on"); }],
  [/You sliced the ([a-z]+ \d+) with/, (home, thing) => { home.marks.set(thing, "sliced"); }],
];
const MOST_PIECES = 60;

export function drawHousehold(text, turns, index) {
  const home = { pieces: new Map(), at: null, hand: null, task: "", marks: new Map() };
  for (const turn of turns.slice(0, index)) readText(home, turn.observation);
  readText(home, text);
  if (!home.pieces.size) return null;
  const tiles = [...home.pieces].slice(0, MOST_PIECES).map(([name, { isOpen, holds }]) => furniture(home, name, isOpen, holds));
  const hand = el("p", { class: "hand" }, "in the hand: ", home.hand ? thingTag(home, home.hand) : "nothing");
  return el("figure", { class: "world household" }, home.task ? el("p", { class: "wish" }, home.task) : null, el("div", { class: "floor", role: "img", "aria-label": text }, tiles), hand, el("p", { class: "payload" }, text.split("\n\n").at(-1)));
}

function readText(home, text) {
  for (const [pattern, act] of SENTENCES) {
    const found = pattern.exec(text);
    if (found) act(home, ...found.slice(1));
  }
}

function piece(home, name) {
  if (!home.pieces.has(name)) home.pieces.set(name, { isOpen: null, holds: null });
  return home.pieces.get(name);
}

function things(list) {
  return list === "nothing" ? [] : list.split(/, (?:and )?/).map((name) => name.replace(/^an? /, ""));
}

function furniture(home, name, isOpen, holds) {
  const inside = holds ? [...holds].map((thing) => thingTag(home, thing)) : el("i", {}, isOpen === false ? "closed" : "not seen yet");
  const isHere = home.at === name;
  return el("div", { class: `piece${isHere ? " here" : ""}${isOpen === false ? " shut" : ""}`, data: { piece: name } }, el("b", {}, name, isHere ? el("span", { class: "stands", title: "the player stands here" }, " ●") : null), el("span", { class: "inside" }, inside, holds && !holds.size ? el("i", {}, "nothing") : null));
}

function thingTag(home, name) {
  const mark = home.marks.get(name);
  return el("span", { class: "thing" }, name, mark ? el("em", {}, ` ${mark}`) : null);
}
