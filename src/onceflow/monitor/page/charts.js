// Small drawings: a line over time, the extent of a partition, micro-batches in lanes.

import { svg, el, say, reconcile, clock, duration, count, plural } from "./dom.js";

// A line over the last quarter of an hour, or what there is of it; where nothing is known there is none.
export function sparkline(values) {
  const [width, height] = [132, 34];
  const length = Math.max(values.length, 24);
  const top = Math.max(...values.filter((each) => each !== null), 0);
  const x = (i) => ((i + length - values.length) / (length - 1)) * width;
  const y = (value) => height - 2 - (top ? (value / top) * (height - 5) : 0);
  const runs = [];
  values.forEach((value, i) => {
    if (value === null) runs.push([]);
    else (runs[runs.length - 1] ?? runs[runs.push([]) - 1]).push([x(i), y(value)]);
  });
  const text = (points) => points.map(([a, b]) => `${a.toFixed(1)} ${b.toFixed(1)}`).join("L");
  const known = runs.filter((each) => each.length);
  const line = known.map((points) => `M${text(points)}${points.length === 1 ? "h1" : ""}`).join("");
  const area = known.map((points) => `M${points[0][0].toFixed(1)} ${height}L${text(points)}V${height}Z`).join("");
  return svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("path", { class: "area", d: area }), svg("path", { class: "line", d: line }));
}

// From the first offset over the last stable one to the end. What is undecided is never too thin to be seen.
export function extent(start, stable, end) {
  const whole = Math.max(1, end - start);
  const open = end > stable ? Math.max(5, ((end - stable) / whole) * 100) : 0;
  const words = end === start ? "empty" : end > stable ? `${count(end - stable)} of ${count(whole)} offsets undecided` : "everything decided";
  return svg("svg", { class: "extent", viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img", "aria-label": words },
    svg("rect", { class: "track", width: 100, height: 10 }),
    end === start ? null : svg("rect", { class: "decided", width: 100 - open, height: 10 }),
    open ? svg("rect", { class: "open", x: 100 - open, width: open, height: 10 }) : null,
    open ? svg("rect", { class: "edge", x: 100 - open - 0.4, width: 0.8, height: 10 }) : null);
}

const SPAN_MS = 2 * 60 * 1000;
const LANE = 34;
const ended = (batch) => batch.committed_ms ?? batch.recorded_ms;

// A lane per app; a bar from the start of a micro-batch to its commit, its end in another colour, and thinner: what the transaction took.
export function lanes(place, batches, now) {
  const newest = Math.max(...batches.map(ended));
  const end = now - newest > SPAN_MS ? newest : Math.max(now, newest);
  const shown = batches.filter((each) => ended(each) >= end - SPAN_MS);
  const first = Math.min(...shown.map((each) => each.started_ms ?? ended(each)));
  const begin = Math.max(first, end - SPAN_MS);
  const width = Math.max(280, place.clientWidth - 2);
  const x = (ms) => Math.max(0, ((ms - begin) / Math.max(1, end - begin)) * width);
  const apps = new Map();
  for (const each of shown) apps.set(each.app_id, [...(apps.get(each.app_id) ?? []), each]);
  reconcile(place, [...apps].sort(([a], [b]) => (a < b ? -1 : 1)), ([app]) => app,
    ([app]) => el("div", { class: "lane" }, el("h3", { class: "name" }, app), el("p", { class: "hint" }), svg("svg", { height: LANE, class: "batches", role: "img" })),
    (lane, [, found]) => {
      const latest = found[found.length - 1];
      say(lane.children[1], summary(latest, found));
      const drawing = lane.children[2];
      drawing.setAttribute("viewBox", `0 0 ${width} ${LANE}`);
      drawing.setAttribute("aria-label", `${plural(found.length, "micro-batch")} since ${clock(begin)}`);
      reconcile(drawing, found, (each) => `${each.batch_id}/${each.recorded_ms}`, () => svg("g", {}, svg("title"), svg("rect", { y: 4, height: 20, rx: 2 }), svg("rect", { y: 9, height: 10, rx: 2 }), svg("path")),
        (bar, each) => draw(bar, each, x, width));
    });
  return [begin, end];
}

function summary(latest, found) {
  const took = latest.started_ms === null ? null : ended(latest) - latest.started_ms;
  const words = [`batch ${count(latest.batch_id)}`];
  if (took !== null) words.push(`took ${duration(took)}`);
  if (latest.transaction_ms !== null) words.push(`${duration(latest.transaction_ms)} of it for the transaction`);
  if (latest.rows !== null) words.push(plural(latest.rows, "row"));
  return `${words.join(" · ")} · ${plural(found.length, "micro-batch")} shown`;
}

function draw(bar, each, x, width) {
  const [title, body, transaction, tick] = bar.children;
  const right = Math.min(width, x(ended(each)));
  const left = each.started_ms === null ? right : x(each.started_ms);
  const own = each.transaction_ms === null ? 0 : Math.min(right - left, right - x(ended(each) - each.transaction_ms));
  const set = (node, values) => Object.entries(values).forEach(([name, value]) => node.setAttribute(name, value));
  set(body, { class: "work", x: left.toFixed(1), width: Math.max(0, right - left - own).toFixed(1) });
  set(transaction, { class: "transaction", x: (right - own).toFixed(1), width: Math.max(0, own).toFixed(1) });
  set(tick, { class: "committed", d: `M${right.toFixed(1)} 2V26` });
  const took = each.started_ms === null ? "" : `, took ${duration(ended(each) - each.started_ms)}`;
  const part = each.transaction_ms === null ? "" : `, ${duration(each.transaction_ms)} of it for the transaction`;
  say(title, `batch ${each.batch_id}, committed at ${clock(ended(each))}${took}${part}`);
}
