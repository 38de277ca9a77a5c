// One task that two policies played: their episodes side by side, from the evaluations that `turnwise compare` has read.

import { ask } from "./api.js";
import { el, swap } from "./dom.js";
import { sideBySide } from "./episode.js";

export async function showTask(root, words, page) {
  const payload = await Promise.all(["first", "second"].map((side) => ask("evaluated", { run: words[side], eval: words[`${side}_eval`], task: words.task })));
  const chosen = [0, 0];
  const pairs = el("section", { class: "card beside" });

  function picker(side) {
    const { plays } = payload[side];
    if (plays.length < 2) return null;
    const options = plays.map((play, place) => el("option", { value: place }, `play ${place + 1}: ${play.is_success === null ? "success unknown" : play.is_success ? "success" : "no success"}`));
    return el("select", { "aria-label": `Play of ${side ? "the second" : "the first"}`, on: { change: (event) => { chosen[side] = Number(event.target.value); draw(); } } }, options);
  }

  function draw() {
    const [one, other] = payload.map(({ plays }, side) => plays[chosen[side]]);
    // Two runs may have two tokenizers, in which the same ids are different words.
    swap(pairs, sideBySide(one, other, one.worlds[one.task.tag], { isByText: true }));
  }

  const names = ["first", "second"].map((side, place) => el("span", { class: "key" }, el("a", { href: page.link("episodes", { run: words[side], is_eval: 1 }) }, words[side]), el("small", {}, payload[place].eval), picker(place)));
  swap(root, el("div", { class: "bar" }, el("h1", { class: "id" }, words.task)), el("div", { class: "legend" }, names), pairs);
  draw();
  return {};
}
