// Worlds as a person would want to see them. What is not understood is shown as the text that the model saw.

import { drawResult } from "./calls.js";
import { el, svg } from "./dom.js";
import { drawHousehold } from "./household.js";
import { drawShop } from "./shop.js";

const CELL = 30;
const LONG = 900;

export function drawWorld(text, world, turns, index) {
  const grid = world ? readGrid(text, world) : null;
  if (grid) return el("figure", { class: "world" }, drawGrid(grid, text));
  const drawn = world?.type === "webshop" ? drawShop(text, turns, index) : world?.type === "alfworld" ? drawHousehold(text, turns, index) : null;
  if (drawn) return el("div", { class: "drawn" }, drawn, el("details", { class: "rest" }, el("summary", {}, "as the model reads it"), el("pre", { class: "said" }, text)));
  return drawResult(text, turns[index - 1]?.response_text) ?? foldText(text);
}

export function foldText(text) {
  if (text.length <= LONG) return el("pre", { class: "said" }, text);
  const rest = el("details", { class: "rest" }, el("summary", {}, `all ${text.length} characters`), el("pre", { class: "said" }, text));
  return el("div", {}, el("pre", { class: "said" }, `${text.slice(0, LONG)} …`), rest);
}

function readGrid(text, world) {
  if (!world.symbols || !["frozen_lake", "sokoban"].includes(world.type)) return null;
  const kinds = new Map(Object.entries(world.symbols).map(([kind, symbol]) => [symbol, kind]));
  return world.view === "objects" ? readObjects(text, world, kinds) : readMap(text, kinds);
}

function readMap(text, kinds) {
  const lines = text.split("\n").map((line) => [...line]);
  const isMap = lines.length > 1 && lines.every((line) => line.length === lines[0].length && line.every((symbol) => kinds.has(symbol)));
  return isMap ? lines.map((line) => line.map((symbol) => [kinds.get(symbol)])) : null;
}

function readObjects(text, world, kinds) {
  const isRoom = world.type === "sokoban";
  const [rows, columns] = isRoom ? [world.rows, world.columns] : [world.size, world.size];
  if (!(rows > 0 && rows <= 26 && columns > 0 && columns <= 26)) return null;
  const isEdge = (row, column) => row === 0 || column === 0 || row === rows - 1 || column === columns - 1;
  const ground = (row, column) => (!isRoom ? "ice" : isEdge(row, column) ? "wall" : "floor");
  const grid = Array.from({ length: rows }, (_, row) => Array.from({ length: columns }, (_, column) => [ground(row, column)]));
  for (const word of text.split(" ")) {
    const [symbol, letter, ...digits] = [...word];
    const [row, column] = [Number(digits.join("")) - 1, (letter ?? "").charCodeAt(0) - 97];
    if (!kinds.has(symbol) || !grid[row]?.[column]) return null;
    grid[row][column].push(kinds.get(symbol));
  }
  return grid;
}

function drawGrid(grid, text) {
  const [height, width] = [grid.length * CELL, grid[0].length * CELL];
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": text, class: "grid" });
  const lake = isLake(grid);
  grid.forEach((line, row) =>
    line.forEach((kinds, column) => {
      const cell = svg("g", { transform: `translate(${column * CELL} ${row * CELL})` });
      const has = (...asked) => asked.some((kind) => kinds.includes(kind));
      cell.append(svg("rect", { x: 1, y: 1, width: CELL - 2, height: CELL - 2, rx: 4, class: has("wall") ? "wall" : has("arrived") ? "reached" : lake ? "ice" : "floor" }));
      if (has("hole", "fallen")) cell.append(svg("circle", { cx: 15, cy: 15, r: 10, class: "hole" }));
      if (has("goal") && !has("arrived")) cell.append(flag());
      if (has("target", "stored", "player_on_target")) cell.append(svg("circle", { cx: 15, cy: 15, r: 7, class: "target" }));
      if (has("box", "stored")) cell.append(svg("rect", { x: 6, y: 6, width: 18, height: 18, rx: 3, class: has("stored") ? "box stored" : "box" }), svg("path", { d: "M9 9 L21 21 M21 9 L9 21", class: "strap" }));
      if (has("player", "fallen", "arrived", "player_on_target")) cell.append(person(has("fallen") ? "fallen" : has("arrived", "player_on_target") ? "home" : ""));
      picture.append(cell);
    }),
  );
  return picture;
}

function isLake(grid) {
  return !grid.some((line) => line.some((kinds) => kinds.includes("floor") || kinds.includes("wall") || kinds.includes("box")));
}

function flag() {
  return svg("g", { class: "flag" }, svg("path", { d: "M11 25 V6", class: "pole" }), svg("path", { d: "M11 6 L23 10 L11 14 Z", class: "cloth" }));
}

function person(kind) {
  return svg("g", { class: `person ${kind}` }, svg("circle", { cx: 15, cy: 10.5, r: 4.5 }), svg("path", { d: "M7.5 25 C7.5 13.5 22.5 13.5 22.5 25 Z" }));
}
