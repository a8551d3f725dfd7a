// The page updates by itself: it asks for /state.json about once a second, less often while nobody answers, and not at
// all while it is paused or hidden. What is on the screen stays there when the broker is gone, and the page says so.

import { byId, say, duration, clock } from "./dom.js";
import { Diagram, details, legend } from "./diagram.js";
import * as overview from "./overview.js";
import * as sections from "./sections.js";

const EVERY_MS = 1000;
const PATIENCE_MS = 5000;
const BACKOFF_MAX_MS = 8000;
const STALE_MS = 15000;

const lists = [sections.ended(), sections.fencings(), sections.topics(), sections.groups(), sections.batches(), sections.producers(), sections.broker()];
const diagram = new Diagram(byId("diagram"), () => draw());
byId("legend").append(...legend());

let state = null;
let receivedAt = 0;
let failures = 0;
let goneSince = null;
let paused = false;
let timer = null;

// By the clock of whoever took the snapshot: this browser's may be off.
const now = () => state.now_ms + (goneSince || paused ? 0 : performance.now() - receivedAt);

function draw() {
  if (!state || state.now_ms === null) return;
  const time = now();
  overview.cluster(state, time);
  overview.alerts(state, time);
  overview.figures(state);
  diagram.show(state.transactions, state.ended, time);
  details(byId("chosen"), state.transactions.rows.find((each) => each.id === diagram.chosen), state.ended, time);
  for (const list of lists) list(state, time);
}

function tell() {
  const [mode, text] = mood();
  document.body.dataset.connection = mode;
  say(byId("connection"), text);
  const server = state?.cluster && !sections.isFromWithin(state) ? "dashboard" : "broker";
  if (mode === "gone") overview.banner(`The ${server} does not answer since ${clock(goneSince)}. What is shown is from before; this page goes on trying.`);
  else if (mode === "lost") overview.banner(`No news since ${clock(state.problem.since_ms)}: ${state.problem.text.replace(/[.]$/, "")}. What is shown is from before; it is tried again and again.`);
  else if (state?.cluster?.truncated) overview.banner("There is more than this page shows: the most interesting part of it is here.");
  else overview.banner(null);
}

function mood() {
  if (paused) return ["paused", "Paused"];
  if (goneSince) return ["gone", "No answer"];
  if (!state) return ["starting", "Connecting"];
  if (state.problem) return ["lost", "No news"];
  const old = performance.now() - receivedAt;
  return old > STALE_MS ? ["stale", `${duration(old)} old`] : ["live", "Live"];
}

async function ask() {
  clearTimeout(timer);
  try {
    const answer = await fetch("state.json", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const fresh = await answer.json();
    if (paused) return;
    if (fresh.now_ms !== state?.now_ms) receivedAt = performance.now();
    state = fresh;
    failures = 0;
    goneSince = null;
  } catch {
    failures += 1;
    goneSince ??= Date.now();
  }
  tell();
  draw();
  plan(Math.min(BACKOFF_MAX_MS, EVERY_MS * 2 ** Math.max(0, failures - 1)));
}

function plan(ms) {
  clearTimeout(timer);
  if (!paused && !document.hidden) timer = setTimeout(ask, ms);
}

byId("pause").addEventListener("click", () => {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", String(paused));
  say(byId("pause"), paused ? "Go on" : "Pause");
  tell();
  plan(0);
});
document.addEventListener("visibilitychange", () => plan(0));
for (const each of document.querySelectorAll("input[type=search]")) each.addEventListener("input", draw);
ask();
