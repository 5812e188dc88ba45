"use strict";
// Charts that are given new data again and again, and the lanes of what is in flight.

colours.looks = [...Array(24).keys()]; // for every chart alike: lines ask for their colours when they are drawn

class LiveChart {
  constructor(place, labels, names, { steps = false, dots = false } = {}) {
    const stroke = at => () => colours.get(`m${at}`);
    const series = names.map((_, at) => ({
      stroke: stroke(at), width: dots ? 0 : 2, paths: dots ? () => null : steps ? uPlot.paths.stepped({ align: 1 }) : undefined,
      fill: steps ? () => colours.faint(`m${at}`, 0.15) : undefined, points: { show: dots, size: 3, fill: stroke(at) }, spanGaps: true,
    }));
    const entries = names.map((name, at) => ({ series: at + 1, method: at, name }));
    this.u = plot(place, {
      series: [{}, ...series], scales: { x: { time: false } }, axes: [axis(labels[0], 28), axis(labels[1], 52)],
      plugins: [hover(labels, entries)],
    }, [[0], ...names.map(() => [null])]);
    this.legend = legend(names.map((name, at) => [name, `m${at}`])); // a finger cannot hover
    place.after(this.legend);
  }
  set(...columns) {
    this.u.setData(columns[0].length ? columns : columns.map((_, at) => [at ? null : 0]));
    [...this.legend.children].forEach((name, at) => { name.hidden = !columns[at + 1].some(value => value != null); });
    this.legend.hidden = this.legend.querySelectorAll("li:not([hidden])").length < 2; // one line has its name on the axis
  }
  destroy() { this.u.destroy(); this.legend.remove(); }
}

function legend(names) { // of pairs: a name and its colour
  return element("ul", { className: "legend" }, ...names.map(([name, colour]) => {
    const mark = element("i");
    mark.style.setProperty("--phase", `var(--${colour})`);
    return element("li", {}, mark, name);
  }));
}

// A table's columns are names and what they show of a row; a click on the first one's text is told. Lines that are there are
// kept: a table that is made anew while somebody presses a button in it loses the click, and the focus.
function fill(table, columns, rows, picked = null) {
  const names = Object.keys(columns), lines = (table.tBodies[0] ?? table.createTBody()).rows;
  if (table.tHead?.textContent !== names.join("")) {
    table.deleteTHead();
    table.createTHead().append(element("tr", {}, ...names.map(name => element("th", { scope: "col" }, name))));
  }
  if (picked) table.onclick = event => { if (event.target.matches(".link")) picked(event.target.textContent); };
  while (lines.length > rows.length) lines[rows.length].remove();
  rows.forEach((row, at) => {
    const line = lines[at] ?? table.tBodies[0].insertRow();
    Object.values(columns).forEach((shown, place) => {
      let cell = line.cells[place] ?? line.insertCell();
      if (picked && place === 0) cell = cell.firstChild ?? cell.appendChild(element("button", { type: "button", className: "link" }));
      const found = shown(row);
      if (found instanceof Node) cell.replaceChildren(found);
      else if (cell.textContent !== String(found)) cell.textContent = found;
    });
  });
}

const LANES = 24, LANE = 13;

function drawLanes(canvas, fold) {
  canvas.style.height = `${fold.lanes * LANE + 8}px`;
  const scale = devicePixelRatio, width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = width * scale; canvas.height = height * scale;
  const ctx = canvas.getContext("2d");
  ctx.scale(scale, scale);
  const ended = fold.done.slice(-LANES * 8), seconds = ended.reduce((sum, task) => sum + task.end - task.start, 0) / (ended.length || 1);
  const since = fold.now - 6 * seconds; // six tasks' time is what one can look at
  const recent = [...ended, ...fold.open.values()].filter(task => !(task.end < since)).sort((a, b) => (b.end ?? fold.now) - (a.end ?? fold.now));
  const devices = [...new Set([...fold.open.values(), ...recent].map(task => task.device))].slice(0, LANES).sort((a, b) => a - b);
  if (devices.length > fold.lanes) { fold.lanes = devices.length; return drawLanes(canvas, fold); }
  const lane = new Map(devices.map((device, at) => [device, at]));
  const shown = recent.filter(task => lane.has(task.device));
  const oldest = Math.max(since, shown.reduce((least, task) => Math.min(least, task.start), fold.now)), span = Math.max(fold.now - oldest, 1e-9);
  const x = time => 46 + (width - 56) * (time - oldest) / span;
  ctx.font = "11px system-ui";
  devices.forEach((device, at) => { ctx.fillStyle = colours.get("muted"); ctx.fillText(String(device), 6, at * LANE + 11); });
  const paint = { accepted: "merged", stale: "discard", refused: "discard", lost: "lost", "": "training" };
  for (const task of shown) {
    const y = lane.get(task.device) * LANE + 3, left = x(Math.max(task.start, oldest)), right = x(task.end ?? fold.now);
    ctx.fillStyle = colours.get(paint[task.outcome] ?? "discard");
    ctx.fillRect(left, y, Math.max(right - left - 1, 1), LANE - 5);
    if (task.ask > oldest) {
      ctx.fillStyle = colours.get("request");
      ctx.beginPath(); ctx.arc(x(task.ask), y + (LANE - 5) / 2, 3, 0, 7); ctx.fill();
    }
  }
  const busy = fold.open.size, known = fold.devices.size;
  return `${busy} in flight; ${devices.length} of ${known} devices, those busy last, over the last ${short(span)} s.`;
}
