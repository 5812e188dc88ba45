"use strict";
// The timeline: one lane a device. Only what is in view is drawn, so its cost does not grow with the run.

const LANE = 15, TOP = 46, SIDE = 46; // pixels: a lane, the versions above, the device numbers on the left
const PHASES = [
  ["download", "download"], ["training", "training"], ["request", "request for a fresh model"],
  ["merged", "training after the merge"], ["upload", "upload"], ["discard", "discarded", "✕"], ["lost", "lost", "✕"],
];

async function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed.data), letter => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const buffer = await new Response(stream).arrayBuffer(), columns = { until: packed.until };
  const types = { f8: Float64Array, f4: Float32Array, i4: Int32Array, u1: Uint8Array };
  let offset = 0;
  for (const [name, type, length] of packed.columns) {
    columns[name] = new types[type](buffer, offset, length);
    offset += columns[name].byteLength;
  }
  return columns;
}

// How many elements of a sorted list are below or at the value.
function countUpTo(value, length, at) {
  let low = 0, high = length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (at(middle) <= value) low = middle + 1; else high = middle;
  }
  return low;
}

function niceStep(rough) {
  const unit = 10 ** Math.floor(Math.log10(rough));
  return unit * [1, 2, 5, 10].find(factor => unit * factor >= rough);
}

class Timeline {
  constructor() {
    this.root = document.getElementById("timeline");
    this.canvas = document.getElementById("lanes");
    this.overview = document.getElementById("overview");
    this.tip = document.getElementById("tip");
    this.busyOnly = document.getElementById("busy-only");
    this.from = 0; this.to = 1; this.hovered = -1; this.pointers = new Map();
    document.getElementById("phases").append(...PHASES.map(([name, label, mark]) => {
      const sign = element("i", { className: mark ? "mark" : "" }, mark ?? "");
      sign.style.setProperty("--phase", `var(--${name})`);
      return element("li", {}, sign, label);
    }));
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.root);
  }

  async show(packed) {
    const showing = this.showing = packed, tasks = await unpack(packed);
    if (showing !== this.showing) return; // another one was chosen meanwhile
    this.tasks = tasks;
    this.lanes = new Map(); // device -> its tasks, in order
    tasks.device.forEach((device, task) => {
      if (!this.lanes.has(device)) this.lanes.set(device, []);
      this.lanes.get(device).push(task);
    });
    this.devices = [...this.lanes.keys()].sort((a, b) => tasks.speeds[a] - tasks.speeds[b] || a - b);
    this.root.style.setProperty("--lanes", `${TOP + this.devices.length * LANE + 4}px`); // a small fleet takes less room
    this.busy = this.countBusy(600);
    this.hovered = -1;
    // To begin with a part that can be read: a few tasks on every lane that is busy.
    const lengths = [...tasks.end].sort((a, b) => a - b), usual = lengths[lengths.length >> 1] || tasks.until;
    this.look(0, Math.min(tasks.until, 6 * usual));
  }

  countBusy(bins) {
    const { start, end, until } = this.tasks, change = new Float64Array(bins + 1);
    const bin = time => Math.min(bins - 1, Math.floor(time / until * bins));
    start.forEach((begun, task) => { change[bin(begun)] += 1; change[bin(begun + end[task]) + 1] -= 1; });
    let sum = 0;
    return change.map(step => (sum += step)).slice(0, bins);
  }

  look(from, to) {
    const { until } = this.tasks, width = Math.min(Math.max(to - from, until * 1e-5), until);
    this.from = Math.min(Math.max(from, 0), until - width);
    this.to = this.from + width;
    this.draw();
  }

  zoom(factor, at = (this.from + this.to) / 2) {
    this.look(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  pan(share) {
    const step = (this.to - this.from) * share;
    this.look(this.from + step, this.to + step);
  }

  get width() { return this.root.clientWidth - SIDE; }
  x(time) { return SIDE + (time - this.from) / (this.to - this.from) * this.width; }
  time(x) { return this.from + (x - SIDE) / this.width * (this.to - this.from); }

  // A device's tasks in view.
  inView(device) {
    const { start, end } = this.tasks, lane = this.lanes.get(device);
    let first = Math.max(countUpTo(this.from, lane.length, at => start[lane[at]]) - 1, 0);
    if (start[lane[first]] + end[lane[first]] < this.from) first += 1;
    return lane.slice(first, countUpTo(this.to, lane.length, at => start[lane[at]]));
  }

  draw() {
    if (!this.tasks || this.width < 1) return;
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => { this.drawLanes(); this.drawOverview(); });
  }

  context(canvas) {
    const { clientWidth: width, clientHeight: height } = canvas, scale = devicePixelRatio;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale); canvas.height = Math.round(height * scale);
    }
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = "11px system-ui";
    context.textBaseline = "middle";
    return [context, width, height];
  }

  drawLanes() {
    const [context, width, height] = this.context(this.canvas);
    this.shown = this.busyOnly.checked ? this.devices.filter(device => this.inView(device).length) : this.devices;
    const whole = TOP + this.shown.length * LANE;
    document.getElementById("spacer").style.height = `${Math.max(whole - height, 0)}px`;
    const scroll = this.root.scrollTop, first = Math.floor(scroll / LANE);
    const last = Math.min(this.shown.length, Math.ceil((scroll + height - TOP) / LANE));
    const paint = Object.fromEntries(["text", "muted", "line", "card", ...PHASES.map(([name]) => name)].map(name => [name, colours.get(name)]));
    context.save();
    context.beginPath(); context.rect(0, TOP, width, height - TOP); context.clip();
    for (let row = first; row < last; row++) {
      const top = TOP + row * LANE - scroll;
      context.fillStyle = paint.line;
      context.fillRect(SIDE, top + LANE - 1, width - SIDE, 0.5);
      context.fillStyle = paint.muted;
      context.textAlign = "right";
      context.fillText(String(this.shown[row]), SIDE - 8, top + LANE / 2);
    }
    context.beginPath(); context.rect(SIDE, TOP, width - SIDE, height - TOP); context.clip();
    for (let row = first; row < last; row++) this.drawLane(context, this.shown[row], TOP + row * LANE - scroll, paint);
    context.restore();
    const versions = this.drawVersions(context, width, paint);
    if (this.hovered >= 0) this.drawHovered(context, paint);
    const seen = this.shown.reduce((sum, device) => sum + this.inView(device).length, 0);
    document.getElementById("window").textContent =
      `${short(this.from)} s to ${short(this.to)} s · ${seen.toLocaleString("en")} tasks · ${versions.toLocaleString("en")} new versions`;
  }

  drawLane(context, device, top, paint) {
    const { start, down, ask, answer, up, end, fresh, outcome } = this.tasks;
    let drawnTo = -1;
    for (const task of this.inView(device)) {
      const begun = start[task], right = this.x(begun + end[task]), left = this.x(begun);
      if (right - left < 1) { // too small to be told apart: one line a pixel
        if (right > drawnTo) { context.fillStyle = fresh[task] >= 0 ? paint.merged : paint.training; context.fillRect(left, top + 2, 1, LANE - 5); drawnTo = left + 1; }
        if (outcome[task] === 0 || outcome[task] === 4) continue;
      } else {
        const bar = (from, to, colour, least = 0) => {
          const a = this.x(begun + from), b = Math.max(this.x(begun + to), a + least);
          context.fillStyle = paint[colour];
          context.fillRect(a, top + 2, b - a, LANE - 5);
        };
        const least = right - left > 14 ? 2 : 0, asked = !isNaN(ask[task]), stop = isNaN(up[task]) ? end[task] : up[task];
        bar(0, stop, "training");
        if (asked && fresh[task] >= 0) bar(answer[task], stop, "merged");
        bar(0, down[task], "download", least);
        if (asked) bar(ask[task], answer[task], "request", least * 1.5);
        if (!isNaN(up[task])) bar(Math.min(up[task], end[task] - least * (this.to - this.from) / this.width), end[task], "upload");
      }
      if (outcome[task] >= 1 && outcome[task] <= 3) {
        context.fillStyle = paint[outcome[task] === 3 ? "lost" : "discard"];
        context.textAlign = "center";
        context.font = "bold 13px system-ui";
        context.fillText("✕", right, top + LANE / 2);
        context.font = "11px system-ui";
      }
    }
  }

  // Time and versions above the lanes; where they are far enough apart, each version has its number.
  drawVersions(context, width, paint) {
    const { versions } = this.tasks;
    context.fillStyle = paint.card;
    context.fillRect(0, 0, width, TOP);
    context.fillStyle = paint.muted;
    context.textAlign = "center";
    const step = niceStep((this.to - this.from) / (this.width / 90));
    for (let time = Math.ceil(this.from / step) * step; time <= this.to; time += step) {
      const text = `${short(+time.toPrecision(9))} s`, half = context.measureText(text).width / 2;
      context.fillText(text, Math.min(Math.max(this.x(time), SIDE + half), width - half - 2), 9);
    }
    context.textAlign = "right";
    context.fillText("version", SIDE - 4, 30);
    const count = limit => countUpTo(limit, versions.length, at => versions[at]);
    const first = countUpTo(this.from - 1e-9, versions.length, at => versions[at]), last = count(this.to);
    context.textAlign = "center";
    let labelled = SIDE, drawn = -Infinity;
    for (let at = first; at < last; at++) {
      const x = this.x(versions[at]);
      if (x - drawn < 0.7) continue;
      drawn = x;
      context.fillStyle = colours.get("accent");
      context.fillRect(x - 0.5, 36, 1, 10);
      const half = context.measureText(String(at + 1)).width / 2;
      if (x - half > labelled + 6 && x + half < width) {
        context.fillText(String(at + 1), x, 28);
        labelled = x + half;
      }
    }
    context.fillStyle = paint.line;
    context.fillRect(0, TOP - 1, width, 1);
    return last - first;
  }

  // The versions that the task under the pointer began from, fetched and became, and how far the server went meanwhile.
  drawHovered(context, paint) {
    const { start, end, ask, base, fresh, version, versions, device } = this.tasks, task = this.hovered;
    const row = this.shown.indexOf(device[task]);
    if (row < 0) return;
    const lane = TOP + row * LANE - this.root.scrollTop, made = number => number > 0 ? versions[number - 1] : 0;
    const finish = start[task] + end[task], left = Math.max(this.x(made(base[task])), SIDE);
    context.fillStyle = colours.faint("accent", 0.18);
    context.fillRect(left, 18, Math.max(this.x(finish) - left, 1), 28);
    const line = (time, colour) => {
      if (time < this.from || time > this.to) return;
      context.fillStyle = colour;
      context.fillRect(this.x(time) - 0.75, 18, 1.5, Math.max(lane - 16, 28));
    };
    line(start[task], paint.download);
    if (fresh[task] >= 0) line(start[task] + ask[task], paint.request);
    if (version[task] >= 0) line(made(version[task]), paint.upload);
    context.strokeStyle = paint.text;
    context.lineWidth = 1.5;
    if (lane >= TOP) context.strokeRect(this.x(start[task]) - 1, lane + 1, this.x(finish) - this.x(start[task]) + 2, LANE - 3);
  }

  drawOverview() {
    const [context, width, height] = this.context(this.overview);
    const most = this.busy.reduce((a, b) => Math.max(a, b), 1), { until } = this.tasks;
    context.fillStyle = colours.get("training");
    this.busy.forEach((count, at) => {
      const tall = count / most * (height - 8);
      context.fillRect(at / this.busy.length * width, height - tall, width / this.busy.length + 0.5, tall);
    });
    const left = this.from / until * width, wide = Math.max((this.to - this.from) / until * width, 3);
    context.fillStyle = colours.faint("accent", 0.22);
    context.fillRect(left, 0, wide, height);
    context.strokeStyle = colours.get("accent");
    context.strokeRect(left + 0.5, 0.5, Math.max(wide - 1, 2), height - 1);
  }

  taskAt(x, y) {
    if (x < SIDE || y < TOP) return -1;
    const device = this.shown?.[Math.floor((y - TOP + this.root.scrollTop) / LANE)];
    if (device === undefined) return -1;
    const { start, end } = this.tasks, time = this.time(x), near = 2 * (this.to - this.from) / this.width;
    return this.inView(device).find(task => start[task] - near <= time && time <= start[task] + end[task] + near) ?? -1;
  }

  describe(task) {
    const t = this.tasks, seconds = (from, to) => `${short(to[task] - (from ? from[task] : 0))} s`, asked = !isNaN(t.ask[task]);
    const known = (label, value) => isNaN(value) ? [] : [`${label} ${short(value)}`];
    const lines = [`device ${t.device[task]}, task ${task}: ${report.outcomes[t.outcome[task]]}`,
      `began at ${short(t.start[task])} s from version ${t.base[task]}`, `download ${seconds(null, t.down)}`];
    if (asked) lines.push(t.fresh[task] >= 0 ? `asked after ${seconds(t.down, t.ask)}, merged version ${t.fresh[task]}` : `asked after ${seconds(t.down, t.ask)}, nothing newer`);
    if (!isNaN(t.up[task])) lines.push(`training ended after ${seconds(null, t.up)}`, `upload ${seconds(t.up, t.end)}`);
    if (t.version[task] >= 0) lines.push(`became part of version ${t.version[task]}`);
    lines.push([...known("staleness", t.staleness[task] < 0 ? NaN : t.staleness[task]), ...known("α", t.alpha[task]), ...known("slot", t.slot[task] < 0 ? NaN : t.slot[task]), ...known("β", t.beta[task]), ...known("reward", t.reward[task])].join("  "));
    return lines.filter(Boolean).join("\n");
  }

  hover(event) {
    const box = this.root.getBoundingClientRect();
    const task = this.tasks ? this.taskAt(event.clientX - box.left, event.clientY - box.top) : -1;
    this.tip.hidden = task < 0;
    if (task >= 0) {
      this.tip.textContent = this.describe(task);
      const { offsetWidth: width, offsetHeight: height } = this.tip;
      this.tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
      this.tip.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 18}px`;
    }
    if (task !== this.hovered) { this.hovered = task; this.draw(); }
  }

  listen() {
    const { root } = this, left = () => root.getBoundingClientRect().left;
    const on = (target, kind, handle, options) => target.addEventListener(kind, handle, options);
    on(document.getElementById("zoom-in"), "click", () => this.zoom(0.5));
    on(document.getElementById("zoom-out"), "click", () => this.zoom(2));
    on(document.getElementById("zoom-all"), "click", () => this.look(0, this.tasks.until));
    on(this.busyOnly, "change", () => this.draw());
    on(root, "scroll", () => this.draw());
    on(root, "wheel", event => {
      const sideways = event.shiftKey ? event.deltaY : Math.abs(event.deltaX) > Math.abs(event.deltaY) ? event.deltaX : 0;
      if (!event.ctrlKey && !event.metaKey && !sideways) return; // up and down is scrolling
      event.preventDefault();
      if (sideways) this.pan(sideways / this.width);
      else this.zoom(1.002 ** event.deltaY, this.time(event.clientX - left()));
    }, { passive: false });
    on(root, "keydown", event => {
      const act = {
        ArrowLeft: () => this.pan(-0.2), ArrowRight: () => this.pan(0.2), "+": () => this.zoom(0.5), "=": () => this.zoom(0.5),
        "-": () => this.zoom(2), 0: () => this.look(0, this.tasks.until), Home: () => this.pan(-1e9), End: () => this.pan(1e9),
      }[event.key];
      if (act && !event.ctrlKey && !event.metaKey) { event.preventDefault(); act(); }
    });
    on(root, "pointerdown", event => {
      this.pointers.set(event.pointerId, event.clientX);
      root.setPointerCapture(event.pointerId);
      root.classList.add("dragging");
    });
    on(root, "pointermove", event => {
      if (!this.pointers.has(event.pointerId)) { this.hover(event); return; }
      const before = [...this.pointers.values()], moved = event.clientX - this.pointers.get(event.pointerId);
      this.pointers.set(event.pointerId, event.clientX);
      const now = [...this.pointers.values()];
      if (now.length === 2) { // a pinch
        const middle = this.time((now[0] + now[1]) / 2 - left());
        this.zoom(Math.abs(before[0] - before[1]) / Math.max(Math.abs(now[0] - now[1]), 1), middle);
      } else this.pan(-moved / this.width);
    });
    for (const kind of ["pointerup", "pointercancel"]) {
      on(root, kind, event => { this.pointers.delete(event.pointerId); root.classList.toggle("dragging", this.pointers.size > 0); });
    }
    on(root, "pointerleave", () => { this.tip.hidden = true; this.hovered = -1; this.draw(); });
    const jump = event => {
      if (event.buttons === 0) return;
      const box = this.overview.getBoundingClientRect(), width = this.to - this.from;
      const middle = (event.clientX - box.left) / box.width * this.tasks.until;
      this.look(middle - width / 2, middle + width / 2);
    };
    on(this.overview, "pointerdown", event => { this.overview.setPointerCapture(event.pointerId); jump(event); });
    on(this.overview, "pointermove", jump);
  }
}
