"use strict";
// A learning rate drawn as a line over time: the pointer, or the arrow keys, set its values, and the text of a schedule comes out.

const RATE_POINTS = 33;  // values of the line at equal times from 0 to the end

class RateLine {
  constructor(control, get, changed) {
    this.control = control; this.get = get; this.changed = changed; this.chosen = 0; this.before = null;
    this.canvas = element("canvas", { className: "rate", tabIndex: 0, hidden: true, role: "img" });
    this.canvas.setAttribute("aria-label", `${control.name} over time: draw it with the pointer, or choose a time with the left and right arrows and change the value with up and down`);
    this.canvas.addEventListener("pointerdown", (event) => { this.canvas.setPointerCapture(event.pointerId); this.before = null; this.touch(event); });
    this.canvas.addEventListener("pointermove", (event) => { if (this.canvas.hasPointerCapture(event.pointerId)) this.touch(event); });
    this.canvas.addEventListener("pointerup", () => this.changed(this.text()));
    this.canvas.addEventListener("keydown", (event) => this.press(event));
    this.read();
  }

  get end() { return Number(state.t_max) || 1; }

  // Shares of the height, from 0 at the low end of the slider to 1 at its high end.
  share(value) {
    const { low, high } = this.control, at = isLog(this.control) ? Math.log(Math.max(value, 1e-300) / low) / Math.log(high / low) : (value - low) / (high - low);
    return Math.min(1, Math.max(0, at));
  }

  value(share) {
    const { low, high } = this.control;
    return Number((isLog(this.control) ? low * (high / low) ** share : low + share * (high - low)).toPrecision(3));
  }

  // The line of the present number, or of a text that the page has written; other schedules leave it as it is.
  read() {
    const given = this.get(), number = Number(given ?? this.control.default), written = /^linear\((\[[^\]]*\]), (\[[^\]]*\])\)$/.exec(given ?? "");
    if (written) {
      const [times, values] = [JSON.parse(written[1]), JSON.parse(written[2])];
      this.shares = this.times().map((t) => {
        const next = times.findIndex((each) => each >= t), i = next < 0 ? times.length - 1 : Math.max(next, 1);
        const part = Math.min(1, Math.max(0, (t - times[i - 1]) / (times[i] - times[i - 1] || 1)));
        return this.share(values[i - 1] + part * (values[i] - values[i - 1]));
      });
    } else if (Number.isFinite(number) || !this.shares) this.shares = new Array(RATE_POINTS).fill(Number.isFinite(number) ? this.share(number) : .5);
    this.draw();
  }

  times() { return Array.from({ length: RATE_POINTS }, (_, i) => Number((this.end * i / (RATE_POINTS - 1)).toPrecision(4))); }

  // The number of a flat line, and otherwise a schedule, without the points between which it is straight.
  text() {
    const times = this.times(), values = this.shares.map((share) => this.value(share));
    if (values.every((value) => value === values[0])) return values[0];
    const straight = (i) => Math.abs(values[i] - (values[i - 1] + values[i + 1]) / 2) <= 1e-3 * values[i];
    const kept = times.map((_, i) => i).filter((i) => i === 0 || i === RATE_POINTS - 1 || !straight(i));
    return `linear([${kept.map((i) => times[i]).join(", ")}], [${kept.map((i) => values[i]).join(", ")}])`;
  }

  // Every point between the last place of the pointer and this one is set: a fast stroke leaves none out.
  touch(event) {
    const box = this.canvas.getBoundingClientRect(), clip = (x) => Math.min(1, Math.max(0, x));
    const now = { at: clip((event.clientX - box.left) / box.width) * (RATE_POINTS - 1), share: clip(1 - (event.clientY - box.top) / box.height) };
    const from = this.before || now, [first, last] = from.at <= now.at ? [from, now] : [now, from];
    for (let i = Math.ceil(first.at - .5); i <= Math.floor(last.at + .5); i += 1) {
      const part = last.at > first.at ? clip((i - first.at) / (last.at - first.at)) : 1;
      this.shares[i] = first.share + part * (last.share - first.share);
    }
    this.before = now; this.chosen = Math.round(now.at);
    this.draw();
  }

  press(event) {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, .02], ArrowDown: [0, -.02] }[event.key];
    if (!steps) return;
    event.preventDefault();
    this.chosen = Math.min(RATE_POINTS - 1, Math.max(0, this.chosen + steps[0]));
    this.shares[this.chosen] = Math.min(1, Math.max(0, this.shares[this.chosen] + steps[1]));
    this.draw();
    if (steps[1]) this.changed(this.text());
  }

  draw() {
    const { canvas } = this, sharp = window.devicePixelRatio || 1, [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (canvas.hidden || !width) return;
    canvas.width = width * sharp; canvas.height = height * sharp;
    const pen = canvas.getContext("2d"), x = (i) => i / (RATE_POINTS - 1) * width, y = (share) => height - 2 - share * (height - 4);
    pen.scale(sharp, sharp);
    pen.fillStyle = colour("faint"); pen.font = "11px sans-serif";
    pen.fillText(short(this.control.high), 3, 11); pen.fillText(short(this.control.low), 3, height - 3);
    pen.textAlign = "right"; pen.fillText(`t = ${short(this.end)}`, width - 3, height - 3);
    pen.strokeStyle = colour("accent"); pen.lineWidth = 2; pen.lineJoin = "round";
    pen.beginPath();
    this.shares.forEach((share, i) => { if (i) pen.lineTo(x(i), y(share)); else pen.moveTo(x(i), y(share)); });
    pen.stroke();
    pen.fillStyle = colour("accent"); pen.beginPath(); pen.arc(x(this.chosen), y(this.shares[this.chosen]), 3.5, 0, 7); pen.fill();
  }
}
