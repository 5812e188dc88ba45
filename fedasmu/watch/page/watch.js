"use strict";
// Everything that comes from a run is set as text, never as HTML.

const $ = id => document.getElementById(id);
const REDRAW = 500; // milliseconds between two drawings at least
let fold = new Fold(), charts = {}, chosen = new URLSearchParams(location.search).get("run") ?? "", source = null;
let real = false, served = null; // whether the curves are over real time; how the service stands, if it is one
let metric = "score"; // what the curves that are drawn are headed
let standings = [], drawing = false, studyChart = null;
const curves = new Map(); // of a study's runs: label -> { last, time, score, metric, latest }

function panel(parent, key, title, labels, names, options) {
  const place = element("div", { className: "plot", role: "img", ariaLabel: title });
  $(parent).append(element("figure", {}, element("h3", {}, title), place));
  charts[key] = new LiveChart(place, labels, names, options);
}

function buildCurves() {
  for (const key of ["score", "loss"]) charts[key]?.destroy();
  metric = fold.metric ?? "score";
  const time = real ? "real time (min)" : "time (s)";
  charts.score = new LiveChart($("score"), [time, metric], [metric, "mean of the devices", "their worst tenth"]);
  charts.loss = new LiveChart($("loss"), [time, "loss"], ["test", "training"]);
}

function build() {
  buildCurves();
  panel("panels", "rate", "Uploads a minute", ["time (s)", "uploads a minute"], ["uploads"], { steps: true });
  panel("panels", "bytes", "Sent", ["time (s)", "MB"], ["to devices", "to the server"]);
  panel("panels", "ages", "Staleness of the uploads", ["versions behind", "uploads"], ["uploads"], { steps: true });
  panel("panels", "weights", "Weight of an upload", ["time (s)", "weight"], ["α"], { dots: true });
}

function buildLearned() {
  panel("learned-panels", "server", "Controls of the server", ["time (s)", "value"], ["λ", "σ", "ι"], { dots: true });
  panel("learned-panels", "device", "Controls of the devices", ["time (s)", "value"], ["γ", "υ"], { dots: true });
  panel("learned-panels", "slots", "When devices ask", ["time (s)", "slot"], ["slot"], { dots: true });
  panel("learned-panels", "rewards", "What a merge earned", ["time (s)", "reward"], ["reward"], { dots: true });
}

function realTime() { // between the first and the last evaluation
  const known = fold.minutes().filter(minute => minute !== null);
  return known.length ? `${short(known.at(-1))} min` : "–";
}

function showNumbers(run) {
  const { counts, newest: latest } = fold, budget = Number(run?.budget) || 0;
  $("progress").value = budget ? Math.min(1, counts.uploads / budget) : 0;
  const numbers = {
    uploads: budget ? `${counts.uploads.toLocaleString("en")} of ${budget.toLocaleString("en")}` : counts.uploads,
    [latest?.reports ? `${metric}, by devices` : `${metric}${latest?.subset > 0 ? `, on ${latest.subset} test examples` : ""}`]: latest ? short(latest.score) : "–", loss: latest ? short(latest.loss) : "–",
    [served ? "served for" : "virtual time"]: `${short(fold.now)} s`, "real time": realTime(), version: short(counts.versions), "in flight": fold.open.size,
    "fresh models merged": short(counts.merged), "stale / refused / lost": `${counts.stale} / ${counts.refused} / ${counts.lost}`,
  };
  $("numbers").replaceChildren(...Object.entries(numbers).map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, String(value)))));
}

function showCharts() {
  const time = fold.column("time");
  const minutes = fold.minutes(), dated = minutes.map(minute => !real || minute !== null); // those that are not stay out
  const over = (real ? minutes : time).filter((_, at) => dated[at]), shown = name => fold.column(name).filter((_, at) => dated[at]);
  charts.score.set(over, ...["score", "device_accuracy", "worst_tenth"].map(shown));
  charts.loss.set(over, ...["loss", "train_loss"].map(shown));
  $("clock").disabled = !minutes.some(minute => minute !== null);
  charts.bytes.set(time, ...["bytes_down", "bytes_up"].map(name => fold.column(name).map(bytes => bytes / 1e6)));
  const { counts, width } = fold.uploads;
  charts.rate.set([...counts.keys(), counts.length].map(at => at * width), [...counts, counts.at(-1) ?? 0].map(count => count * 60 / width));
  const ages = fold.staleness.slice(1);
  charts.ages.set([...ages.keys(), ages.length].map(at => at + 0.5), [...ages, ages.at(-1) ?? 0]);
  charts.weights.set(...fold.weights.columns);
  if (!fold.slots.seen && !fold.server.seen) return;
  if ($("learned").hidden) { $("learned").hidden = false; buildLearned(); }
  for (const key of ["server", "device", "slots", "rewards"]) charts[key].set(...fold[key].columns);
}

const ROWS = 60;
const DEVICE = { device: one => one.device, "in flight": one => one.busy ? "yes" : "", done: one => one.done, lost: one => one.lost,
  "stale or refused": one => one.stale, "mean staleness": one => one.done ? short(one.staleness / one.done) : "–",
  "mean seconds": one => one.done ? short(one.seconds / one.done) : "–", loss: one => short(one.loss), "own accuracy": one => one.own === null ? "–" : short(one.own), "last seen": one => `${short(one.last)} s` };

function showDevices() {
  const busy = new Set([...fold.open.values()].map(task => task.device)), wanted = $("find").value.trim();
  const found = [...fold.devices.values()].filter(one => !wanted || String(one.device).includes(wanted));
  found.sort((a, b) => b.last - a.last);
  const rows = found.slice(0, ROWS).map(one => element("tr", {}, ...Object.values(DEVICE).map(cell => element("td", {}, String(cell({ ...one, busy: busy.has(one.device) }))))));
  $("devices").replaceChildren(element("thead", {}, element("tr", {}, ...Object.keys(DEVICE).map(name => element("th", { scope: "col" }, name)))), element("tbody", {}, ...rows));
  $("devices-note").textContent = `${Math.min(found.length, ROWS)} of ${found.length} devices, the ones seen last first.`;
}

const SEAT = { device: one => one.device, name: one => one.name, state: one => one.state, "last seen": one => one.seen == null ? "–" : `${short(one.seen)} s ago`,
  task: one => one.task ?? "", "lease left": one => one.lease == null ? "" : `${short(one.lease)} s`, examples: one => one.examples,
  "MB sent to it": one => short(one.bytes_down / 1e6), "MB from it": one => short(one.bytes_up / 1e6) };

function showService() {
  $("service").hidden = !served;
  if (!served) return;
  const { devices } = served, states = {}, wanted = $("find").value.trim();
  for (const { state } of devices) states[state] = (states[state] ?? 0) + 1;
  const refusals = Object.entries(served.refusals ?? {}).map(([code, count]) => `${count} ${code}`).join(", ");
  const numbers = { service: served.state, devices: Object.entries(states).map(([state, count]) => `${count} ${state}`).join(", ") || "none yet",
    requests: short(served.requests), "refused requests": refusals || "none", "disk free": served.disk_full ? "full" : `${short(served.disk_free / 1e9)} GB`,
    "ledger since checkpoint": `${short(served.ledger_bytes / 1e6)} MB`, "recovered at start": `${short(served.recovered_acts)} acts`,
    written: new Date(1000 * served.at).toLocaleTimeString() };
  $("service-numbers").replaceChildren(...Object.entries(numbers).map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, String(value)))));
  const found = devices.filter(one => !wanted || String(one.device).includes(wanted) || String(one.name).includes(wanted));
  const rows = found.slice(0, ROWS).map(one => element("tr", {}, ...Object.values(SEAT).map(cell => element("td", {}, String(cell(one))))));
  $("seats").replaceChildren(element("thead", {}, element("tr", {}, ...Object.keys(SEAT).map(name => element("th", { scope: "col" }, name)))), element("tbody", {}, ...rows));
  $("seats-note").textContent = `${rows.length} of ${found.length} devices that have enrolled.`;
}

function draw() {
  drawing = false;
  const run = standings.find(one => one.label === chosen) ?? (standings.length === 1 ? standings[0] : undefined);
  $("one").hidden = !run;
  if (!run) return;
  if (!charts.score) build();
  else if (fold.metric && fold.metric !== metric) buildCurves(); // its name has come, or another run is looked at
  $("subtitle").textContent = `${run.label} · ${run.method} · ${run.model} on ${run.data}, ${run.devices} devices, seed ${run.seed}`;
  document.title = `${run.finished ? "✓" : "▶"} ${run.label}: FedASMU`;
  $("state").textContent = run.failed ? "failed" : run.finished ? "finished" : "following";
  showNumbers(run); showCharts(); showService(); showDevices();
  $("lanes-note").textContent = drawLanes($("now"), fold);
  $("events").textContent = fold.lines.slice(-KEPT_LINES).reverse().join("\n");
  document.documentElement.dataset.drawn = "yes";
}

function redraw() { // at most every half second, and with fresh colours
  colours.known.clear();
  if (drawing) return;
  drawing = true;
  setTimeout(() => requestAnimationFrame(() => { showStudy(); draw(); }), REDRAW);
}

async function refreshCurves() {
  for (const run of standings) {
    if (curves.get(run.label)?.last === run.last) continue;
    const answer = await fetch(`run.csv?run=${encodeURIComponent(run.label)}`);
    const one = new Fold();
    one.take({ events: "", metrics: await answer.text() });
    curves.set(run.label, { last: run.last, time: one.column("time"), score: one.column("score"), metric: one.metric, latest: one.latest });
  }
  redraw();
}

function studyMetric() { // most studies have one
  const names = [...curves.values()].map(curve => curve.metric).filter(name => name);
  return [...new Set(names)].join(" or ") || "score";
}

function showStudy() {
  $("study").hidden = standings.length < 2;
  if (standings.length < 2) return;
  const methods = [...new Set(standings.map(run => run.method))];
  const rows = standings.map(run => {
    const { latest } = curves.get(run.label) ?? {}, open = element("button", { type: "button" }, run.label);
    open.addEventListener("click", () => { look(run.label); $("one").scrollIntoView(); });
    const share = run.finished ? 1 : (latest?.uploads ?? 0) / (Number(run.budget) || Infinity);
    const cells = [run.method, run.seed, run.failed ? "failed" : run.finished ? "finished" : latest ? "running" : "waiting"];
    return element("tr", {}, element("td", {}, open), ...cells.map(text => element("td", {}, text)),
      element("td", {}, element("progress", { max: 1, value: share })), ...[latest?.score, latest?.time].map(value => element("td", {}, short(value))));
  });
  const header = ["run", "method", "seed", "", "uploads", studyMetric(), "virtual time (s)"].map(name => element("th", { scope: "col" }, name));
  $("runs").replaceChildren(element("thead", {}, element("tr", {}, ...header)), element("tbody", {}, ...rows));
  const finished = standings.filter(run => run.finished).length;
  $("subtitle").textContent = `${finished} of ${standings.length} runs finished`;
  showStudyCurves(methods);
  document.documentElement.dataset.drawn = "yes";
}

function showStudyCurves(methods) {
  const known = standings.filter(run => curves.get(run.label)?.time.length);
  const x = [...new Set(known.flatMap(run => curves.get(run.label).time))].sort((a, b) => a - b);
  const columns = known.map(run => {
    const { time, score } = curves.get(run.label), at = new Map(time.map((value, place) => [value, score[place]]));
    return x.map(value => at.get(value) ?? undefined);
  });
  studyChart?.destroy();
  if (!known.length) return;
  const entries = known.map((run, at) => ({ series: at + 1, method: methods.indexOf(run.method) % colours.looks.length, name: run.label }));
  const series = entries.map(({ method }) => ({ stroke: () => colours.get(colours.method(method)), dash: colours.dash(method), width: 1.6, points: { show: false }, spanGaps: true }));
  studyChart = plot($("study-curves"), {
    series: [{}, ...series], scales: { x: { time: false } }, axes: [axis("virtual time (s)", 30), axis(studyMetric(), 46)], plugins: [hover(["virtual time (s)"], entries)],
  }, [x, ...columns]);
}

function look(label) {
  chosen = label;
  history.replaceState(null, "", label ? `?run=${encodeURIComponent(label)}` : "?");
  fold = new Fold();
  served = null;
  follow();
}

function follow() {
  source?.close();
  source = new EventSource(`stream?run=${encodeURIComponent(chosen)}`);
  source.addEventListener("open", () => $("state").classList.remove("lost"));
  source.addEventListener("error", () => { $("state").classList.add("lost"); $("state").textContent = "waiting for the server …"; });
  source.addEventListener("runs", message => {
    standings = JSON.parse(message.data).runs;
    if (standings.length > 1) refreshCurves(); else redraw();
  });
  source.addEventListener("service", message => { served = JSON.parse(message.data); redraw(); });
  source.addEventListener("lines", message => {
    const news = JSON.parse(message.data);
    if (news.anew) fold = new Fold();
    fold.take(news);
    redraw();
  });
}

$("find").addEventListener("input", redraw);
$("clock").addEventListener("click", () => {
  real = !real;
  $("clock").textContent = real ? "over virtual time" : "over real time";
  if (charts.score) buildCurves();
  redraw();
});
addEventListener("resize", redraw);
follow();
