"use strict";
// Plots: numbers in, uPlot out. Colours come from the style sheet, so that light and dark differ in one place.

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const faded = (hex, share) => hex + Math.round(255 * share).toString(16).padStart(2, "0");

function short(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "";
  const size = Math.abs(value);
  if (value !== 0 && (size >= 1e5 || size < 1e-3)) return value.toExponential(size >= 1e5 && Number.isInteger(Math.log10(size)) ? 0 : 1).replace("e+", "e");
  return String(Number(value.toPrecision(4)));
}

const plots = {};

function place(id) {
  const box = document.getElementById(id);
  return { box, width: Math.max(box.clientWidth, 120), height: Math.max(box.clientHeight, 120) };
}

function empty(id, words) {
  if (plots[id]) { plots[id].plot.destroy(); delete plots[id]; }
  place(id).box.innerHTML = "";
  const p = document.createElement("p");
  p.textContent = words;
  place(id).box.append(p);
}

// Which places of a logarithmic axis are named: powers of ten, or more where there are fewer than two of them.
function named(splits) {
  const first = (v) => v / 10 ** Math.floor(Math.log10(v) + 1e-9);
  const some = [[1], [1, 2, 5]].map((digits) => splits.map((v) => (digits.some((digit) => Math.abs(first(v) - digit) < 1e-6) ? v : null)));
  return some.find((each) => each.filter((v) => v !== null).length > 1) || splits;
}

// Where ticks stand: multiples of a step, or of powers of ten. Counted, since uPlot's own loop has no end for some ranges.
function ticks(log) {
  return (_, __, low, high, step) => {
    if (log) {
      const from = Math.floor(Math.log10(low)), powers = Array.from({ length: Math.min(Math.ceil(Math.log10(high)) - from + 1, 80) }, (_, i) => 10 ** (from + i));
      return powers.flatMap((power) => Array.from({ length: 9 }, (_, i) => (i + 1) * power)).filter((v) => v >= low && v <= high);
    }
    const first = Math.ceil(low / step), count = Math.floor(high / step) - first + 1;
    return count > 0 && count < 200 ? Array.from({ length: count }, (_, i) => Number(((first + i) * step).toPrecision(12))) : [low, high];
  };
}

function axis({ label, log, whole }, side) {
  const filter = (_, splits) => (log ? named(splits) : splits);
  return { label, labelSize: 18, labelFont: "12px sans-serif", font: "11px sans-serif", stroke: colour("faint"), size: side ? 52 : 32,
    space: side ? 30 : 60, splits: ticks(log), grid: { stroke: faded(colour("line"), .7), width: 1, filter }, ticks: { stroke: colour("line"), size: 4, filter },
    filter, values: (_, splits) => splits.map(short), ...(whole ? { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500] } : {}) };
}

// A range in which ticks differ: uPlot looks for them for ever where one is narrower than the rounding of its numbers.
function wide([low, high]) {
  const least = 1e-6 * Math.max(Math.abs(low), Math.abs(high)) || 1e-6;
  return high - low < least ? [low - least, high + least] : [low, high];
}

// Draw series on axes; the plot is kept while its form stays, and only its data change.
function draw(id, { data, series, x, y, bands, hook, form, ranges }) {
  const { box, width, height } = place(id);
  const key = JSON.stringify([form, width, height, colour("ink")]);
  if (plots[id] && plots[id].key === key) {
    plots[id].hook = hook;
    plots[id].ranges = ranges || {};
    plots[id].plot.setData(data);
    return;
  }
  if (plots[id]) plots[id].plot.destroy();
  box.innerHTML = "";
  const kept = { key, hook, ranges: ranges || {} };
  const range = (name, log) => (u, low, high) => {
    if (kept.ranges[name]) return wide(kept.ranges[name]);
    if (low === null || !Number.isFinite(low) || !Number.isFinite(high)) return log ? [.1, 1] : [0, 1];
    if (log) return [low / 1.15, high * 1.15];
    const room = .04 * (high - low || Math.abs(high) || 1);
    return wide([low - room, high + room]);
  };
  kept.plot = new uPlot({
    width, height, series: [{}, ...series], bands: bands || [], legend: { show: false }, pxAlign: false,
    cursor: { drag: { x: false, y: false }, points: { show: false } },
    scales: { x: { time: false, distr: x.log ? 3 : 1, range: range("x", x.log) },
      y: { distr: y.log ? 3 : 1, range: range("y", y.log) } },
    axes: [axis(x, false), axis(y, true)],
    hooks: { draw: [(u) => { if (kept.hook) { u.ctx.save(); kept.hook(u, u.ctx, devicePixelRatio); u.ctx.restore(); } }] },
  }, data, box);
  plots[id] = kept;
}

function positive(values, log) { return log ? values.map((v) => (v !== null && v > 0 ? v : null)) : values; }

// Curves against time. lines: [{values, colour, width, dash, band}], where a band names the line it reaches to.
function curvePlot(id, t, lines, label, log, logt) {
  const from = logt ? 1 : 0;
  const data = [t.slice(from), ...lines.map((line) => positive(line.values.slice(from), log))];
  const series = lines.map((line) => ({ stroke: line.colour, width: line.width, dash: line.dash, points: { show: false }, spanGaps: false }));
  const bands = lines.flatMap((line, i) => (line.band ? [{ series: [i + 2, i + 1], fill: line.band }] : []));
  const form = [lines.map((line) => [line.colour, line.width, line.dash, line.band]), log, logt, label];
  draw(id, { data, series, bands, form, x: { label: "t, samples per dimension", log: logt }, y: { label, log },
    ranges: { x: [t[from], t[t.length - 1]] } });
}

function bars(u, ctx, items, width, ratio) {
  for (const { x, from, to, fill } of items) {
    const left = u.valToPos(x - width / 2, "x", true), right = u.valToPos(x + width / 2, "x", true);
    const top = u.valToPos(to, "y", true), bottom = u.valToPos(from, "y", true);
    ctx.fillStyle = fill;
    ctx.fillRect(left, top, Math.max(right - left - ratio, 2 * ratio), bottom - top);
  }
}

// Histogram of exit times of each side, and vertical lines for what theory says.
function exitPlot(id, sides, end) {
  const every = sides.flatMap((side) => [...side.exited, ...side.marks.map((m) => m.t)]).filter((t) => t !== null && t <= 1.5 * end);
  if (!every.length) every.push(0, end);  // nobody exits, and theory says so
  const first = Math.min(...every), last = Math.max(...every), room = .06 * (last - first || last || end);
  const low = first < .4 * last ? 0 : first - room, high = last + room, bins = 24, width = (high - low) / bins;
  const items = [];
  let most = 1;
  sides.forEach((side) => {
    const counts = new Array(bins).fill(0);
    side.exited.forEach((t) => { counts[Math.min(bins - 1, Math.floor((t - low) / width))] += 1; });
    counts.forEach((n, i) => { if (n) items.push({ x: low + (i + .5) * width, from: 0, to: n, fill: faded(side.colour, .6) }); most = Math.max(most, n); });
  });
  const hook = (u, ctx, ratio) => {
    bars(u, ctx, items, width, ratio);
    sides.forEach((side) => side.marks.forEach((mark, i) => {
      if (mark.t === null || mark.t > high) return;
      const at = u.valToPos(mark.t, "x", true);
      ctx.strokeStyle = mark.colour; ctx.lineWidth = 1.6 * ratio; ctx.setLineDash(mark.dash.map((v) => v * ratio));
      ctx.beginPath(); ctx.moveTo(at, u.bbox.top); ctx.lineTo(at, u.bbox.top + u.bbox.height); ctx.stroke();
    }));
  };
  draw(id, { data: [[low, high], [0, most]], series: [{ show: true, stroke: "transparent", points: { show: false } }], hook, form: "exits",
    x: { label: "exit time t" }, y: { label: "runs", whole: true }, ranges: { x: [low, high], y: [0, most * 1.12] } });
}

function portraitPlot(id, view, sideColour) {
  const line = !view.y;
  const xs = view.grid.map((p) => p[0]), ys = line ? view.drift.map((d) => d[0]) : view.grid.map((p) => p[1]);
  const known = ys.filter((v) => v !== null);
  const ranges = { x: [Math.min(...xs), Math.max(...xs)] };
  ranges.y = known.length ? [Math.min(...known), Math.max(...known)] : [0, 1];
  if (line) { const room = .1 * (ranges.y[1] - ranges.y[0] || 1); ranges.y = [ranges.y[0] - room, ranges.y[1] + room]; }
  const hook = (u, ctx, ratio) => {
    const at = (p) => [u.valToPos(p[0], "x", true), u.valToPos(p[1], "y", true)];
    const path = (track, stroke, width, dash) => {
      ctx.strokeStyle = stroke; ctx.lineWidth = width * ratio; ctx.setLineDash((dash || []).map((v) => v * ratio)); ctx.beginPath();
      track.forEach((p, i) => { if (p[0] === null || p[1] === null) return; const [x, y] = at(p); if (i) ctx.lineTo(x, y); else ctx.moveTo(x, y); });
      ctx.stroke();
    };
    ctx.beginPath(); ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height); ctx.clip();
    if (line) {
      path([[ranges.x[0], 0], [ranges.x[1], 0]], colour("faint"), 1, [4, 4]);
      path(view.grid.map((p, i) => [p[0], view.drift[i][0]]), colour("ode"), 1.8);
      view.chain.forEach((track) => { ctx.fillStyle = faded(sideColour, .8); const [x, y] = at([track[track.length - 1][0], 0]); ctx.fillRect(x - 2 * ratio, y - 7 * ratio, 4 * ratio, 14 * ratio); });
    } else {
      const length = .75 * Math.min(u.bbox.width, u.bbox.height * 1.6) / Math.sqrt(view.grid.length);
      ctx.lineWidth = ratio; ctx.strokeStyle = faded(colour("faint"), .65); ctx.setLineDash([]);
      view.grid.forEach((p, i) => {
        const d = view.drift[i]; if (d[0] === null) return;
        const [x, y] = at(p); let dx = d[0] * u.bbox.width / (ranges.x[1] - ranges.x[0]), dy = -d[1] * u.bbox.height / (ranges.y[1] - ranges.y[0]);
        const size = Math.hypot(dx, dy); if (size < 1e-12) return;
        dx *= length / size; dy *= length / size;
        const tip = [x + dx / 2, y + dy / 2];
        ctx.beginPath(); ctx.moveTo(x - dx / 2, y - dy / 2); ctx.lineTo(...tip);
        ctx.lineTo(tip[0] - .35 * dx + .2 * dy, tip[1] - .35 * dy - .2 * dx); ctx.moveTo(...tip);
        ctx.lineTo(tip[0] - .35 * dx - .2 * dy, tip[1] - .35 * dy + .2 * dx); ctx.stroke();
      });
      view.chain.forEach((track) => path(track, faded(sideColour, .75), 1.3));
      view.ode.forEach((track) => path(track, colour("ode"), 1.4, [6, 4]));
    }
    ctx.setLineDash([]);
    view.points.forEach((point) => {
      const [x, y] = at(line ? [point.at[0], 0] : point.at);
      ctx.beginPath(); ctx.arc(x, y, 5 * ratio, 0, 2 * Math.PI); ctx.lineWidth = 2 * ratio; ctx.strokeStyle = colour("ink");
      ctx.setLineDash(point.stability === "unknown" ? [2 * ratio, 2 * ratio] : []);
      ctx.fillStyle = colour(point.stability === "stable" ? "ink" : "panel"); ctx.fill(); ctx.stroke();
      if (point.stability === "neutral") { ctx.fillStyle = colour("ink"); ctx.beginPath(); ctx.arc(x, y, 5 * ratio, Math.PI / 2, 1.5 * Math.PI); ctx.fill(); }
    });
  };
  draw(id, { data: [[ranges.x[0], ranges.x[1]], [ranges.y[0], ranges.y[1]]], series: [{ stroke: "transparent", points: { show: false } }], hook,
    form: ["portrait", view.x, view.y], x: { label: view.x }, y: { label: view.y || `d ${view.x} / dt` }, ranges });
}

// Bars at the eigenvalues, as high as they are many, on a logarithmic scale.
function spectrumPlot(id, sides) {
  const every = sides.flatMap((side) => side.values), low = Math.min(...every, 0), high = Math.max(...every, 0);
  const room = .08 * (high - low || 1), width = (high - low || 1) / 60, most = Math.max(...sides.flatMap((side) => side.counts), 10);
  const hook = (u, ctx, ratio) => {
    let free = [];
    ctx.font = `${11 * ratio}px sans-serif`; ctx.textAlign = "center";
    sides.forEach((side) => {
      bars(u, ctx, side.values.map((v, i) => ({ x: v, from: .5, to: side.counts[i], fill: faded(side.colour, .8) })), width, ratio);
      [...side.counts.keys()].sort((a, b) => side.counts[b] - side.counts[a]).forEach((i) => {
        const x = u.valToPos(side.values[i], "x", true), y = u.valToPos(side.counts[i], "y", true) - 4 * ratio;
        if (free.some((o) => Math.abs(o[0] - x) < (Math.abs(o[1] - y) < 14 * ratio ? 34 : 10) * ratio)) return;
        free.push([x, y]);
        ctx.fillStyle = colour("ink"); ctx.fillText(short(side.counts[i]), x, y);
      });
    });
  };
  draw(id, { data: [[low, high], [1, most]], series: [{ stroke: "transparent", points: { show: false } }], hook, form: "spectrum",
    x: { label: "eigenvalue" }, y: { label: "multiplicity", log: true }, ranges: { x: [low - room, high + room], y: [.5, most * 5] } });
}
