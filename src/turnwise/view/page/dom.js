// Elements and words. Data becomes text here and nowhere else: nothing in this page ever parses data as HTML.

export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "style") Object.assign(node.style, value);
    else if (name === "value" || name === "checked") node[name] = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  put(node, ...children);
  return node;
}

export function put(node, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

export function swap(node, ...children) {
  node.replaceChildren();
  return put(node, ...children);
}

export function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

export function number(value, digits = 3) {
  if (!isNumber(value)) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(digits - 1);
  return Number(value.toPrecision(Math.max(digits, Math.floor(Math.log10(size || 1)) + 1))).toString();
}

export function signed(value, digits = 3) {
  return isNumber(value) && value > 0 ? `+${number(value, digits)}` : number(value, digits).replace("-", "−");
}

export function percent(value) {
  return isNumber(value) ? `${(100 * value).toFixed(1)} %` : "–";
}

export function count(value) {
  if (!isNumber(value)) return "–";
  for (const [size, suffix] of [[1e9, " G"], [1e6, " M"], [1e3, " k"]]) {
    if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(3))}${suffix}`;
  }
  return String(Math.round(value));
}

export function duration(seconds) {
  if (!isNumber(seconds)) return "–";
  const whole = Math.round(seconds);
  if (whole >= 3600) return `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} min`;
  if (whole >= 60) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  return seconds < 10 ? `${seconds.toFixed(1)} s` : `${whole} s`;
}

export function grouped(value) {
  return isNumber(value) ? value.toLocaleString("en-US").replaceAll(",", " ") : "–";
}

export function download(name, blob) {
  const address = URL.createObjectURL(blob);
  el("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

export function chip(text, kind = "") {
  return el("span", { class: `chip ${kind}` }, text);
}

export function successChip(isSuccess) {
  if (isSuccess === null || isSuccess === undefined) return chip("success unknown", "dull");
  return chip(isSuccess ? "success" : "no success", isSuccess ? "good" : "dull");
}
