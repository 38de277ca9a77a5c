// Curves: series come in, a chart with its findings marked goes out, with its numbers as CSV and its picture as PNG.

import { download, el, number } from "./dom.js";

export function smooth(values, weight) {
  if (!weight) return values;
  let [sum, mass] = [0, 0];
  return values.map((value) => {
    if (value === null || value === undefined) return null;
    sum = sum * weight + value * (1 - weight);
    mass = mass * weight + (1 - weight);
    return sum / mass;
  });
}

export function align(series) {
  const places = [...new Set(series.flatMap((one) => one.x))].filter((x) => x !== null && x !== undefined).sort((a, b) => a - b);
  const rank = new Map(places.map((x, place) => [x, place]));
  const columns = series.map((one) => {
    const column = new Array(places.length).fill(null);
    one.x.forEach((x, place) => {
      if (rank.has(x)) column[rank.get(x)] = one.y[place] ?? null;
    });
    return column;
  });
  return [places, ...columns];
}

export function band(columns) {
  const rows = columns[0].map((_, place) => columns.map((column) => column[place]).filter((value) => value !== null).sort((a, b) => a - b));
  const part = (share) => rows.map((row) => (row.length ? quantile(row, share) : null));
  return { low: part(0), middle: part(0.5), high: part(1) };
}

function quantile(sorted, share) {
  const place = (sorted.length - 1) * share;
  const [low, high] = [Math.floor(place), Math.ceil(place)];
  return sorted[low] + (sorted[high] - sorted[low]) * (place - low);
}

export function drawChart(place, { title, data, lines, bands = [], marks = [], isLog, isLogX, xLabel, height = 190 }) {
  const style = getComputedStyle(document.documentElement);
  const [ink, grid] = [style.getPropertyValue("--muted").trim(), style.getPropertyValue("--line").trim()];
  const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
  const readout = el("span", { class: "readout" });
  const options = {
    width: Math.max(240, place.clientWidth),
    height,
    legend: { show: false },
    padding: [10, 14, 0, 0],
    cursor: { points: { size: 7 }, drag: { x: true, y: false }, sync: { key: "curves" } },
    scales: { x: { time: false, distr: isLogX ? 3 : 1 }, y: { distr: isLog ? 3 : 1, range: isLog ? undefined : roomy } },
    axes: [{ ...axis, size: 28, label: undefined }, { ...axis, size: 52, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick, 3))) }],
    series: [{ label: xLabel }, ...lines.map((line) => ({ label: line.label, stroke: line.colour, width: line.width ?? 1.8, dash: line.dash, points: { show: data[0].length < 3 }, spanGaps: true }))],
    bands: bands.map((one) => ({ series: one.series, fill: one.fill })),
    hooks: { draw: [(chart) => drawMarks(chart, marks, style)], setCursor: [(chart) => showValues(chart, lines, readout)] },
  };
  const chart = new globalThis.uPlot(options, isLog ? onlyPositive(data) : data, place);
  return { chart, readout, title };
}

function roomy(_, low, high) {
  if (low === null) return [0, 1];
  const margin = (high - low || Math.abs(high) || 1) * 0.06;
  return [low - margin, high + margin];
}

function onlyPositive(data) {
  return [data[0], ...data.slice(1).map((column) => column.map((value) => (value > 0 ? value : null)))];
}

function drawMarks(chart, marks, style) {
  const pen = chart.ctx;
  const { left, top, width, height } = chart.bbox;
  pen.save();
  for (const mark of marks) {
    const x = chart.valToPos(mark.x, "x", true);
    if (!(x >= left && x <= left + width)) continue;
    pen.strokeStyle = pen.fillStyle = style.getPropertyValue(mark.isCollapse ? "--bad" : "--warn").trim();
    pen.lineWidth = devicePixelRatio;
    pen.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    pen.beginPath();
    pen.moveTo(x, top);
    pen.lineTo(x, top + height);
    pen.stroke();
    pen.beginPath();
    pen.arc(x, top + 5 * devicePixelRatio, 4 * devicePixelRatio, 0, 7);
    pen.fill();
  }
  pen.restore();
}

function showValues(chart, lines, readout) {
  const place = chart.cursor.idx;
  const shown = lines.map((line, index) => ({ line, value: chart.data[index + 1]?.[place] })).filter(({ line, value }) => !line.isQuiet && value !== null && value !== undefined);
  readout.textContent = place === null || place === undefined ? "" : `${number(chart.data[0][place], 4)}: ${shown.map(({ value }) => number(value, 4)).join("  ")}`;
}

export function saveCsv(name, xLabel, lines, data) {
  const quote = (word) => `"${String(word).replaceAll('"', '""')}"`;
  const rows = [[xLabel, ...lines.map((line) => line.label)].map(quote).join(",")];
  data[0].forEach((x, place) => rows.push([x, ...data.slice(1).map((column) => column[place] ?? "")].join(",")));
  download(`${name}.csv`, new Blob([`${rows.join("\n")}\n`], { type: "text/csv" }));
}

export function savePng(name, chart) {
  const drawn = chart.ctx.canvas;
  const copy = el("canvas", { width: drawn.width, height: drawn.height });
  const pen = copy.getContext("2d");
  pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--panel").trim();
  pen.fillRect(0, 0, copy.width, copy.height);
  pen.drawImage(drawn, 0, 0);
  copy.toBlob((blob) => download(`${name}.png`, blob));
}
