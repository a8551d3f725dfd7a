// The lists: what ended, who was fenced, partitions, groups, producers, and the broker itself.

import { el, byId, say, attribute, reconcile, table, count, short, bytes, duration, ago, clock, plural, UNKNOWN } from "./dom.js";
import { sparkline, extent, lanes } from "./charts.js";

const isInternal = (topic) => topic.startsWith("__") || topic.startsWith("_onceflow");
export const isFromWithin = (state) => state.cluster.started_ms !== null;
const REASONS = { client: "by its producer", timeout: "by timeout", fenced: "by a new instance" };
const matches = (filter, ...names) => !filter || names.some((each) => String(each).toLowerCase().includes(filter));
const columns = (list, more = {}) => Object.assign(list, more);
const wanted = (id) => byId(id).value.trim().toLowerCase();

function outcome(committed) {
  return el("span", { class: committed ? "good" : "bad" }, committed ? "✓ committed" : "✕ aborted");
}

export function ended() {
  let now = 0;
  const draw = table(byId("ended"), "Transactions that ended", columns([
    { title: "transactional id", name: true, value: (each) => each.transactional_id },
    { title: "outcome", value: (each) => outcome(each.committed) },
    { title: "why", value: (each) => REASONS[each.reason] ?? each.reason },
    { title: "lasted", numeric: true, value: (each) => duration(each.ended_ms - each.started_ms) },
    { title: "ago", numeric: true, value: (each) => ago(now, each.ended_ms) },
  ], { limit: 8 }));
  return (state, time) => {
    now = time;
    const key = (each) => `${each.transactional_id}/${each.ended_ms}/${each.epoch}`;
    draw({ items: state.ended, key, empty: isFromWithin(state) ? "No transaction has ended yet." : "None was seen to end since this page began to look." });
  };
}

export function fencings() {
  let now = 0;
  const place = (each) => (each.place ? `${each.place[0]}-${each.place[1]}` : "coordinator");
  const draw = table(byId("fencings"), "Fencing events", columns([
    { title: "producer", name: true, value: (each) => each.transactional_id ?? `producer ${each.producer_id}` },
    { title: "epoch", numeric: true, value: (each) => `${each.epoch} < ${each.current_epoch}` },
    { title: "where", name: true, value: place },
    { title: "ago", numeric: true, value: (each) => ago(now, each.at_ms) },
  ], { limit: 8 }));
  return (state, time) => {
    now = time;
    const key = (each) => `${each.at_ms}/${each.producer_id}/${each.epoch}/${place(each)}`;
    draw({ items: state.fencings, key, empty: isFromWithin(state) ? "Nobody was fenced." : "Not known here: a broker does not tell whom it refuses." });
  };
}

export function topics() {
  const draw = table(byId("topic-table"), "Partitions", columns([
    { title: "partition", name: true, value: (each) => each.name },
    { title: "decided", value: (each) => extent(each.start, each.stable, each.end) },
    { title: "start", numeric: true, value: (each) => count(each.start) },
    { title: "last stable", numeric: true, value: (each) => count(each.stable) },
    { title: "end", numeric: true, value: (each) => count(each.end) },
    { title: "LSO lag", numeric: true, value: (each) => count(each.end - each.stable) },
    { title: "in sync", numeric: true, value: (each) => `${each.synced}/${each.replicas}` },
    { title: "size", numeric: true, value: (each) => bytes(each.size) },
  ], { limit: 12, rowClass: (each) => (each.end > each.stable ? "waiting" : each.synced < each.replicas ? "short" : null) }));
  return (state) => {
    const filter = wanted("topic-filter");
    const items = [];
    for (const [topic, rows] of state.topics) {
      if (!matches(filter, topic)) continue;
      for (const [partition, start, stable, end, size, , replicas, synced] of rows) {
        items.push({ topic, name: `${topic}-${partition}`, partition, start, stable, end, size, replicas, synced });
      }
    }
    // What is undecided or badly replicated first, then people's topics, then the cluster's own.
    const rank = (each) => (each.end > each.stable ? 0 : each.synced < each.replicas ? 1 : isInternal(each.topic) ? 3 : 2);
    items.sort((a, b) => rank(a) - rank(b) || (rank(a) === 0 ? b.end - b.stable - (a.end - a.stable) : 0) || (a.topic < b.topic ? -1 : a.topic > b.topic ? 1 : a.partition - b.partition));
    draw({ items, key: (each) => each.name, empty: filter ? "No topic has that in its name." : "There are no topics yet." });
  };
}

export function groups() {
  const place = byId("group-list");
  const list = el("div", { class: "groups" });
  const none = el("p", { class: "none", hidden: true });
  const more = el("button", { type: "button", class: "more", hidden: true });
  place.append(list, none, more);
  let limit = 10;
  let last = null;
  more.addEventListener("click", () => { limit += 50; show(last); });

  function create() {
    const inner = el("div", { class: "inner" });
    const draw = table(inner, "Partitions of the group", columns([
      { title: "partition", name: true, value: ([topic, number]) => `${topic}-${number}` },
      { title: "committed", numeric: true, value: ([, , committed]) => count(committed) },
      { title: "lag", numeric: true, value: ([, , , lag]) => count(lag) },
    ], { limit: 20 }));
    const spans = ["name", "state", "members", "chart", "lag"].map((each) => el("span", { class: each }));
    const node = el("details", {}, el("summary", {}, ...spans), inner);
    node.draw = draw;
    node.addEventListener("toggle", () => node.open && fill(node));
    return node;
  }

  function fill(node) {
    const { group } = node;
    node.draw({ items: group.partitions, total: group.partition_count, key: ([topic, number]) => `${topic}-${number}`, empty: "It has committed no offsets." });
  }

  function update(node, group, history) {
    node.group = group;
    const [name, state, members, chart, lag] = node.firstElementChild.children;
    say(name, group.id);
    say(state, group.state);
    say(members, `${plural(group.members, "member")} · ${group.protocol}`);
    say(lag, `lag ${count(group.lag)}`);
    attribute(lag, "class", group.lag ? "lag behind" : "lag");
    const values = history.groups[group.id];
    chart.replaceChildren(...(values ? [sparkline(values)] : []));
    if (node.open) fill(node);
  }

  function show(state) {
    last = state;
    const filter = wanted("group-filter");
    const found = state.groups.rows.filter((each) => matches(filter, each.id, ...each.partitions.map(([topic]) => topic)));
    const shown = found.slice(0, limit);
    reconcile(list, shown, (each) => each.id, create, (node, each) => update(node, each, state.history));
    none.hidden = !!shown.length;
    say(none, filter ? "No group has that in its name or topics." : "There are no consumer groups.");
    const left = (filter ? found.length : state.groups.count) - shown.length;
    more.hidden = left <= 0;
    more.disabled = shown.length === found.length;
    say(more, `and ${count(left)} more`);
  }
  return show;
}

export function batches() {
  const place = byId("batch-lanes");
  const none = el("p", { class: "none" }, "No micro-batch was committed here: there is no topic _onceflow_progress, or nothing in it.");
  const list = el("div");
  const axis = el("p", { class: "axis" }, el("span"), el("span", { class: "key" }, el("i", { class: "work" }), "work", el("i", { class: "transaction" }), "transaction", el("i", { class: "committed" }), "committed"), el("span"));
  place.append(none, list, axis);
  return (state, now) => {
    const found = state.micro_batches;
    none.hidden = !!found.length;
    axis.hidden = !found.length;
    list.hidden = !found.length;
    if (!found.length) return;
    const [begin, end] = lanes(list, found, now);
    say(axis.firstElementChild, clock(begin));
    say(axis.lastElementChild, clock(end));
  };
}

export function producers() {
  let now = 0;
  const draw = table(byId("producer-table"), "Producers", columns([
    { title: "producer id", numeric: true, value: (each) => String(each[2]) },
    { title: "partition", name: true, value: (each) => `${each[0]}-${each[1]}` },
    { title: "epoch", numeric: true, value: (each) => String(each[3]) },
    { title: "last sequence", numeric: true, value: (each) => (each[4] < 0 ? "none" : count(each[4])) },
    { title: "open transaction", value: (each) => (each[6] === null ? "none" : `since offset ${count(each[6])}`) },
    { title: "idle", numeric: true, value: (each) => ago(now, each[5]) },
  ], { limit: 12, rowClass: (each) => (each[6] === null ? null : "waiting") }));
  return (state, time) => {
    now = time;
    const filter = wanted("producer-filter");
    const items = state.producers.rows.filter((each) => matches(filter, each[0], each[2]));
    const total = filter ? items.length : state.producers.count;
    draw({ items, total, key: (each) => `${each[0]}/${each[1]}/${each[2]}`, empty: filter ? "No producer fits." : "No producer with an id has written yet." });
  };
}

const SIGNS = { active: "✓", loading: "…", unavailable: "✕" };

function coordinators(state) {
  const place = byId("coordinators");
  const unknown = { kind: "not known", state: null, load_ms: null, partitions: 0, note: "" };
  reconcile(place, state.coordinators.length ? state.coordinators : [unknown], (each) => each.kind, () => el("p", { class: "coordinator" }, el("b"), el("span"), el("small")), (node, each) => {
    const [kind, sign, rest] = node.children;
    say(kind, each.kind);
    say(sign, each.state === null ? UNKNOWN : `${SIGNS[each.state] ?? "?"} ${each.state}`);
    attribute(sign, "class", each.state === "active" ? "good" : each.state === null ? null : "bad");
    const words = [each.load_ms === null ? null : `loaded in ${duration(each.load_ms)}`, each.partitions ? plural(each.partitions, "partition") : null, each.note || null];
    say(rest, words.filter(Boolean).join(" · "));
  });
}

function consumers(state) {
  const levels = Object.entries(state.consumers);
  const most = Math.max(1, ...levels.map(([, number]) => number));
  const place = byId("consumers");
  reconcile(place, levels.length ? levels : [["not known", 0]], ([name]) => name, () => el("p", { class: "level" }, el("span"), el("meter", { min: 0 }), el("b")), (node, [name, number]) => {
    const [label, meter, figure] = node.children;
    say(label, name);
    meter.max = most;
    meter.value = number;
    attribute(meter, "aria-label", `${number} consumers with ${name}`);
    say(figure, levels.length ? count(number) : UNKNOWN);
  });
}

const sum = (values) => (values === null ? null : Object.values(values).reduce((a, b) => a + b, 0));

function totals(state) {
  const t = state.totals;
  const rows = [
    ["committed", t.commits], ["aborted", t.aborts], ["of them by timeout", t.timeouts], ["fencing events", t.fencings],
    ["repeated batches, not stored again", t.duplicates], ["batches out of order", t.out_of_order],
    ["produce errors", sum(t.errors)], ["failed logins", sum(t.failed_authentications)], ["denied by ACLs", sum(t.denied)],
    ["connections open", state.cluster.connections_open], ["connections refused", sum(t.connections_refused)],
  ];
  const place = byId("totals");
  const list = place.firstElementChild ?? place.appendChild(el("dl", { class: "facts figures" }));
  reconcile(list, rows, ([name]) => name, ([name]) => el("div", {}, el("dt", {}, name), el("dd")), (row, [, value]) => say(row.lastElementChild, count(value)));
}

function notes(sentences) {
  byId("notes").hidden = !sentences.length;
  reconcile(byId("notes").lastElementChild, sentences, (each) => each, () => el("li", { class: "hint" }), say);
}

export function broker() {
  const draw = table(byId("requests"), "Requests in the last minute", columns([
    { title: "request", name: true, value: (each) => each.name },
    { title: "per second", numeric: true, value: (each) => short(each.per_s) },
    { title: "mean", numeric: true, value: (each) => duration(each.mean_ms) },
    { title: "p50", numeric: true, value: (each) => duration(each.p50_ms) },
    { title: "p99", numeric: true, value: (each) => duration(each.p99_ms) },
  ], { limit: 30 }));
  return (state) => {
    coordinators(state);
    consumers(state);
    totals(state);
    notes(state.cluster.notes);
    draw({ items: state.requests, key: (each) => each.name, empty: "Nothing was timed in the last minute, or it is not known here." });
  };
}
