// Transactions in their state diagram: every transactional id is a mark in the node of its state, and goes from node to
// node along the arrows. What happened between two looks is caught up with: an id whose transaction ended meanwhile
// goes the whole way round, even if it is back where it was.

import { el, svg, say, attribute, reconcile, count, duration } from "./dom.js";
import { WIDE, NARROW, MEANING, way } from "./states.js";

const STEP = 17;
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const SHAPES = {
  rest: "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0",
  young: "M-5.5 0a5.5 5.5 0 1 0 11 0a5.5 5.5 0 1 0 -11 0",
  middle: "M0 -7L7 0L0 7L-7 0Z",
  old: "M0 -7L7.5 6H-7.5Z",
};
const AGES = { rest: "no open transaction", young: "open", middle: "open for a quarter of its timeout", old: "open for three quarters of it" };

export function age(transaction, now) {
  if (!transaction.is_open || transaction.started_ms === null) return "rest";
  const part = (now - transaction.started_ms) / (transaction.timeout_ms ?? 60000);
  return part >= 0.75 ? "old" : part >= 0.25 ? "middle" : "young";
}

export function legend() {
  return Object.entries(AGES).map(([name, words]) =>
    el("li", {}, svg("svg", { viewBox: "-9 -9 18 18", width: 14, height: 14, "aria-hidden": "true" }, svg("path", { class: `mark ${name}`, d: SHAPES[name] })), words));
}

export class Diagram {
  constructor(place, choose) {
    this.place = place;
    this.choose = choose;
    this.states = new Map(); // by transactional id, as last shown
    this.ends = new Map(); // by transactional id: when its last transaction ended
    this.chosen = null;
    this.rows = [];
    new ResizeObserver(() => this.fit()).observe(place);
    this.fit();
  }

  fit() {
    const layout = this.place.clientWidth < 620 ? NARROW : WIDE;
    if (layout === this.layout) return;
    this.layout = layout;
    this.dots = svg("g", { role: "group", "aria-label": "Transactional ids; arrow keys go from one to the next" });
    this.dots.addEventListener("keydown", (event) => this.key(event));
    const [width, height] = layout.size;
    this.nodes = Object.fromEntries(Object.entries(layout.nodes).map(([name, box]) => [name, node(name, box)]));
    const arrow = (id) => svg("marker", { id, viewBox: "0 0 8 8", refX: 6, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse" }, svg("path", { d: "M0 0L8 4L0 8Z", class: id }));
    const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "The states of transactional ids" },
      svg("defs", {}, arrow("arrow-main"), arrow("arrow-side")), ...layout.paths.map(edge), ...Object.values(this.nodes).map((each) => each.whole), this.dots);
    this.place.replaceChildren(drawing);
    this.states.clear();
    if (this.last) this.show(...this.last);
  }

  show(transactions, ended, now) {
    this.last = [transactions, ended, now];
    const news = this.news(ended);
    this.rows = transactions.rows.filter((each) => each.state in this.nodes);
    const places = this.arrange(transactions.states);
    const shown = this.rows.filter((each) => places.has(each.id));
    reconcile(this.dots, shown, (each) => each.id, (each) => this.dot(each), (dot, each) => this.move(dot, each, places.get(each.id), news.get(each.id), now));
    for (const id of this.states.keys()) if (!places.has(id)) this.states.delete(id);
    const current = shown.some((each) => each.id === this.chosen) ? this.chosen : shown[0]?.id;
    for (const each of shown) attribute(this.dots.kept.get(each.id), "tabindex", each.id === current ? 0 : -1);
  }

  news(ended) {
    const found = new Map();
    for (const each of ended) { // the newest first
      if (found.has(each.transactional_id)) continue;
      const before = this.ends.get(each.transactional_id);
      if (this.started && before !== each.ended_ms) found.set(each.transactional_id, each);
    }
    for (const each of [...ended].reverse()) this.ends.set(each.transactional_id, each.ended_ms);
    if (this.ends.size > 2000) this.ends = new Map([...this.ends].slice(-1000));
    this.started = true;
    return found;
  }

  // Where each id is: one below the other with its name if there is room, else in rows, and the rest as a number.
  arrange(states) {
    const places = new Map();
    for (const [name, { box: [x, y, width, height], number, more, whole }] of Object.entries(this.nodes)) {
      const ids = this.rows.filter((each) => each.state === name).map((each) => each.id);
      const total = states[name] ?? 0;
      const lines = Math.max(1, Math.floor((height - 46) / STEP) + 1);
      const columns = Math.floor((width - 16) / STEP);
      const named = total <= lines;
      const room = named ? lines : total > lines * columns ? lines * columns - 3 : lines * columns;
      ids.slice(0, room).forEach((id, i) => {
        const [column, line] = named ? [0, i] : [i % columns, Math.floor(i / columns)];
        places.set(id, { x: x + 16 + column * STEP, y: y + 36 + line * STEP, letters: named ? Math.floor((width - 34) / 6.6) : 0 });
      });
      say(number, total ? count(total) : "");
      say(more, total > room ? `+${count(total - room)}` : "");
      attribute(whole, "class", `node ${name}${total ? " taken" : ""}`);
      attribute(whole, "aria-label", `${name}: ${total}; ${MEANING[name]}`);
    }
    return places;
  }

  dot(transaction) {
    const choose = () => this.pick(transaction.id);
    return svg("g", { class: "dot", role: "button", tabindex: -1, onclick: choose, "data-id": transaction.id }, svg("title"), svg("circle", { r: 11, class: "halo" }), svg("path"), svg("text", { x: 12, y: 4 }));
  }

  move(dot, transaction, place, ended, now) {
    const [title, , shape, label] = dot.children;
    const kind = age(transaction, now);
    attribute(shape, "d", SHAPES[kind]);
    attribute(shape, "class", `mark ${kind}`);
    const { id, state } = transaction;
    say(label, !place.letters ? "" : id.length > place.letters ? `${id.slice(0, place.letters - 1)}…` : id);
    const open = transaction.is_open && transaction.started_ms !== null ? `, open for ${duration(now - transaction.started_ms)}` : "";
    say(title, `${id}: ${state}${open}`);
    attribute(dot, "aria-label", `${id}: ${state}${open}`);
    attribute(dot, "aria-pressed", String(id === this.chosen));
    attribute(dot, "data-state", state);
    const target = `translate(${place.x}px, ${place.y}px)`;
    const before = this.states.get(id);
    if (before && !calm.matches && (before.state !== state || ended || before.target !== target)) this.animate(dot, before, state, ended, target);
    dot.style.transform = target;
    this.states.set(id, { state, target });
  }

  animate(dot, before, state, ended, target) {
    const stops = way(before.state, state, ended);
    const frames = [before.target, ...stops.slice(0, -1).map((name) => this.middle(name)), target];
    if (stops.length && ended && stops[stops.length - 1] !== state) frames.push(target);
    dot.getAnimations().forEach((each) => each.cancel());
    dot.animate(frames.map((transform) => ({ transform })), { duration: Math.min(950, 260 + 160 * frames.length), easing: "ease-in-out" });
  }

  middle(name) {
    const [x, y, width, height] = this.layout.nodes[name];
    return `translate(${x + width / 2}px, ${y + height / 2}px)`;
  }

  pick(id) {
    this.chosen = id;
    this.choose(id);
    if (this.last) this.show(...this.last);
  }

  key(event) {
    const dots = [...this.dots.children];
    const at = dots.indexOf(document.activeElement);
    const next = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: dots.length - 1 }[event.key];
    if (event.key === "Enter" || event.key === " ") this.pick(document.activeElement.dataset.id);
    else if (next !== undefined) dots[(next + dots.length) % dots.length]?.focus();
    else return;
    event.preventDefault();
  }
}

function node(name, box) {
  const [x, y, width, height] = box;
  const number = svg("text", { class: "number", x: x + width - 10, y: y + 19, "text-anchor": "end" });
  const more = svg("text", { class: "rest", x: x + width - 10, y: y + height - 9, "text-anchor": "end" });
  const whole = svg("g", { class: `node ${name}`, role: "img" }, svg("rect", { x, y, width, height, rx: 10 }), svg("text", { class: "name", x: x + 11, y: y + 19 }, name), number, more);
  return { whole, number, more, box };
}

function edge([kind, d, label, x, y, anchor]) {
  const name = kind.split(" ")[0];
  const line = svg("path", { d, "marker-end": kind.includes("plain") ? null : `url(#arrow-${name})` });
  return svg("g", { class: `edge ${name}`, "aria-hidden": "true" }, line, label ? svg("text", { x, y, "text-anchor": anchor }, label) : null);
}

// What is known of the chosen one.
export function details(place, transaction, ended, now) {
  if (!transaction) {
    // Not there any more, or nothing was chosen yet.
    if (place.dataset.shown !== "") place.replaceChildren(el("p", { class: "none" }, "No transactional id is chosen."));
    place.dataset.shown = "";
    return;
  }
  const left = transaction.timeout_ms !== null && transaction.started_ms !== null && transaction.is_open ? transaction.started_ms + transaction.timeout_ms - now : null;
  const facts = [
    ["State", `${transaction.state}, ${MEANING[transaction.state] ?? ""}`],
    ["Producer id", String(transaction.producer_id)],
    ["Epoch", String(transaction.epoch)],
    ["Open for", transaction.is_open && transaction.started_ms !== null ? duration(now - transaction.started_ms) : "no transaction is open"],
    ["Timeout", transaction.timeout_ms === null ? "not known" : duration(transaction.timeout_ms) + (left === null ? "" : left > 0 ? `, ${duration(left)} left` : ", over")],
    ["Last change", transaction.updated_ms === null ? "not known" : `${duration(Math.max(0, now - transaction.updated_ms))} ago`],
    ["Partitions", transaction.partitions.length ? transaction.partitions.map(([topic, number]) => `${topic}-${number}`).join(", ") + (transaction.partition_count > transaction.partitions.length ? ` and ${count(transaction.partition_count - transaction.partitions.length)} more` : "") : "none"],
  ];
  const past = ended.filter((each) => each.transactional_id === transaction.id).slice(0, 5);
  if (past.length) facts.push(["Before", past.map((each) => `${each.committed ? "✓ committed" : "✕ aborted"}, ${duration(each.ended_ms - each.started_ms)}`).join("\n")]);
  if (place.dataset.shown !== transaction.id) {
    place.replaceChildren(el("h3", { class: "name" }, transaction.id), el("dl", { class: "facts" }));
    place.dataset.shown = transaction.id;
  }
  reconcile(place.lastElementChild, facts, ([name]) => name, ([name]) => el("div", {}, el("dt", {}, name), el("dd", {})), (row, [, value]) => say(row.lastElementChild, value));
}
