// A shop as a person would see it: the wish, the page with its products or options, what was chosen, and the purchase.

import { el } from "./dom.js";

const SUB_PAGES = ["Description", "Features", "Reviews"];

export function drawShop(text, turns, index) {
  const parts = text.split(" [SEP] ");
  const page = parts.length > 1 ? readPage(parts) : readCompactPage(text.split("\n"));
  if (!page) return null;
  const clicks = readClicks(turns, index);
  const info = turns[index - 1]?.info ?? {};
  const clickable = Array.isArray(info.clickables) ? new Set(info.clickables.map((name) => String(name).toLowerCase())) : null;
  return el("figure", { class: "world shop", data: { page: page.kind } }, page.wish ? el("p", { class: "wish" }, page.wish) : null, DRAWN[page.kind](page, { clicks, clickable }));
}

function readPage(parts) {
  if (parts[0] === "Thank you for shopping with us!") return readPurchase(parts);
  const start = parts.indexOf("Instruction:");
  if (start < 0 || start > 1) return null;
  const [wish, ...rest] = parts.slice(start + 1);
  if (rest.length === 1 && rest[0] === "Search") return { kind: "search", wish };
  const body = rest.filter((part) => !["Back to Search", "< Prev", "Next >"].includes(part));
  if (/^Page \d+ \(Total results: \d+\)$/.test(body[0] ?? "")) return { kind: "results", wish, head: body[0], products: inThrees(body.slice(1)) };
  if (body.at(-1) === "Buy Now") {
    const end = body.findIndex((part) => part.startsWith("Price: "));
    return end < 1 ? null : { kind: "product", wish, title: body[end - 1], price: body[end], options: body.slice(0, end - 1) };
  }
  return { kind: "reading", wish, lines: body };
}

function readPurchase(parts) {
  const after = (name) => parts[parts.indexOf(name) + 1];
  return { kind: "bought", code: after("asin"), options: after("options"), score: after("Your score (min 0.0, max 1.0)") };
}

function readCompactPage([wish, ...lines]) {
  if (/^score [\d.e-]+$/.test(wish)) return { kind: "bought", score: wish.slice(6) };
  if (!lines.length) return null;
  if (lines.length === 1 && lines[0] === "search") return { kind: "search", wish };
  if (/^page \d+ of \d+$/.test(lines[0])) return { kind: "results", wish, head: lines[0], products: lines.slice(1).map((line) => { const [code, ...title] = line.split(" "); return { code, title: title.join(" "), price: "" }; }) };
  const chosen = lines.at(-1).startsWith("chosen: ") ? lines.at(-1).slice(8).split(", ") : null;
  return chosen ? { kind: "product", wish, title: lines[0], price: "", named: lines.slice(1, -1), chosen } : { kind: "reading", wish, lines };
}

function inThrees(parts) {
  return Array.from({ length: Math.ceil(parts.length / 3) }, (_, row) => ({ code: parts[3 * row], title: parts[3 * row + 1] ?? "", price: parts[3 * row + 2] ?? "" }));
}

function readClicks(turns, index) {
  const clicks = [];
  for (const action of turns.slice(0, index).flatMap((turn) => turn.actions ?? [])) {
    const [, verb, name] = /^\s*(search|click)\[(.*)\]\s*$/is.exec(action) ?? [];
    if (verb?.toLowerCase() === "search" || name?.toLowerCase() === "back to search") clicks.length = 0;
    else if (verb) clicks.push(name.trim().toLowerCase());
  }
  return clicks;
}

function groupOptions(options, clickable) {
  const groups = [];
  for (const option of options) {
    if (clickable && !clickable.has(option.toLowerCase())) groups.push({ name: option, values: [] });
    else {
      if (!groups.length) groups.push({ name: "", values: [] });
      groups.at(-1).values.push(option);
    }
  }
  return groups;
}

function namedOptions(lines) {
  return lines.map((line) => { const [name, values] = line.split(": "); return { name, values: (values ?? "").split(", ") }; });
}

function optionRow({ name, values }, isChosen) {
  return el("div", { class: "options" }, name ? el("b", {}, name) : null, values.map((value) => el("span", { class: isChosen(value, values) ? "pill chosen" : "pill" }, value)));
}

const DRAWN = {
  search: () => el("p", { class: "searchbox" }, "Search"),
  results: (page) => el("div", {}, el("small", {}, page.head), el("ol", { class: "products" }, page.products.map(({ code, title, price }) => el("li", {}, el("code", {}, code), el("span", {}, title), el("b", {}, price))))),
  product: (page, { clicks, clickable }) => {
    const last = (values) => clicks.findLast((click) => values.some((value) => value.toLowerCase() === click));
    const isChosen = page.chosen ? (value) => page.chosen.includes(value) : (value, values) => value.toLowerCase() === last(clickable ? values : [value]);
    const groups = page.named ? namedOptions(page.named) : groupOptions(page.options, clickable);
    return el("div", {}, el("h4", {}, page.title), page.price ? el("b", {}, page.price) : null, groups.map((group) => optionRow(group, isChosen)), page.named ? null : el("p", { class: "buttons" }, SUB_PAGES.map((name) => el("span", { class: "pill" }, name)), el("span", { class: "pill buy" }, "Buy Now")));
  },
  reading: (page) => el("ul", { class: "reading" }, page.lines.map((line) => el("li", {}, line))),
  bought: (page) => el("p", { class: "bought" }, "Bought ", page.code ? el("code", {}, page.code) : null, page.options && page.options !== "{}" ? ` with ${page.options}` : "", el("b", {}, ` score ${page.score}`)),
};
