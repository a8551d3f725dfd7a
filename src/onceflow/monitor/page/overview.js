// The top of the page: who this is, what is wrong, and the key figures.

import { el, byId, say, attribute, reconcile, count, short, bytes, duration, UNKNOWN } from "./dom.js";
import { sparkline } from "./charts.js";

export function cluster(state, now) {
  const { id, software, brokers, started_ms: started } = state.cluster;
  const words = [software, id, brokers.slice(0, 3).join(", ") + (brokers.length > 3 ? ` and ${brokers.length - 3} more` : "")];
  if (started !== null) words.push(`up ${duration(now - started)}`);
  say(byId("cluster"), words.filter(Boolean).join(" · "));
}

export function alerts(state, now) {
  const firing = state.alerts.filter((each) => each.firing);
  const number = byId("alert-count");
  number.hidden = !firing.length;
  say(number, firing.length);
  document.title = `${firing.length ? `(${firing.length}) ` : ""}Onceflow · ${state.cluster.id}`;
  byId("calm").hidden = !!state.alerts.length;
  say(byId("calm"), state.unknown.length ? "✓ Nothing is wrong with what can be seen from here." : "✓ Nothing is wrong.");
  byId("unwatched").hidden = !state.unknown.length;
  say(byId("unwatched"), `Not known here, and not watched: ${state.unknown.join(", ")}.`);
  reconcile(byId("alert-list"), state.alerts, (each) => `${each.rule}/${each.subject}`, create, (node, each) => {
    const [head, summary, list] = node.children;
    attribute(node, "class", `alert ${each.severity} ${each.firing ? "firing" : "pending"}`);
    attribute(node, "data-rule", each.rule);
    say(head.children[0], each.firing ? (each.severity === "critical" ? "✕ critical" : "! warning") : "… pending");
    say(head.children[1], each.rule);
    say(head.children[2], each.subject);
    say(head.children[3], `for ${duration(Math.max(0, now - each.since_ms))}`);
    say(summary, each.summary);
    say(list.children[1], each.meaning);
    say(list.children[3], each.action);
  });
}

function create() {
  return el("li", {}, el("h3", {}, el("span", { class: "severity" }), el("span"), el("span", { class: "name" }), el("small")), el("p"),
    el("dl", {}, el("dt", {}, "What it means"), el("dd"), el("dt", {}, "What to do"), el("dd")));
}

const perSecond = (value) => (value === null ? [UNKNOWN, ""] : [short(value), "/s"]);
const plain = (value) => [short(value), ""];
const time = (value) => {
  if (value === null) return [UNKNOWN, ""];
  const [number, ...unit] = duration(value).split(" ");
  return [number, unit.join(" ")];
};

const traffic = (value) => (value === null ? [UNKNOWN, ""] : [bytes(Math.round(value)).split(" ")[0], `${bytes(Math.round(value)).split(" ")[1]}/s`]);

const FIGURES = [
  { key: "commits", title: "Commits", show: perSecond },
  { key: "aborts", title: "Aborts", show: perSecond, kind: "bad" },
  { key: "records_in", title: "Records in", show: perSecond },
  { key: "records_out", title: "Records out", show: perSecond },
  { key: "open", title: "Open transactions", show: plain },
  { key: "oldest_ms", title: "Oldest open", show: (value) => (value === 0 ? ["none", ""] : time(value)), words: duration },
  { key: "offset_commit_p99_ms", title: "Offset commits p99", show: time, words: duration },
  { key: "fencings", title: "Fencing events", show: (_, state) => [count(state.totals.fencings), "in all"], kind: "bad" },
  { key: "produce_p99_ms", title: "Produce p99", show: time, words: duration },
  { key: "lso_lag", title: "LSO lag", show: plain },
  { key: "lag", title: "Lag of groups", show: plain },
  { key: "bytes_in", title: "Bytes in", show: traffic, words: bytes },
];

const latest = (values) => {
  // A latency is of the last interval in which there was one; half a minute ago is still news.
  for (const value of values.slice(-6).reverse()) if (value !== null) return value;
  return null;
};

export function figures(state) {
  reconcile(byId("tiles"), FIGURES, (each) => each.key,
    (each) => el("li", { class: `tile ${each.kind ?? ""}`, "data-figure": each.key }, el("h3", {}, each.title), el("p", {}, el("b"), el("small")), el("div"), el("em")),
    (node, each) => {
      const values = state.history[each.key];
      const [number, unit] = each.show(latest(values), state);
      const [, figure, chart, peak] = node.children;
      attribute(figure.children[0], "class", each.kind && Number.parseFloat(number) > 0 ? each.kind : null);
      say(figure.children[0], number);
      say(figure.children[1], unit);
      chart.replaceChildren(sparkline(values));
      const known = values.filter((value) => value !== null);
      const top = known.length ? Math.max(...known) : null;
      say(peak, top === null ? "not known" : `peak ${(each.words ?? short)(top)}`);
    });
}

export function banner(text) {
  const place = byId("banner");
  place.hidden = !text;
  say(place, text ?? "");
}

