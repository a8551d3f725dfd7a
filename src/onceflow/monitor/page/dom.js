// Elements, text and numbers. Names that come from a cluster are untrusted: they become text nodes and attributes of
// our choosing, never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((each) => each !== null && each !== undefined));
  return node;
}

export const el = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
export const svg = (name, attributes = {}, ...children) => fill(document.createElementNS(SVG, name), attributes, children);
export const byId = (id) => document.getElementById(id);

export function say(node, text) {
  const wanted = String(text);
  if (node.textContent !== wanted) node.textContent = wanted;
}

export function attribute(node, name, value) {
  if (value === null || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

// The children of `parent` become `items`, in order. What is there already stays the same element: focus, selection and
// what somebody opened survive an update.
export function reconcile(parent, items, key, create, update) {
  const before = parent.kept ?? new Map();
  const after = new Map();
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    if (after.has(name)) continue;
    const node = before.get(name) ?? create(item);
    update(node, item);
    after.set(name, node);
    if (node === place) place = place.nextElementSibling;
    else parent.insertBefore(node, place);
  }
  for (const [name, node] of before) if (!after.has(name)) node.remove();
  parent.kept = after;
}

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
export const UNKNOWN = "–";
const NARROW = matchMedia("(max-width: 40rem)");

export function count(value) {
  return value === null || value === undefined ? UNKNOWN : WHOLE.format(value);
}

export function short(value) {
  if (value === null || value === undefined) return UNKNOWN;
  if (value >= 1e9) return `${(value / 1e9).toPrecision(3)} G`;
  if (value >= 1e6) return `${(value / 1e6).toPrecision(3)} M`;
  if (value >= 1e4) return `${(value / 1e3).toPrecision(3)} k`;
  if (value >= 100 || Number.isInteger(value)) return WHOLE.format(value);
  return value >= 10 ? value.toFixed(1) : String(Number(value.toFixed(2)));
}

export function bytes(value) {
  if (value === null || value === undefined) return UNKNOWN;
  for (const [size, unit] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (value >= size) return `${(value / size).toPrecision(3)} ${unit}`;
  }
  return `${value} B`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return UNKNOWN;
  if (ms < 1) return `${ms.toFixed(2)} ms`;
  if (ms < 1000) return `${ms < 10 ? Number(ms.toFixed(1)) : Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const whole = Math.floor(seconds);
  for (const [unit, size, smaller, rest] of [["d", 86400, "h", 3600], ["h", 3600, "min", 60], ["min", 60, "s", 1]]) {
    if (whole >= size) {
      const left = Math.floor((whole % size) / rest);
      return left ? `${Math.floor(whole / size)} ${unit} ${left} ${smaller}` : `${Math.floor(whole / size)} ${unit}`;
    }
  }
  return `${whole} s`;
}

export const ago = (now, ms) => (ms === null || ms === undefined ? UNKNOWN : now - ms < 1000 ? "just now" : duration(now - ms));
export const clock = (ms) => new Date(ms).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : noun.endsWith("ch") ? "es" : "s"}`;

// A table that is filled again and again. Columns: {title, value(item), numeric?, name?}; a value is text or a node.
export function table(place, label, columns) {
  const body = el("tbody");
  const heads = columns.map((each) => el("th", { scope: "col", class: each.numeric && "number" }, each.title));
  const whole = el("table", { "aria-label": label }, el("thead", {}, el("tr", {}, ...heads)), body);
  const none = el("p", { class: "none", hidden: true });
  const more = el("button", { type: "button", class: "more", hidden: true });
  place.append(whole, none, more);
  let limit = Math.min(columns.limit ?? 12, NARROW.matches ? 6 : Infinity); // a phone has to scroll past it
  const step = limit;
  let last = null;
  more.addEventListener("click", () => { limit += step * 5; draw(last); });

  function cell(column) {
    return el("td", { "data-label": column.title, class: column.numeric ? "number" : column.name ? "name" : null });
  }

  function update(row, item) {
    columns.forEach((column, i) => {
      const value = column.value(item);
      const node = row.children[i];
      if (value instanceof Node) node.replaceChildren(value);
      else say(node, value);
    });
    attribute(row, "class", columns.rowClass?.(item) ?? null);
  }

  function draw(given) {
    last = given;
    const { items, total = items.length, empty, key } = given;
    const shown = items.slice(0, limit);
    reconcile(body, shown, key, () => el("tr", {}, ...columns.map(cell)), update);
    whole.hidden = !shown.length;
    none.hidden = !!shown.length;
    say(none, empty);
    const left = total - shown.length;
    more.hidden = left <= 0;
    more.disabled = shown.length === items.length;
    say(more, `and ${count(left)} more`);
  }
  return draw;
}
