// A household as far as the player has seen it: furniture, what lies there, where the player stands, what is in the hand.

import { el } from "./dom.js";

const LIST = "((?:an? [^,.]+?)(?:, (?:and )?an? [^,.]+?)*|nothing)";
const SENTENCES = [
  [new RegExp(`Looking quickly around you, you see ${LIST}\\.`), (house, list) => things(list).forEach((name) => piece(house, name))],
  [/You(?:r task is| are) to: ([^\n]+?)\.?(?=\n|$)/, (house, task) => { house.task = task; }],
  [/You arrive at (?:the )?([a-z]+ \d+)\./, (house, name) => { house.at = name; piece(house, name); }],
  [/You are facing the ([a-z]+ \d+)\b/, (house, name) => { house.at = name; piece(house, name); }],
  [/The ([a-z]+ \d+) is closed\./, (house, name) => { piece(house, name).isOpen = false; }],
  [new RegExp(`The ([a-z]+ \\d+) is open\\. In it, you see ${LIST}\\.`), (house, name, list) => { Object.assign(piece(house, name), { isOpen: true, holds: new Set(things(list)) }); }],
  [new RegExp(`On the ([a-z]+ \\d+), you see ${LIST}\\.`), (house, name, list) => { piece(house, name).holds = new Set(things(list)); }],
  [/You close the ([a-z]+ \d+)\./, (house, name) => { piece(house, name).isOpen = false; }],
  [/You pick up the ([a-z]+ \d+) from the ([a-z]+ \d+)\./, (house, thing, name) => { house.hand = thing; piece(house, name).holds?.delete(thing); }],
  [/You (?:move|put) the ([a-z]+ \d+) (?:to|in\/on|in|on) the ([a-z]+ \d+)\./, (house, thing, name) => { house.hand = null; (piece(house, name).holds ??= new Set()).add(thing); }],
  [/You (heat|cool|clean) the ([a-z]+ \d+) using/, (house, verb, thing) => { house.marks.set(thing, { heat: "hot", cool: "cold", clean: "clean" }[verb]); }],
  [/You turn on the ([a-z]+ \d+)\./, (house, thing) => { house.marks.set(thing, "on"); }],
  [/You sliced the ([a-z]+ \d+) with/, (house, thing) => { house.marks.set(thing, "sliced"); }],
];
const MOST_PIECES = 60;

export function drawHousehold(text, turns, index) {
  const house = { pieces: new Map(), at: null, hand: null, task: "", marks: new Map() };
  for (const turn of turns.slice(0, index)) hear(house, turn.observation);
  hear(house, text);
  if (!house.pieces.size) return null;
  const tiles = [...house.pieces].slice(0, MOST_PIECES).map(([name, { isOpen, holds }]) => furniture(house, name, isOpen, holds));
  const hand = el("p", { class: "hand" }, "in the hand: ", house.hand ? thingTag(house, house.hand) : "nothing");
  return el("figure", { class: "world household" }, house.task ? el("p", { class: "wish" }, house.task) : null, el("div", { class: "room", role: "img", "aria-label": text }, tiles), hand, el("p", { class: "told" }, text.split("\n\n").at(-1)));
}

function hear(house, text) {
  for (const [pattern, act] of SENTENCES) {
    const found = pattern.exec(text);
    if (found) act(house, ...found.slice(1));
  }
}

function piece(house, name) {
  if (!house.pieces.has(name)) house.pieces.set(name, { isOpen: null, holds: null });
  return house.pieces.get(name);
}

function things(list) {
  return list === "nothing" ? [] : list.split(/, (?:and )?/).map((name) => name.replace(/^an? /, ""));
}

function furniture(house, name, isOpen, holds) {
  const inside = holds ? [...holds].map((thing) => thingTag(house, thing)) : el("i", {}, isOpen === false ? "closed" : "not seen yet");
  const isHere = house.at === name;
  return el("div", { class: `piece${isHere ? " here" : ""}${isOpen === false ? " shut" : ""}`, data: { piece: name } }, el("b", {}, name, isHere ? el("span", { class: "stands", title: "the player stands here" }, " ●") : null), el("span", { class: "inside" }, inside, holds && !holds.size ? el("i", {}, "nothing") : null));
}

function thingTag(house, name) {
  const mark = house.marks.get(name);
  return el("span", { class: "thing" }, name, mark ? el("em", {}, ` ${mark}`) : null);
}
