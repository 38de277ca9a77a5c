// Questions go to the server that this page came from. A report contains the responses and sends no requests.

const embedded = document.getElementById("embedded");
const given = embedded ? JSON.parse(embedded.textContent) : null;

export const isReport = given !== null;

export async function ask(name, words = {}) {
  const asked = Object.entries(words).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return isReport ? lookUp(name, Object.fromEntries(asked)) : fetchAnswer(name, asked);
}

async function fetchAnswer(name, asked) {
  const reply = await fetch(`api/${name}?${new URLSearchParams(asked)}`);
  const type = reply.headers.get("content-type") ?? "";
  if (type.includes("json")) {
    const answer = await reply.json();
    if (reply.ok) return answer;
    throw new Error(answer.error);
  }
  throw new Error(reply.status === 403 ? await reply.text() : `The server answered ${reply.status}.`);
}

function lookUp(name, words) {
  const kept = ["metrics", "episodes"].includes(name) ? { run: words.run } : words;
  const key = JSON.stringify([name, Object.entries(kept).map(([key, value]) => [key, String(value)]).sort()]);
  if (!(key in given)) throw new Error("This report does not have it inside. Open the run itself: turnwise view RUN");
  return name === "episodes" ? pick(given[key], words) : given[key];
}

function pick(answer, words) {
  const fits = (row) =>
    (!words.tag || row.tag === words.tag) && (!words.stop || row.stop_reason === words.stop) &&
    (words.success === undefined || Number(row.is_success ?? -1) === Number(words.success)) &&
    (words.is_eval === undefined || Number(row.is_eval) === Number(words.is_eval)) &&
    (words.step_from === undefined || row.step >= Number(words.step_from)) &&
    (words.step_to === undefined || row.step <= Number(words.step_to)) &&
    (words.return_from === undefined || row.return >= Number(words.return_from)) &&
    (words.return_to === undefined || row.return <= Number(words.return_to)) &&
    (words.turns_from === undefined || row.turns >= Number(words.turns_from)) &&
    (words.turns_to === undefined || row.turns <= Number(words.turns_to)) &&
    (words.failed === undefined || (row.failure !== "") === (Number(words.failed) === 1)) &&
    (words.invalid === undefined || row.is_valid !== (Number(words.invalid) === 1)) &&
    (!words.text || JSON.stringify(row).toLowerCase().includes(words.text.toLowerCase()));
  const by = words.sort ?? "step";
  const sign = words.order === "ascending" ? 1 : -1;
  const rows = answer.episodes.filter(fits).sort((a, b) => (a[by] < b[by] ? -sign : a[by] > b[by] ? sign : 0));
  const offset = Number(words.offset ?? 0);
  return { ...answer, total: rows.length, episodes: rows.slice(offset, offset + Number(words.limit ?? 50)) };
}
