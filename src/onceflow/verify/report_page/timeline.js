"use strict";
// Draws the timeline from the JSON in #data (made by timeline.py, which says what is in it). Text only ever goes into the
// page as text. Times are ticks of a tenth of a millisecond.
(() => {
  const TICKS = 10000;
  const OK = 0, FAILED = 1, UNKNOWN = 2;
  const ROW = 30, PAD = 8, HEAD = 46;
  const data = JSON.parse(document.getElementById("data").textContent);
  const ops = data.operations;
  const count = ops.began.length;
  const whole = { from: 0, to: Math.max(data.end, 1) };
  const margin = whole.to * 0.01;
  const view = { from: -margin, to: whole.to + margin };
  const canvas = document.getElementById("lanes");
  const overview = document.getElementById("overview");
  const tip = document.getElementById("tip");
  const chosen = document.getElementById("chosen");
  let colours = {}, gutter = 120, width = 0, height = 0, marked = new Set(), picked = -1;

  // Rows: every lane has as many as lives of it overlapped.
  const rowOf = [], rowY = [], laneY = [];
  let bottom = HEAD;
  data.lanes.forEach((lane, at) => {
    laneY[at] = { top: bottom, bottom: bottom + lane.rows * ROW + PAD };
    rowOf[at] = rowY.length;
    for (let row = 0; row < lane.rows; row++) rowY.push(bottom + PAD / 2 + row * ROW);
    bottom += lane.rows * ROW + PAD;
  });
  const lifeRow = data.lives.map((life) => rowOf[life.lane] + life.row);
  const inRow = rowY.map(() => []);
  const longest = rowY.map(() => 0);
  for (let i = 0; i < count; i++) {
    const row = lifeRow[ops.life[i]];
    inRow[row].push(i);
    longest[row] = Math.max(longest[row], endOf(i) - ops.began[i]);
  }

  function endOf(i) {
    return ops.took[i] < 0 ? Math.max(ops.began[i], data.lives[ops.life[i]].to) : ops.began[i] + ops.took[i];
  }
  function nameOf(i) {
    return data.lives[ops.life[i]].name + ":" + ops.number[i];
  }
  function seconds(ticks) {
    const s = ticks / TICKS;
    if (Math.abs(s) >= 100) return s.toFixed(1) + " s";
    return Math.abs(s) >= 1 ? s.toFixed(3) + " s" : (s * 1000).toFixed(1) + " ms";
  }
  function x(time) {
    return gutter + ((time - view.from) / (view.to - view.from)) * (width - gutter);
  }
  function timeAt(px) {
    return view.from + ((px - gutter) / (width - gutter)) * (view.to - view.from);
  }
  /** The first of `list` that began at or after `time`. */
  function firstFrom(list, time) {
    let low = 0, high = list.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (ops.began[list[middle]] < time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // Drawing

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    colours = {};
    for (const name of ["card", "line", "text", "soft", "ok", "failed", "unknown", "unknown-fill", "committed", "aborted", "fault", "fault-back", "life", "lane", "progress", "focus"])
      colours[name] = style.getPropertyValue("--" + name).trim();
  }
  function fit(target, high) {
    const scale = Math.min(window.devicePixelRatio || 1, 2);
    const wide = target.clientWidth;
    target.style.height = high + "px";
    target.width = Math.round(wide * scale);
    target.height = Math.round(high * scale);
    const pen = target.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    pen.textBaseline = "middle";
    return pen;
  }
  let asked = false;
  function draw() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      drawLanes();
      drawOverview();
    });
  }

  function drawLanes() {
    width = canvas.clientWidth;
    gutter = width < 560 ? 84 : 132;
    height = bottom + 4;
    const pen = fit(canvas, height);
    pen.clearRect(0, 0, width, height);
    data.lanes.forEach((lane, at) => {
      if (at % 2 === 0) {
        pen.fillStyle = colours.lane;
        pen.fillRect(0, laneY[at].top, width, laneY[at].bottom - laneY[at].top);
      }
    });
    pen.save();
    pen.beginPath();
    pen.rect(gutter, 0, width - gutter, height);
    pen.clip();
    drawAxis(pen);
    drawFaultBands(pen);
    drawLives(pen);
    drawProgress(pen);
    drawTransactions(pen);
    rowY.forEach((y, row) => drawOperations(pen, y, row));
    drawKills(pen);
    drawFaultLabels(pen);
    drawMarked(pen);
    pen.restore();
    drawNames(pen);
  }

  function drawAxis(pen) {
    const span = (view.to - view.from) / TICKS;
    const rough = span / Math.max(2, (width - gutter) / 90);
    const power = Math.pow(10, Math.floor(Math.log10(rough)));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
    const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    pen.strokeStyle = colours.line;
    pen.fillStyle = colours.soft;
    pen.textAlign = "center";
    for (let n = Math.ceil(view.from / TICKS / step); n * step <= view.to / TICKS; n++) {
      const px = Math.round(x(n * step * TICKS)) + 0.5;
      line(pen, px, 18, px, height);
      if (n >= 0) pen.fillText((n * step).toFixed(decimals) + " s", Math.max(px, gutter + 14), 10);
    }
    pen.textAlign = "left";
  }
  function line(pen, x1, y1, x2, y2) {
    pen.beginPath();
    pen.moveTo(x1, y1);
    pen.lineTo(x2, y2);
    pen.stroke();
  }
  function drawFaultBands(pen) {
    const visible = data.faults.filter((each) => x(each.to) + 2 >= gutter && x(each.from) <= width);
    const bands = new Path2D(), edges = new Path2D(), hairs = new Path2D();
    for (const fault of visible) {
      const left = x(fault.from), right = Math.max(x(fault.to), left + 2);
      const isAll = fault.lanes.length === data.lanes.length;
      for (const lane of isAll ? [-1] : fault.lanes) {
        const top = isAll ? HEAD : laneY[lane].top, high = isAll ? bottom - HEAD : laneY[lane].bottom - top;
        bands.rect(left, top, right - left, high);
        edges.rect(left, top, 1.5, high);
      }
      hairs.rect(left, HEAD, 0.6, bottom - HEAD);
    }
    pen.fillStyle = colours["fault-back"];
    pen.fill(bands);
    pen.fillStyle = colours.fault;
    pen.globalAlpha = visible.length > 150 ? 0.4 : 1; // many together would hide what is under them
    pen.fill(edges);
    pen.globalAlpha = 0.3;
    if (visible.length <= 150) pen.fill(hairs);
    pen.globalAlpha = 1;
  }
  function drawFaultLabels(pen) {
    let free = gutter;
    for (const fault of data.faults) {
      const left = x(fault.from), right = Math.max(x(fault.to), left + 3);
      if (right < gutter || left > width) continue;
      pen.fillStyle = colours.fault;
      pen.fillRect(left, 38, right - left, 5);
      const text = fault.kind + " " + fault.target;
      const start = Math.max(left, gutter + 2);
      if (start < free) continue;
      pen.fillText(text, start, 30);
      free = start + pen.measureText(text).width + 8;
    }
  }
  function drawLives(pen) {
    pen.fillStyle = colours.life;
    data.lives.forEach((life, at) => {
      const left = x(life.from), right = Math.max(x(life.to), left + 2);
      if (right >= gutter && left <= width) pen.fillRect(left, rowY[lifeRow[at]], right - left, 3);
    });
  }
  function drawKills(pen) {
    pen.strokeStyle = colours.fault;
    pen.lineWidth = 2.2;
    pen.lineCap = "round";
    const last = rowY.map(() => -9);
    data.lives.forEach((life, at) => {
      if (!life.killed) return;
      const row = lifeRow[at], px = x(life.to), y = rowY[row] + 2;
      if (px < gutter - 5 || px > width + 5 || Math.abs(px - last[row]) < 5) return;
      last[row] = px;
      line(pen, px - 4, y - 4, px + 4, y + 4);
      line(pen, px + 4, y - 4, px - 4, y + 4);
    });
    pen.lineWidth = 1;
    pen.lineCap = "butt";
  }
  function drawProgress(pen) {
    pen.strokeStyle = colours.progress;
    pen.lineWidth = 1.4;
    for (const line of data.progress) {
      const lane = laneY[line.lane], top = lane.top + 6, high = ROW - 8, most = line.read[line.read.length - 1] || 1;
      pen.beginPath();
      line.at.forEach((time, i) => pen.lineTo(x(time), top + high - (line.read[i] / most) * high));
      pen.stroke();
    }
    pen.lineWidth = 1;
  }
  function drawTransactions(pen) {
    const drawn = rowY.map(() => [-1, -1, -1]);
    for (const txn of data.transactions) {
      const left = x(txn[1]), right = Math.max(x(txn[2]), left + 1.5);
      const row = lifeRow[txn[0]], y = rowY[row] + 21;
      if (right < gutter || left > width || right < drawn[row][txn[3]] + 0.5) continue;
      drawn[row][txn[3]] = right;
      const end = data.ends[txn[3]];
      if (end === "committed") {
        pen.fillStyle = colours.committed;
        pen.fillRect(left, y, Math.max(1, right - left - 1), 5);
      } else if (end === "aborted") {
        pen.strokeStyle = colours.aborted;
        pen.strokeRect(left + 0.5, y + 0.5, Math.max(1, right - left - 1.5), 4);
      } else {
        pen.fillStyle = colours["unknown-fill"];
        for (let px = Math.max(left, gutter - 4); px < Math.min(right, width); px += 7)
          pen.fillRect(px, y + 1, Math.min(4, Math.max(1, right - px)), 3);
      }
    }
  }
  function drawOperations(pen, y, row) {
    const list = inRow[row];
    const start = firstFrom(list, view.from - longest[row]);
    const others = [];
    let drawn = -1;
    pen.fillStyle = colours.ok;
    for (let at = start; at < list.length; at++) {
      const i = list[at];
      if (ops.began[i] > view.to) break;
      if (ops.outcome[i] !== OK) {
        others.push(i);
        continue;
      }
      const left = x(ops.began[i]), right = x(endOf(i));
      if (right < gutter || right < drawn + 0.5) continue; // hidden behind what is drawn already
      pen.fillRect(left, y + 8, Math.max(1, right - left - 0.5), 8);
      drawn = Math.max(drawn, right, left + 1);
    }
    drawn = { [FAILED]: -9, [UNKNOWN]: -9 };
    const capped = { [FAILED]: -9, [UNKNOWN]: -9 };
    for (const i of others) {
      const outcome = ops.outcome[i], left = x(ops.began[i]), right = x(endOf(i));
      if (right < gutter || (right < drawn[outcome] + 0.5 && picked !== i)) continue;
      drawn[outcome] = Math.max(right, left + 1);
      const hasCap = left - capped[outcome] >= 4;
      if (hasCap) capped[outcome] = left;
      if (outcome === FAILED) {
        pen.fillStyle = colours.failed;
        pen.fillRect(left, y + 7, Math.max(1.5, right - left), 11);
        if (!hasCap) continue;
        pen.beginPath();
        pen.moveTo(left - 3, y + 4);
        pen.lineTo(left + 5, y + 4);
        pen.lineTo(left + 1, y + 9);
        pen.fill();
      } else {
        pen.fillStyle = colours["unknown-fill"];
        pen.globalAlpha = 0.45;
        pen.fillRect(left, y + 10, Math.max(0, right - left), 4);
        pen.globalAlpha = 1;
        pen.fillRect(left, y + 8, 1.8, 10);
        if (!hasCap) continue;
        pen.strokeStyle = colours.unknown;
        pen.fillStyle = colours.card;
        pen.lineWidth = 1.6;
        pen.beginPath();
        pen.arc(left + 1, y + 6.5, 2.6, 0, 7);
        pen.fill();
        pen.stroke();
        pen.lineWidth = 1;
      }
    }
  }
  function drawMarked(pen) {
    pen.strokeStyle = colours.focus;
    pen.lineWidth = 2;
    for (const i of picked < 0 ? marked : [...marked, picked]) {
      const y = rowY[lifeRow[ops.life[i]]], left = x(ops.began[i]), right = x(endOf(i));
      pen.strokeRect(left - 3, y + 3, Math.max(6, right - left + 6), 17);
    }
    pen.lineWidth = 1;
  }
  function drawNames(pen) {
    pen.fillStyle = colours.soft;
    pen.fillText("faults", 10, 36);
    data.lanes.forEach((lane, at) => {
      pen.fillStyle = colours.text;
      pen.fillText(shortened(pen, lane.name, gutter - 16), 10, laneY[at].top + PAD / 2 + 9);
      if (lane.note && gutter > 100) {
        pen.fillStyle = colours.soft;
        pen.fillText(shortened(pen, lane.note, gutter - 16), 10, laneY[at].top + PAD / 2 + 22);
      }
    });
  }
  function shortened(pen, text, room) {
    if (pen.measureText(text).width <= room) return text;
    let kept = text;
    while (kept.length > 1 && pen.measureText(kept + "…").width > room) kept = kept.slice(0, -1);
    return kept + "…";
  }

  function drawOverview() {
    const pen = fit(overview, 44);
    const wide = overview.clientWidth, room = wide - gutter, n = data.density.length;
    const most = Math.max(1, ...data.density.map((each) => each[0] + each[1]));
    pen.clearRect(0, 0, wide, 44);
    const at = (time) => gutter + ((time + margin) / (whole.to + 2 * margin)) * room;
    data.density.forEach(([good, other], i) => {
      const left = at((i / n) * whole.to), bar = Math.max(1, (room / n) * 0.98);
      const all = ((good + other) / most) * 34, bad = other ? Math.max(3, (other / most) * 34) : 0;
      pen.fillStyle = colours.ok;
      pen.globalAlpha = 0.55;
      pen.fillRect(left, 42 - all, bar, all);
      pen.globalAlpha = 1;
      pen.fillStyle = colours["unknown-fill"];
      pen.fillRect(left, 42 - bad, bar, bad);
    });
    pen.fillStyle = colours.fault;
    for (const fault of data.faults) pen.fillRect(at(fault.from), 1, Math.max(2, at(fault.to) - at(fault.from)), 4);
    pen.fillStyle = colours.soft;
    pen.fillText("whole run", 10, 24);
    const left = Math.max(gutter, at(view.from)), right = Math.min(wide, at(view.to));
    pen.fillStyle = colours.focus;
    pen.globalAlpha = 0.1;
    pen.fillRect(left, 0, right - left, 44);
    pen.globalAlpha = 1;
    pen.strokeStyle = colours.focus;
    pen.strokeRect(left + 0.5, 0.5, Math.max(2, right - left - 1), 43);
  }

  // Moving about

  function show(from, to) {
    const span = Math.min(Math.max(to - from, 20), whole.to + 2 * margin);
    const middle = (from + to) / 2;
    view.from = Math.min(Math.max(middle - span / 2, -margin), whole.to + margin - span);
    view.to = view.from + span;
    draw();
  }
  function zoom(factor, around) {
    const centre = around === undefined ? (view.from + view.to) / 2 : around;
    const span = Math.min(Math.max((view.to - view.from) * factor, 20), whole.to + 2 * margin);
    const share = (centre - view.from) / (view.to - view.from);
    show(centre - share * span, centre + (1 - share) * span);
  }
  function move(share) {
    const by = (view.to - view.from) * share;
    show(view.from + by, view.to + by);
  }
  function nextTrouble(direction) {
    let i = picked >= 0 ? picked + direction : direction > 0 ? 0 : count - 1;
    while (i >= 0 && i < count && ops.outcome[i] === OK) i += direction;
    if (i < 0 || i >= count) return;
    pick(i);
    const half = Math.min((view.to - view.from) / 2, 5 * TICKS);
    show(ops.began[i] - half, ops.began[i] + half);
  }
  const actions = { in: () => zoom(0.5), out: () => zoom(2), all: () => show(-margin, whole.to + margin) };
  const keys = {
    ArrowLeft: () => move(-0.15), ArrowRight: () => move(0.15), "+": actions.in, "=": actions.in, "-": actions.out,
    0: actions.all, Home: actions.all, n: () => nextTrouble(1), p: () => nextTrouble(-1),
    Escape: () => { marked = new Set(); pick(-1); },
  };
  canvas.addEventListener("keydown", (event) => {
    const action = keys[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    action();
  });
  canvas.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      zoom(Math.exp(event.deltaY * 0.01), timeAt(event.offsetX));
    } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) {
      event.preventDefault();
      move((event.deltaX || event.deltaY) / (width - gutter));
    }
  }, { passive: false });
  canvas.addEventListener("dblclick", (event) => zoom(0.4, timeAt(event.offsetX)));

  const fingers = new Map();
  let wasMoved = false;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, event.offsetX);
    wasMoved = false;
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!fingers.has(event.pointerId)) return hover(event);
    const before = [...fingers.values()];
    const last = fingers.get(event.pointerId);
    if (!wasMoved && before.length === 1 && Math.abs(event.offsetX - last) < 4) return;
    wasMoved = true;
    tip.hidden = true;
    fingers.set(event.pointerId, event.offsetX);
    const after = [...fingers.values()];
    if (before.length === 1) {
      move((last - event.offsetX) / (width - gutter));
    } else {
      const factor = Math.max(8, Math.abs(before[0] - before[1])) / Math.max(8, Math.abs(after[0] - after[1]));
      zoom(factor, timeAt((after[0] + after[1]) / 2));
    }
  });
  function lift(event) {
    if (fingers.delete(event.pointerId) && !wasMoved && event.type === "pointerup") pick(near(event), event);
  }
  canvas.addEventListener("pointerup", lift);
  canvas.addEventListener("pointercancel", lift);
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });

  function overviewTo(event) {
    const wide = overview.clientWidth - gutter;
    const middle = ((event.offsetX - gutter) / wide) * (whole.to + 2 * margin) - margin;
    const half = (view.to - view.from) / 2;
    show(middle - half, middle + half);
  }
  overview.addEventListener("pointerdown", (event) => {
    overview.setPointerCapture(event.pointerId);
    if (view.to - view.from >= whole.to) zoom(0.2, 0);
    overviewTo(event);
  });
  overview.addEventListener("pointermove", (event) => { if (event.buttons) overviewTo(event); });

  // What is under the pointer

  function near(event) {
    const row = rowY.findIndex((y) => event.offsetY >= y - 2 && event.offsetY < y + 20);
    if (row < 0 || event.offsetX < gutter) return -1;
    const list = inRow[row], reach = ((view.to - view.from) / (width - gutter)) * 7;
    const time = timeAt(event.offsetX);
    let best = -1, nearest = reach;
    for (let at = firstFrom(list, time + reach) - 1; at >= 0; at--) {
      const i = list[at];
      if (ops.began[i] < time - reach - longest[row]) break;
      let distance = time < ops.began[i] ? ops.began[i] - time : Math.max(0, time - endOf(i));
      if (ops.outcome[i] === OK) distance += reach * 0.3; // what went wrong is what people point at
      if (distance < nearest) {
        nearest = distance;
        best = i;
      }
    }
    return best;
  }
  function faultAt(event) {
    const time = timeAt(event.offsetX), reach = ((view.to - view.from) / (width - gutter)) * 4;
    return data.faults.find((each) => time >= each.from - reach && time <= each.to + reach &&
      (event.offsetY < HEAD || each.lanes.some((lane) => event.offsetY >= laneY[lane].top && event.offsetY < laneY[lane].bottom)));
  }
  function transactionAt(event) {
    const row = rowY.findIndex((y) => event.offsetY >= y + 20 && event.offsetY < y + ROW);
    const time = timeAt(event.offsetX), reach = ((view.to - view.from) / (width - gutter)) * 3;
    return row < 0 ? undefined : data.transactions.find((each) =>
      lifeRow[each[0]] === row && time >= each[1] - reach && time <= each[2] + reach);
  }
  function describe(i) {
    const took = ops.took[i] < 0 ? "no answer" : "took " + seconds(ops.took[i]);
    const first = `${ops.kinds[ops.kind[i]]} · ${data.outcomes[ops.outcome[i]]} · ${nameOf(i)}`;
    const text = data.texts[ops.text[i]];
    return `${first}\nat ${seconds(ops.began[i])}, ${took}` + (text ? "\n" + text : "");
  }
  function describePoint(event) {
    const i = near(event);
    if (i >= 0) return describe(i);
    const txn = transactionAt(event);
    if (txn) return `transaction ${txn[4]} · ${data.ends[txn[3]]}\nat ${seconds(txn[1])}, for ${seconds(txn[2] - txn[1])}`;
    const fault = faultAt(event);
    return fault ? `fault: ${fault.kind} ${fault.target}\nat ${seconds(fault.from)}, for ${seconds(fault.to - fault.from)}` + (fault.text ? "\n" + fault.text : "") : "";
  }
  function hover(event) {
    if (event.pointerType === "touch") return;
    const text = describePoint(event);
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    const left = Math.min(event.offsetX + 14, width - tip.offsetWidth - 4);
    tip.style.left = Math.max(2, left) + "px";
    tip.style.top = event.offsetY + 18 + "px";
  }
  function pick(i, event) {
    picked = i;
    chosen.textContent = i >= 0 ? describe(i) : event ? describePoint(event) : "";
    draw();
  }

  // Links from the rest of the page: data-from and data-to in ticks, data-operations with ids that are to be framed.
  const placeOf = new Map();
  for (let i = 0; i < count; i++) placeOf.set(nameOf(i), i);
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.do) return actions[button.dataset.do]();
    if (button.dataset.from === undefined) return;
    const from = Number(button.dataset.from), to = Number(button.dataset.to);
    const around = Math.max((to - from) * 0.25, 0.05 * TICKS);
    const ids = JSON.parse(button.dataset.operations || "[]");
    marked = new Set(ids.map((id) => placeOf.get(id)).filter((i) => i !== undefined));
    picked = -1;
    chosen.textContent = [...marked].map(describe).join("\n");
    document.getElementById("timeline").scrollIntoView();
    canvas.focus({ preventScroll: true });
    show(from - around, to + around);
  });

  document.querySelector(".tools").hidden = false;
  readColours();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); draw(); });
  new ResizeObserver(draw).observe(canvas);
  drawLanes();
  drawOverview();
  canvas.dataset.ready = "yes";
})();
