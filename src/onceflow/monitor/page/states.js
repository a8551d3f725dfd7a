// The states of a transactional id and the moves between them, as the table in txn/states.py has them (a test compares),
// and where they are drawn: on a wide place, and on a narrow one.

export const MOVES = [
  ["Empty", "Ongoing", "add partition"],
  ["Empty", "PrepareAbort", "abort (V2)"],
  ["Empty", "Dead", "unused for long"],
  ["Ongoing", "PrepareCommit", "commit"],
  ["Ongoing", "PrepareAbort", "abort"],
  ["Ongoing", "PrepareEpochFence", "new instance or timeout"],
  ["PrepareEpochFence", "PrepareAbort", "raise the epoch"],
  ["PrepareCommit", "CompleteCommit", "markers written"],
  ["PrepareAbort", "CompleteAbort", "markers written"],
  ["CompleteCommit", "Empty", "InitProducerId"],
  ["CompleteCommit", "Ongoing", "add partition"],
  ["CompleteCommit", "PrepareAbort", "abort (V2)"],
  ["CompleteCommit", "Dead", "unused for long"],
  ["CompleteAbort", "Empty", "InitProducerId"],
  ["CompleteAbort", "Ongoing", "add partition"],
  ["CompleteAbort", "PrepareAbort", "abort (V2)"],
  ["CompleteAbort", "Dead", "unused for long"]
];

export const MEANING = {
  Empty: "has a producer id, and no transaction yet",
  Ongoing: "a transaction is open",
  PrepareCommit: "the commit is decided, markers are being written",
  CompleteCommit: "committed",
  PrepareAbort: "the abort is decided, markers are being written",
  CompleteAbort: "aborted",
  PrepareEpochFence: "is being fenced",
  Dead: "forgotten",
};

export const WIDE = {
  size: [1000, 400],
  nodes: {
    Empty: [10, 152, 190, 96],
    Ongoing: [290, 140, 204, 120],
    PrepareCommit: [566, 30, 172, 96],
    CompleteCommit: [806, 30, 172, 96],
    PrepareAbort: [566, 274, 172, 96],
    CompleteAbort: [806, 274, 172, 96],
    PrepareEpochFence: [290, 312, 204, 58],
    Dead: [10, 312, 190, 58],
  },
  paths: [
    // [class, path, label, x, y, anchor]
    ["main", "M200 200 H286", "add partition", 244, 192, "middle"],
    ["main", "M494 172 C534 172 524 78 562 78", "commit", 520, 112, "end"],
    ["main", "M494 228 C534 228 524 322 562 322", "abort", 541, 264, "start"],
    ["main", "M738 78 H802", "markers", 770, 70, "middle"],
    ["main", "M738 306 H802", "markers", 770, 298, "middle"],
    ["main", "M892 126 V190 Q892 200 882 200 H498", "next transaction", 700, 192, "middle"],
    ["main plain", "M892 274 V210 Q892 200 882 200", "", 0, 0, ""],
    ["main", "M392 260 V308", "new instance or timeout", 384, 304, "end"],
    ["main", "M494 346 H562", "raise epoch", 528, 362, "middle"],
    ["side", "M978 78 H982 Q990 78 990 70 V20 Q990 12 982 12 H113 Q105 12 105 20 V148", "InitProducerId", 300, 27, "middle"],
    ["side plain", "M978 322 H982 Q990 322 990 314 V70", "", 0, 0, ""],
    ["side", "M990 314 V380 Q990 388 982 388 H113 Q105 388 105 380 V374", "", 0, 0, ""],
    ["side", "M105 248 V308", "unused for long", 112, 300, "start"],
    ["side", "M806 344 H742", "", 0, 0, ""],
    ["side", "M830 126 C830 215 652 170 652 270", "abort (V2)", 722, 222, "middle"],
    ["side", "M180 248 V270 Q180 280 190 280 H562", "", 0, 0, ""],
  ],
};

export const NARROW = {
  size: [360, 560],
  nodes: {
    Empty: [8, 8, 150, 78],
    Dead: [212, 8, 132, 46],
    Ongoing: [8, 136, 172, 104],
    PrepareEpochFence: [198, 156, 148, 64],
    PrepareCommit: [8, 306, 160, 84],
    PrepareAbort: [184, 306, 160, 84],
    CompleteCommit: [8, 444, 160, 84],
    CompleteAbort: [184, 444, 160, 84],
  },
  paths: [
    ["main", "M60 86 V132", "add partition", 67, 114, "start"],
    ["main", "M46 240 V302", "commit", 53, 274, "start"],
    ["main", "M166 240 V256 Q166 264 174 264 H214 Q222 264 222 272 V302", "abort", 229, 288, "start"],
    ["main", "M180 188 H194", "", 0, 0, ""],
    ["main", "M300 220 V302", "raise epoch", 293, 244, "end"],
    ["main", "M88 390 V440", "markers", 95, 420, "start"],
    ["main", "M264 390 V440", "markers", 271, 420, "start"],
    ["main", "M168 486 H170 Q176 486 176 480 V304 Q176 296 168 296 H138 Q130 296 130 288 V244", "next", 123, 274, "end"],
    ["main plain", "M184 486 H182 Q176 486 176 480", "", 0, 0, ""],
    ["side", "M344 486 H346 Q354 486 354 478 V80 Q354 72 346 72 H162", "InitProducerId", 290, 86, "middle"],
    ["side plain", "M88 528 V538 Q88 546 96 546 H346 Q354 546 354 538 V478", "", 0, 0, ""],
    ["side", "M330 72 V58", "", 0, 0, ""],
    ["side", "M158 30 H208", "", 0, 0, ""],
  ],
};

// The shortest way from one state to another along the moves; through the end of a transaction, if it had one meanwhile.
export function way(from, to, ended) {
  if (!ended) return from === to ? [] : steps(from, to);
  const outcome = ended.committed ? "Commit" : "Abort";
  const stops = [from, "Ongoing", ...(ended.reason === "client" ? [] : ["PrepareEpochFence"]), `Prepare${outcome}`, `Complete${outcome}`, to];
  const found = [];
  for (let i = 1; i < stops.length; i++) if (stops[i] !== stops[i - 1]) found.push(...steps(stops[i - 1], stops[i]));
  return found;
}

function steps(from, to) {
  const queue = [[from]];
  const known = new Set([from]);
  while (queue.length) {
    const path = queue.shift();
    for (const [start, end] of MOVES) {
      if (start !== path[path.length - 1] || known.has(end)) continue;
      if (end === to) return [...path.slice(1), end];
      known.add(end);
      queue.push([...path, end]);
    }
  }
  return [to];
}
