"use strict";
// The page: controls in, messages out, and what comes back is drawn. All numbers come from the server.

const $ = (id) => document.getElementById(id);
const SIDES = ["A", "B"], LEVELS = { chain: "exact chain", ode: "ODE", sde: "SDE, 10 % to 90 %", mean_field: "mean field" };
const DASHES = { ode: [7, 4], mean_field: [2, 3], sde: [1, 2] };
const FORMULAS = { ode: "ODE", sde: "SDE", mean_field: "mean field", quenched: "quenched (46)", noisy_ode: "noisy ODE", backward: "backward equation" };
const MARKS = { stable: "●", unstable: "○", neutral: "◐", unknown: "◌" };
const token = new URLSearchParams(location.search).get("token");
const query = token ? `?token=${encodeURIComponent(token)}` : "";
let contents, state, socket, job = 0, shown = null, waiting = null, file = null;

const usual = (controls) => Object.fromEntries(controls.filter((c) => c.default !== null).map((c) => [c.name, c.default]));
const optimiserDefaults = (optimiser) => usual(contents.optimisers[optimiser].controls);

function settingOf(preset) {
  return { preset, A: { parameters: usual(contents.presets[preset].controls), optimiser: "sgd", optimiser_parameters: {} }, B: null,
    ...usual(contents.runs), start_from: "random", start_at: null, left: "risk", right: "largest overlap", log: false, logt: false, plane: [], plane_side: "A" };
}

function fromScene(preset, index) {
  const { setting, other, view } = contents.presets[preset].scenes[index], made = Object.assign(settingOf(preset), view);
  for (const [name, value] of Object.entries(setting)) if (!["parameters", "optimiser", "optimiser_parameters"].includes(name)) made[name] = value;
  const side = (base, given) => {
    const optimiser = given.optimiser || base.optimiser;
    return { parameters: { ...base.parameters, ...given.parameters }, optimiser, optimiser_parameters: { ...(optimiser === base.optimiser ? base.optimiser_parameters : optimiserDefaults(optimiser)), ...given.optimiser_parameters } };
  };
  made.A = side(made.A, setting);
  if (other) made.B = side(made.A, other);
  return made;
}

// ---- the link ----

function toLink() { history.replaceState(null, "", `${location.pathname}${location.search}#${encodeURIComponent(JSON.stringify(state))}`); }

function fromLink() {
  try {
    const given = JSON.parse(decodeURIComponent(location.hash.slice(1)));
    if (!contents.presets[given.preset]) return null;
    const made = settingOf(given.preset);
    for (const name of Object.keys(made)) if (name in given) made[name] = given[name];
    for (const side of SIDES) if (made[side]?.rule) made[side] = { ...made[side], optimiser: made[side].rule, optimiser_parameters: made[side].rule_parameters };  // links of version 0.2
    for (const side of SIDES) if (made[side] && (!contents.optimisers[made[side].optimiser] || typeof made[side].parameters !== "object")) return null;
    return made.A ? made : null;
  } catch { return null; }
}

// ---- controls ----

function element(tag, more = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(more)) if (name in made && name !== "list") made[name] = value; else made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const isLog = (c) => c.scale.includes("log"), isWhole = (c) => c.scale.includes("whole");

function toSlider(c, value) {
  const number = Number(value);
  if (!Number.isFinite(number)) return value === "inf" ? 1000 : 0;
  const share = isLog(c) ? Math.log(Math.max(number, 1e-300) / c.low) / Math.log(c.high / c.low) : (number - c.low) / (c.high - c.low);
  return Math.round(1000 * Math.min(1, Math.max(0, share)));
}

function fromSlider(c, place) {
  const share = place / 1000, value = isLog(c) ? c.low * (c.high / c.low) ** share : c.low + share * (c.high - c.low);
  return isWhole(c) ? Math.round(isLog(c) ? Number(value.toPrecision(2)) : value) : Number(value.toPrecision(3));
}

// A number as a box shows it: long ones are shortened, and the title has all digits.
function text(value) {
  if (typeof value !== "number") return value === null || value === undefined ? "" : String(value);
  const whole = Math.abs(value) >= 1e5 ? value.toExponential().replace("e+", "e") : String(value);
  return whole.length > 8 ? String(Number(value.toPrecision(4))).replace("e+", "e") : whole;
}

function parse(typed) {
  if (typed.trim() === "") return null;
  const number = Number(typed);
  return Number.isFinite(number) && typed.trim() !== "" ? number : typed.trim();
}

const rates = new Map();  // the rates that are drawn at present, by the ids of their boxes

function row(c, values, id) {
  const label = element("label", { htmlFor: id, title: c.help, textContent: c.name.replaceAll("_", " ") });
  const set = (value) => { values[c.name] = value; ask(); };
  if (c.kind === "tick") {
    const box = element("input", { type: "checkbox", id, checked: !!values[c.name] });
    box.addEventListener("change", () => set(box.checked));
    return element("div", { className: "row" }, label, element("span", { className: "wide" }, box));
  }
  if (c.kind === "words") {
    const list = element("select", { id, className: "wide" }, ...(c.optional ? [element("option", { value: "", textContent: "the same" })] : []),
      ...c.words.map((word) => element("option", { value: word, textContent: word })));
    list.value = values[c.name] ?? "";
    list.addEventListener("change", () => set(list.value || null));
    return element("div", { className: "row" }, label, list);
  }
  const box = element("input", { type: "text", inputMode: "decimal", id, value: text(values[c.name]), title: values[c.name] ?? "", spellcheck: false, maxLength: c.schedule ? 4000 : 40 });
  if (c.kind === "box") {
    box.classList.add("wide");
    box.addEventListener("change", () => set(parse(box.value)));
    return element("div", { className: "row" }, label, box);
  }
  const step = isWhole(c) && !isLog(c) ? 1000 / (c.high - c.low) : 1;
  const slider = element("input", { type: "range", min: 0, max: 1000, step, value: toSlider(c, values[c.name]), ariaLabel: `${c.name} slider`, id: `${id}-slider` });
  const say = () => { slider.setAttribute("aria-valuetext", text(values[c.name])); box.title = values[c.name] ?? ""; };
  slider.addEventListener("input", () => { const value = fromSlider(c, Number(slider.value)); box.value = text(value); set(value); say(); });
  box.addEventListener("change", () => { const value = parse(box.value); slider.value = toSlider(c, value); set(value); say(); });
  say();
  const made = element("div", { className: "row" }, label, slider, box);
  if (c.drawn) {
    const line = new RateLine(c, () => values[c.name], (value) => { box.value = text(value); slider.value = toSlider(c, value); set(value); say(); });
    const open = element("button", { type: "button", className: "draw", id: `${id}-draw`, textContent: "over time", title: `draw ${c.name} as a line over time` });
    const show = (is) => { line.canvas.hidden = !is; open.setAttribute("aria-expanded", is); if (is) { rates.set(id, line); line.draw(); } else rates.delete(id); };
    open.addEventListener("click", () => show(line.canvas.hidden));
    line.canvas.id = `${id}-line`;
    made.append(open, line.canvas);
    show(rates.has(id));
  }
  return made;
}

function sideControls(side) {
  const own = state[side], made = element("fieldset", { id: `side-${side}` }, element("legend", { textContent: state.B ? `Setting ${side}` : "The problem" }));
  made.append(...contents.presets[state.preset].controls.map((c) => row(c, own.parameters, `${side}-${c.name}`)));
  const optimiser = element("select", { id: `${side}-optimiser`, className: "wide" }, ...Object.entries(contents.optimisers).map(([name, about]) => element("option", { value: name, textContent: name.replaceAll("_", " "), title: about.summary })));
  optimiser.value = own.optimiser;
  optimiser.disabled = state.preset === "spiked_tensor";
  optimiser.addEventListener("change", () => { own.optimiser = optimiser.value; own.optimiser_parameters = optimiserDefaults(optimiser.value); build(); ask(); $(`${side}-optimiser`).focus(); });
  made.append(element("div", { className: "row" }, element("label", { htmlFor: `${side}-optimiser`, textContent: "optimiser", title: "how weights move" }), optimiser));
  made.append(...contents.optimisers[own.optimiser].controls.map((c) => row(c, own.optimiser_parameters, `${side}-optimiser-${c.name}`)));
  return made;
}

function build() {
  const form = $("controls"), runs = element("fieldset", {}, element("legend", { textContent: "The runs" }));
  runs.append(...contents.runs.map((c) => row(c, state, c.name)));
  const start = element("select", { id: "start", className: "wide" }, ...Object.keys(contents.starts).map((name) => element("option", { value: name, textContent: name })));
  start.value = state.start_from;
  start.addEventListener("change", () => { state.start_from = start.value; state.start_at = contents.starts[start.value].default; build(); ask(); $("start").focus(); });
  runs.append(element("div", { className: "row" }, element("label", { htmlFor: "start", textContent: "start" }), start));
  const number = contents.starts[state.start_from];
  if (number.default !== null) runs.append(row({ name: "start_at", kind: "number", low: 1e-4, high: 1, scale: "log", help: number.number }, state, "start-at"));
  const both = element("button", { type: "button", id: "compare", textContent: state.B ? "Leave out setting B" : "Compare two settings" });
  both.addEventListener("click", () => { state.B = state.B ? null : structuredClone(state.A); build(); ask(); $("compare").focus(); });
  const again = element("button", { type: "button", id: "again", textContent: "Run again" });
  again.addEventListener("click", () => ask());
  form.replaceChildren(sideControls("A"), ...(state.B ? [sideControls("B")] : []), element("p", { className: "buttons" }, both, again), runs);
  $("preset").value = state.preset;
  $("log").checked = state.log; $("logt").checked = state.logt;
  rates.forEach((line, id) => { if ($(id)) line.draw(); else rates.delete(id); });
}

function scenes() {
  $("scene").replaceChildren(element("option", { value: "", textContent: "your own" }), ...contents.presets[state.preset].scenes.map((each, i) => element("option", { value: i, textContent: each.title })));
}

// ---- asking ----

const message = (side) => ({ preset: state.preset, ...side, d: state.d, t_max: state.t_max, runs: state.runs, seed: state.seed, threshold: state.threshold, start_from: state.start_from, start_at: state.start_at });

function ask(now) {
  clearTimeout(waiting);
  document.body.dataset.done = "";
  rates.forEach((line) => line.read());
  toLink();
  job += 1;  // from now on what comes of the settings before is not shown
  waiting = setTimeout(() => {
    if (!socket || socket.readyState !== WebSocket.OPEN) { connect(); return; }
    socket.send(JSON.stringify({ kind: "run", job, settings: SIDES.filter((s) => state[s]).map((s) => message(state[s])), plane: state.plane }));
    $("status").textContent = "Running…";
  }, now ? 0 : 50);
}

function fresh(sides) {
  return { sides: sides.map((side) => ({ ...side, levels: {}, exits: null, portrait: null, spectrum: null, numbers: {} })), t: null, dirty: true, running: false };
}

const indexOf = (t) => Math.round((t / shown.end) * (shown.save - 1));

const answers = {
  ready() { if (!shown) $("status").textContent = "Compiling…"; },
  accepted(m) {
    $("error").hidden = true;
    for (const box of document.querySelectorAll(".wrong")) { box.classList.remove("wrong"); box.removeAttribute("aria-invalid"); }
    $("notes").replaceChildren();
    const old = shown;
    shown = fresh(m.sides);
    shown.d = m.d; shown.end = m.t_max; shown.save = m.save;
    shown.t = Array.from({ length: shown.save }, (_, i) => (i / (shown.save - 1)) * m.t_max);
    for (const id of ["exits", "portrait", "spectrum"]) stale(id, true);
    stale("numbers", true);
    if (old) shown.sides.forEach((side, i) => { if (old.sides[i]) { side.portrait = old.sides[i].portrait; side.spectrum = old.sides[i].spectrum; } });
    code("python");
  },
  piece(m) {
    const levels = shown.sides[m.side].levels, level = (levels[m.level] ||= { curves: {}, diverged: 0 });
    level.diverged = m.diverged;
    for (const [name, part] of Object.entries(m.curves)) {
      const kept = (level.curves[name] ||= {});
      for (const [what, values] of Object.entries(part)) {
        const many = what === "runs" ? values : [values];
        kept[what] ||= many.map(() => new Array(shown.save).fill(null));
        many.forEach((one, r) => m.t.forEach((t, i) => { if (kept[what][r]) kept[what][r][indexOf(t)] = one[i]; }));
      }
    }
    if (!shown.running) $("status").textContent = "Running…";
    shown.running = shown.dirty = true;
  },
  numbers(m) { shown.sides[m.side].numbers = m.levels; table(); summary(); },
  exits(m) { shown.sides[m.side].exits = m; drawExits(); summary(); },
  portrait(m) { shown.sides[m.side].portrait = m; drawPortrait(); },
  spectrum(m) { shown.sides[m.side].spectrum = m; drawSpectrum(); },
  empty(m) { shown.sides.forEach((side) => { side[m.view] = null; }); nothing(m.view, m.text); },
  note(m) { $("notes").append(element("li", { textContent: m.text })); },
  done() { $("status").textContent = "Finished."; document.body.dataset.done = "yes"; },
  error(m) { problem(m.text); },
  died(m) { problem(m.text); $("status").textContent = "The simulation's process ended."; },
  file(m) { file = m.name; },
};

const stale = (id, is) => (document.getElementById(`plot-${id}`) || $(id)).classList.toggle("stale", is);

// A view without anything to draw, and what stood beside it, gone.
function nothing(view, words) {
  empty(`plot-${view}`, words);
  stale(view, false);
  $(`${view}-text`).textContent = "";
  if (view === "portrait") { $("portrait-key").textContent = ""; for (const id of ["portrait-more", "plane-x", "plane-y", "plane-side"]) $(id).hidden = true; }
}

function problem(words) {
  const name = (/^(\w+) must/.exec(words) || [])[1];
  for (const box of name ? document.querySelectorAll(`[id="${name}"], [id="A-${name}"], [id="B-${name}"], [id$="-optimiser-${name}"]`) : []) { box.classList.add("wrong"); box.setAttribute("aria-invalid", "true"); }
  $("error").textContent = words; $("error").hidden = false; $("status").textContent = "Not run."; }

function connect() {
  if (socket && socket.readyState <= WebSocket.OPEN) return;
  socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/socket${query}`);
  socket.binaryType = "blob";
  socket.addEventListener("open", () => { ask(true); });
  socket.addEventListener("message", ({ data }) => {
    if (data instanceof Blob) { download(data); return; }
    const m = JSON.parse(data);
    if (m.job !== null && m.job !== undefined && m.job !== job) return;
    if (answers[m.kind]) answers[m.kind](m);
  });
  socket.addEventListener("close", ({ code, reason }) => {
    problem(reason || "The connection to the server is closed. Move a slider, or reload, to open it again.");
    $("status").textContent = code === 4000 ? "Resting. Move a slider to go on." : "Not connected.";
  });
}

// ---- drawing ----

const sideColour = (i) => colour(i ? "b" : "a");
const levelColour = (i, level) => (shown.sides.length > 1 ? sideColour(i) : { chain: colour("a"), ode: colour("ode"), sde: colour("sde"), mean_field: colour("mf") }[level]);

function lines(name) {
  const made = [];
  shown.sides.forEach((side, i) => {
    const of = (level) => side.levels[level] && side.levels[level].curves[name];
    const sde = of("sde"), chain = of("chain"), none = new Array(shown.save).fill(null);
    const tone = levelColour(i, "sde");
    made.push({ values: sde ? sde.low[0] : none, colour: faded(tone, .9), width: 1, dash: DASHES.sde, band: faded(tone, .16) });
    made.push({ values: sde ? sde.high[0] : none, colour: faded(tone, .9), width: 1, dash: DASHES.sde });
    for (let r = 0; r < 24; r += 1) made.push({ values: chain && chain.runs[r] ? chain.runs[r] : none, colour: faded(levelColour(i, "chain"), .3), width: .8 });
    made.push({ values: chain ? chain.mean[0] : none, colour: levelColour(i, "chain"), width: 2.4 });
    for (const level of ["ode", "mean_field"]) made.push({ values: of(level) ? of(level).mean[0] : none, colour: levelColour(i, level), width: 1.9, dash: DASHES[level] });
  });
  return made;
}

function choices() {
  const names = [...new Set(shown.sides.flatMap((side) => Object.values(side.levels).flatMap((level) => Object.keys(level.curves))))];
  for (const id of ["left", "right"]) {
    const list = $(id);
    if (names.length && [...list.options].map((o) => o.value).join() !== names.join()) list.replaceChildren(...names.map((name) => element("option", { value: name, textContent: name })));
    if (!names.includes(state[id]) && names.length) state[id] = id === "left" ? "risk" : "largest overlap";
    list.value = state[id];
  }
}

// A line as it is drawn, for legends.
const sample = (tone, dash, width = 1.8, band = false) => `<svg class="line" viewBox="0 0 26 10" aria-hidden="true">${band ? `<rect width="26" height="10" fill="${tone}" opacity=".3"/>` : ""}<line x1="0" x2="26" y1="5" y2="5" stroke="${tone}" stroke-width="${width}" stroke-dasharray="${(dash || []).join(" ")}"/></svg>`;

function drawCurves() {
  choices();
  for (const id of ["left", "right"]) {
    curvePlot(`plot-${id}`, shown.t, lines(state[id]), state[id], state.log, state.logt);
    $(`plot-${id}`).setAttribute("aria-label", `${state[id]} against time; the numbers are in the table below`);
  }
  const keys = [];
  shown.sides.forEach((side, i) => Object.keys(LEVELS).filter((level) => side.levels[level]).forEach((level) => {
    const about = side.levels[level];
    const words = `${shown.sides.length > 1 ? `${SIDES[i]}: ` : ""}${LEVELS[level]}${about.diverged ? ` (${about.diverged} diverged)` : ""}`;
    keys.push(sample(levelColour(i, level), DASHES[level], level === "chain" ? 2.6 : 1.8, level === "sde") + words);
  }));
  const html = keys.map((key) => `<li>${key}</li>`).join("");
  if ($("legend").dataset.html !== html) { $("legend").innerHTML = html; $("legend").dataset.html = html; }
}

function table() {
  const rows = shown.sides.flatMap((side, i) => Object.keys(LEVELS).filter((level) => side.numbers[level]).map((level) => [`${shown.sides.length > 1 ? `${SIDES[i]}, ` : ""}${LEVELS[level].split(",")[0]}`, side.numbers[level]]));
  const names = [...new Set(rows.flatMap(([, numbers]) => Object.keys(numbers)))];
  const head = element("tr", {}, element("th", { scope: "col", textContent: "level" }), ...names.map((name) => element("th", { scope: "col", textContent: name === "t" ? "at t" : name })));
  stale("numbers", false);
  $("numbers").replaceChildren(element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows.map(([level, numbers]) => element("tr", {}, element("th", { scope: "row", textContent: level }), ...names.map((name) => element("td", { textContent: numbers[name] ?? "–" })))))));
}

// The main numbers in sentences: what the figures show, for those who do not see them.
function summary() {
  const many = shown.sides.length > 1;
  const words = shown.sides.map((side, i) => {
    const chain = side.numbers.chain, { exits } = side;
    if (!chain) return "";
    const what = Object.entries(chain).filter(([name]) => name !== "t").map(([name, value]) => `${name} ${value}`).join(", ");
    const half = exits && exits.rows.median[0] !== null ? `, half of them by ${samples(exits.rows.median[0])} samples` : "";
    const left = exits ? ` ${exits.runs - exits.censored} of ${exits.runs} runs have exited${half}.` : "";
    return `${many ? `${SIDES[i]}: ` : ""}${chain.t ? `At t = ${chain.t} the exact chain has, on average, ${what}.` : "All runs of the exact chain diverged."}${left}`;
  });
  $("summary").textContent = words.filter((each) => each).join(" ");
}

const samples = (value) => (value === null ? "–" : value < 1e7 ? Number(value.toPrecision(4)).toLocaleString("en") : value.toExponential(3).replace("e+", "e"));

function exitsTable(exits, side, marks) {
  const interval = (low, high) => (low === null ? "" : high === null ? `beyond ${samples(low)}` : `${samples(low)} to ${samples(high)}`);
  const line = (name, drawing, value, range) => `<tr><th scope="row">${drawing}${name}</th><td>${value}</td><td>${range}</td></tr>`;
  const own = Object.entries(exits.rows).map(([name, [value, low, high]]) => line(name, "", value === null ? "not reached" : `${name === "mean" && exits.censored ? "≥ " : ""}${samples(value)}`, interval(low, high)));
  const theory = marks.map((mark) => line(FORMULAS[mark.name], sample(mark.colour, mark.dash), mark.t === null ? "never" : samples(mark.t * shown.d), ""));
  return element("table", { innerHTML: `<caption>${side}${exits.runs - exits.censored} of ${exits.runs} runs exited</caption><thead><tr><th></th><th scope="col">samples</th><th scope="col">${100 * exits.confidence} % interval</th></tr></thead><tbody>${own.join("")}${theory.join("")}</tbody>` });
}

function drawExits() {
  const there = shown.sides.map((side, i) => [side.exits, i]).filter(([exits]) => exits);
  if (!there.length) return;
  const many = shown.sides.length > 1;
  $("plot-exits").parentElement.classList.toggle("many", many);
  const sides = there.map(([exits, i]) => ({ exited: exits.exited, colour: sideColour(i),
    marks: Object.entries(exits.marks).map(([name, t]) => ({ t, name, colour: many ? sideColour(i) : { ode: colour("ode"), sde: colour("sde"), mean_field: colour("mf") }[name] || colour("b"), dash: { ode: [7, 4], sde: [1, 2], mean_field: [2, 3], quenched: [], noisy_ode: [10, 3], backward: [3, 6] }[name] })) }));
  $("exits-text").replaceChildren(...there.map(([exits, i], at) => exitsTable(exits, many ? `${SIDES[i]}: ` : "", sides[at].marks)));
  if (!sides.some((side) => side.exited.length || side.marks.some((m) => m.t !== null))) empty("plot-exits", `No run has exited up to t = ${short(there[0][0].end)}. A larger t max or a smaller threshold may show some.`);
  else exitPlot("plot-exits", sides, there[0][0].end);
  stale("exits", false);
  $("plot-exits").setAttribute("aria-label", "Histogram of exit times; the table beside it has the numbers");
}

function drawPortrait() {
  const there = shown.sides.map((side, i) => [side.portrait, i]).filter(([view]) => view);
  if (!there.length) return;
  const [view, i] = there.find(([, side]) => SIDES[side] === state.plane_side) || there[0];
  portraitPlot("plot-portrait", view, sideColour(i));
  stale("portrait", view.job !== job);
  $("plane-side").hidden = shown.sides.length < 2;
  $("plane-side").value = SIDES[i];
  for (const [id, now] of [["plane-x", view.x], ["plane-y", view.y]]) {
    $(id).hidden = !view.y;
    $(id).replaceChildren(...view.names.map((name) => element("option", { value: name, textContent: name })));
    $(id).value = now;
  }
  const count = (word) => view.points.filter((point) => point.stability === word).length;
  const marks = Object.entries(MARKS).filter(([word]) => count(word)).map(([word, mark]) => `${mark} ${word}`).join("  ");
  const drawn = view.y ? "dashed: ODE, colour: runs of the chain" : "bars: where runs stand";
  $("portrait-key").textContent = [view.search, marks ? `${marks}; ${drawn}` : drawn].filter((words) => words).join(" ");
  $("portrait-more").hidden = !view.text;
  $("portrait-text").textContent = view.text;
  $("plot-portrait").setAttribute("aria-label", `Flow of the ODE in ${view.x}${view.y ? ` and ${view.y}` : ""}, with ${view.points.length} fixed points, ${count("stable")} of them stable`);
}

function drawSpectrum() {
  const there = shown.sides.map((side, i) => [side.spectrum, i]).filter(([view]) => view);
  if (!there.length) return;
  stale("spectrum", there.some(([view]) => view.job !== job));
  spectrumPlot("plot-spectrum", there.map(([view, i]) => ({ ...view, colour: sideColour(i) })));
  $("spectrum-text").textContent = there.map(([view, i]) => `${shown.sides.length > 1 ? `${SIDES[i]}: ` : ""}at t = ${short(view.t)}, run ${view.run}: ${view.index[0]} negative, ${view.index[1]} null, ${view.index[2]} positive`).join("; ");
  $("plot-spectrum").setAttribute("aria-label", $("spectrum-text").textContent);
}

function all() { if (shown) { drawCurves(); drawExits(); drawPortrait(); drawSpectrum(); } }

function frame() {
  if (shown && shown.dirty) { shown.dirty = false; drawCurves(); }
  requestAnimationFrame(frame);
}

// ---- taking it along ----

function code(which) {
  if (!shown) return "";
  const many = shown.sides.length > 1;
  const words = shown.sides.map((side, i) => (many ? `# Setting ${SIDES[i]}\n` : "") + (which === "python" ? side.python : `${side.command.join("\n")}\n`)).join("\n");
  $("code").textContent = words;
  return words;
}

async function copy(words, button) {
  try { await navigator.clipboard.writeText(words); } catch {
    const area = element("textarea", { value: words });
    document.body.append(area); area.select(); document.execCommand("copy"); area.remove();
  }
  const old = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = old; }, 900);
}

function download(blob) {
  const link = element("a", { href: URL.createObjectURL(blob), download: file || "data" });
  document.body.append(link); link.click(); link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 2000);
}

async function begin() {
  contents = await (await fetch(`controls.json${query}`)).json();
  $("preset").replaceChildren(...Object.entries(contents.presets).map(([name, about]) => element("option", { value: name, textContent: name.replaceAll("_", " "), title: about.summary })));
  const linked = fromLink();
  state = linked || fromScene("phase_retrieval", 0);
  scenes(); build();
  if (!linked) { $("scene").value = "0"; $("look").textContent = contents.presets[state.preset].scenes[0].look; } else $("look").textContent = contents.presets[state.preset].summary;
  const choose = (preset, index) => {
    state = index === "" ? settingOf(preset) : fromScene(preset, Number(index));
    scenes(); build();
    $("scene").value = index;
    $("look").textContent = index === "" ? contents.presets[preset].summary : contents.presets[preset].scenes[index].look;
    if (shown) shown.sides.forEach((side) => { side.portrait = null; side.spectrum = null; });
    for (const id of ["exits", "portrait", "spectrum"]) nothing(id, "Waiting for the first runs.");
    $("numbers").replaceChildren();
    $("summary").textContent = "The main numbers appear when runs have ended.";
    ask();
  };
  $("preset").addEventListener("change", () => choose($("preset").value, "0"));
  $("scene").addEventListener("change", () => choose(state.preset, $("scene").value));
  for (const id of ["left", "right"]) $(id).addEventListener("change", () => { state[id] = $(id).value; toLink(); drawCurves(); });
  for (const id of ["log", "logt"]) $(id).addEventListener("change", () => { state[id] = $(id).checked; toLink(); if (shown) drawCurves(); });
  for (const id of ["plane-x", "plane-y"]) $(id).addEventListener("change", () => { state.plane = [$("plane-x").value, $("plane-y").value]; ask(); });
  $("plane-side").addEventListener("change", () => { state.plane_side = $("plane-side").value; toLink(); drawPortrait(); });
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  $("copy-link").addEventListener("click", (event) => { toLink(); copy(location.href, event.target); });
  $("copy-python").addEventListener("click", (event) => copy(code("python"), event.target));
  $("copy-command").addEventListener("click", (event) => copy(code("command"), event.target));
  for (const button of document.querySelectorAll("[data-export]")) button.addEventListener("click", () => { if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ kind: "export", format: button.dataset.export, left: state.left, right: state.right, log: state.log, logt: state.logt })); });
  const narrow = matchMedia("(max-width: 760px)");
  const settle = () => { if (narrow.matches) $("narrow").append($("controls")); else document.querySelector("main").prepend($("controls")); };
  narrow.addEventListener("change", settle);
  settle();
  new ResizeObserver(() => all()).observe($("views"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
  for (const id of ["exits", "portrait", "spectrum"]) nothing(id, "Waiting for the first runs.");
  connect();
  requestAnimationFrame(frame);
}

begin().catch((reason) => problem(`The page could not start: ${reason.message}`));
