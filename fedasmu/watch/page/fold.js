"use strict";
// A run's lines folded into what the page shows. Memory grows with what is in flight and with the fleet, not with the run.

class Series { // columns that thin themselves out: when full, every second point goes, and of new ones every second stays
  constructor(width, most = 1200) { this.columns = Array.from({ length: width }, () => []); this.most = most; this.stride = 1; this.seen = 0; }
  push(...values) {
    if (this.seen++ % this.stride) return;
    this.columns.forEach((column, at) => column.push(values[at]));
    if (this.columns[0].length < this.most) return;
    this.columns = this.columns.map(column => column.filter((_, at) => at % 2 === 0));
    this.stride *= 2;
  }
}

class Bins { // how many events fell into each stretch of time; the stretches double when there would be too many
  constructor(width, most = 120) { this.width = width; this.most = most; this.counts = []; }
  add(time) {
    while (time / this.width >= this.most) {
      this.counts = Array.from({ length: Math.ceil(this.counts.length / 2) }, (_, at) => (this.counts[2 * at] ?? 0) + (this.counts[2 * at + 1] ?? 0));
      this.width *= 2;
    }
    const at = Math.floor(time / this.width);
    while (this.counts.length <= at) this.counts.push(0);
    this.counts[at] += 1;
  }
}

const KEPT_TASKS = 3000, KEPT_LINES = 200, KEPT_HISTORY = 12; // the last: of each device's tasks

class Fold {
  constructor() {
    this.now = 0;
    this.open = new Map(); // tasks in flight
    this.done = []; // tasks that ended lately
    this.lines = []; // the last events
    this.devices = new Map();
    this.lanes = 6; // of the timeline: it grows with what there is to show, and does not jump back
    this.counts = { started: 0, uploads: 0, stale: 0, refused: 0, lost: 0, fetches: 0, merged: 0, versions: 0 };
    this.uploads = new Bins(10);
    this.staleness = [];
    this.weights = new Series(2);
    this.server = new Series(4); // time, lambda, sigma, iota
    this.device = new Series(3); // time, gamma, upsilon
    this.slots = new Series(2);
    this.rewards = new Series(2);
    this.metrics = new Map(); // uploads -> a row
    this.header = null;
    this.wall = new Map(); // virtual time and uploads of a row -> seconds since 1970
  }

  event(line) {
    let event;
    try { event = JSON.parse(line); } catch { return; }
    if (typeof event?.time !== "number" || typeof event.event !== "string") return;
    this.now = Math.max(this.now, event.time);
    this.lines.push(line);
    if (this.lines.length > 2 * KEPT_LINES) this.lines = this.lines.slice(-KEPT_LINES);
    this[`on_${event.event}`]?.(event);
  }

  at(device) {
    if (!this.devices.has(device)) this.devices.set(device, { device, done: 0, lost: 0, stale: 0, seconds: 0, staleness: 0, last: 0, loss: null, own: null, history: [] });
    return this.devices.get(device);
  }

  on_start(event) {
    this.counts.started += 1;
    this.open.set(event.task, { task: event.task, device: event.device, start: event.time, ask: null, end: null, outcome: "" });
    this.at(event.device).last = event.time;
  }

  on_fetch(event) {
    const task = this.open.get(event.task);
    this.counts.fetches += 1;
    if (event.fresh != null) this.counts.merged += 1;
    if (task) task.ask = event.time;
    this.at(event.device).last = event.time;
  }

  on_upload(event) {
    const task = this.ended(event, event.verdict), device = this.at(event.device);
    this.counts.uploads += 1;
    if (event.verdict in this.counts) this.counts[event.verdict] += 1;
    this.uploads.add(event.time);
    const age = Math.max(0, Math.min(400, Math.round(event.staleness) || 0));
    while (this.staleness.length <= age) this.staleness.push(0);
    this.staleness[age] += 1;
    device.done += 1;
    device.staleness += age;
    device.loss = event.loss;
    if (event.verdict !== "accepted") device.stale += 1;
    if (typeof event.own_accuracy === "number") device.own = event.own_accuracy;
    if (task) {
      device.seconds += event.time - task.start;
      Object.assign(task, { staleness: age, loss: event.loss, own: event.own_accuracy });
    }
    if (typeof event.gamma === "number") this.device.push(event.time, event.gamma, event.upsilon);
    if (typeof event.slot === "number") this.slots.push(event.time, event.slot);
    if (typeof event.reward === "number") this.rewards.push(event.time, event.reward);
  }

  on_lost(event) {
    this.ended(event, "lost");
    this.counts.lost += 1;
    this.at(event.device).lost += 1;
  }

  on_version(event) {
    this.counts.versions = event.version;
    for (const weight of event.weights ?? []) this.weights.push(event.time, weight);
    if (typeof event.lambda === "number") this.server.push(event.time, event.lambda, event.sigma, event.iota);
  }

  ended(event, outcome) {
    const task = this.open.get(event.task);
    this.at(event.device).last = event.time;
    if (!task) return null;
    this.open.delete(event.task);
    this.done.push(Object.assign(task, { end: event.time, outcome }));
    const { history } = this.at(event.device);
    history.push(task);
    if (history.length > KEPT_HISTORY) history.shift();
    if (this.done.length > 2 * KEPT_TASKS) this.done = this.done.slice(-KEPT_TASKS);
    return task;
  }

  row(line) {
    const cells = line.split(",");
    if (!this.header) { // the column after the uploads is headed by the run's metric
      const metric = cells.indexOf("uploads") + 1;
      [this.metric, this.header] = [cells[metric], cells.map((name, at) => at === metric ? "score" : name)];
      return;
    }
    const row = Object.fromEntries(this.header.map((name, at) => [name, cells[at] === "" || cells[at] === undefined ? null : Number(cells[at])]));
    this.newest = row;
    if (row.subset > 0) return; // of a part of the test data: not a point of the curve
    this.metrics.set(`${row.time} ${row.uploads}`, row);
    this.latest = row;
  }

  moment(line) {
    const [uploads, time, wall] = line.split(",").map(Number);
    if (Number.isFinite(wall)) this.wall.set(`${time} ${uploads}`, wall);
  }

  take({ events, metrics, wall = "" }) {
    for (const line of events.split("\n")) if (line) this.event(line);
    for (const line of metrics.split("\n")) if (line) this.row(line);
    for (const line of wall.split("\n")) if (line) this.moment(line);
  }

  minutes() { // of real time, from the first evaluation that is dated on; null where nobody knows
    const known = [...this.metrics.keys()].map(key => this.wall.get(key) ?? null), first = known.find(wall => wall !== null);
    return known.map(wall => wall === null ? null : (wall - first) / 60);
  }

  column(name) { return [...this.metrics.values()].map(row => row[name] ?? null); }
}
