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
  if (!known.length) return "–";
  return known.at(-1) < 2 ? `${short(+(60 * known.at(-1)).toPrecision(3))} s` : `${short(known.at(-1))} min`;
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
  const { counts, width } = fold.uploads, whole = Math.max(1, Math.floor(fold.now / width)); // the stretch that goes on would look like a fall
  const rates = Array.from({ length: whole }, (_, at) => (counts[at] ?? 0) * 60 / Math.min(width, fold.now || width));
  charts.rate.set([...rates.keys(), whole].map(at => at * width), [...rates, rates.at(-1)]);
  const ages = fold.staleness.slice(1);
  charts.ages.set([...ages.keys(), ages.length].map(at => at + 0.5), [...ages, ages.at(-1) ?? 0]);
  charts.weights.set(...fold.weights.columns);
  if (!fold.slots.seen && !fold.server.seen) return;
  if ($("learned").hidden) { $("learned").hidden = false; buildLearned(); }
  for (const key of ["server", "device", "slots", "rewards"]) charts[key].set(...fold[key].columns);
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
  showNumbers(run); showCharts(); showService(); showDevices(); showHistory();
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

const kind = run => run.label.replace(/\/?seed-\d+$/, "") || run.method; // its runs differ in their seeds alone

function spread(values) { // mean ± standard deviation
  if (!values.length) return "–";
  const mean = values.reduce((sum, one) => sum + one, 0) / values.length;
  const squares = values.reduce((sum, one) => sum + (one - mean) ** 2, 0);
  return short(mean) + (values.length > 1 ? ` ± ${short(+Math.sqrt(squares / (values.length - 1)).toPrecision(2))}` : "");
}

function showMethodsSoFar(kinds) { // the study's table, as it fills in: of the runs that are finished
  const finished = name => standings.filter(run => kind(run) === name && run.finished);
  const mark = name => {
    const colour = element("i");
    colour.style.setProperty("--phase", `var(--${colours.method(kinds.indexOf(name) % colours.looks.length)})`);
    return element("span", { className: "legend" }, colour, name);
  };
  fill($("methods-so-far"), {
    method: mark, finished: name => `${finished(name).length} of ${standings.filter(run => kind(run) === name).length}`,
    [studyMetric()]: name => spread(finished(name).map(run => run.score).filter(score => score !== null)),
    "virtual time (s)": name => spread(finished(name).map(run => curves.get(run.label)?.latest?.time).filter(time => time != null)),
  }, kinds);
}

function showStudy() {
  $("study").hidden = standings.length < 2;
  if (standings.length < 2) return;
  const kinds = [...new Set(standings.map(kind))];
  showMethodsSoFar(kinds);
  const latest = run => curves.get(run.label)?.latest, share = run => run.finished ? 1 : (latest(run)?.uploads ?? 0) / (Number(run.budget) || Infinity);
  fill($("runs"), {
    run: run => run.label, method: run => run.method, seed: run => run.seed,
    "": run => run.failed ? "failed" : run.finished ? "finished" : latest(run) ? "running" : "waiting",
    uploads: run => element("progress", { max: 1, value: share(run) }), [`last ${studyMetric()}`]: run => short(latest(run)?.score), "virtual time (s)": run => short(latest(run)?.time),
  }, standings, label => { look(label); $("one").scrollIntoView(); });
  const finished = standings.filter(run => run.finished).length;
  $("subtitle").textContent = `${finished} of ${standings.length} runs finished`;
  showStudyCurves(kinds);
  document.documentElement.dataset.drawn = "yes";
}

function showStudyCurves(kinds) {
  const known = standings.filter(run => curves.get(run.label)?.time.length);
  const x = [...new Set(known.flatMap(run => curves.get(run.label).time))].sort((a, b) => a - b);
  const columns = known.map(run => {
    const { time, score } = curves.get(run.label), at = new Map(time.map((value, place) => [value, score[place]]));
    return x.map(value => at.get(value) ?? undefined);
  });
  studyChart?.destroy();
  if (!known.length) return;
  const entries = known.map((run, at) => ({ series: at + 1, method: kinds.indexOf(kind(run)) % colours.looks.length, name: run.label }));
  const series = entries.map(({ method }) => ({ stroke: () => colours.get(colours.method(method)), dash: colours.dash(method), width: 1.6, points: { show: false }, spanGaps: true }));
  studyChart = plot($("study-curves"), {
    series: [{}, ...series], scales: { x: { time: false } }, axes: [axis("virtual time (s)", 30), axis(studyMetric(), 46)], plugins: [hover(["virtual time (s)"], entries)],
  }, [x, ...columns]);
}

function look(label) {
  chosen = label;
  history.replaceState(null, "", label ? `?run=${encodeURIComponent(label)}` : "?");
  fold = new Fold();
  served = picked = null;
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
  $("clock").textContent = real ? "over the run's time" : "over real time";
  if (charts.score) buildCurves();
  redraw();
});
addEventListener("resize", redraw);
follow();
