"use strict";
// The tables of devices: as a run's events know them, as a service does, and the last tasks of the one that was picked.

const ROWS = 60;
let picked = null; // the device whose tasks are shown

function pick(device) {
  picked = picked === Number(device) ? null : Number(device);
  showHistory();
  $("history").scrollIntoView({ block: "nearest" });
}

const DEVICE = { device: one => one.device, "in flight": one => one.busy ? "yes" : "", done: one => one.done, lost: one => one.lost,
  "stale or refused": one => one.stale, "mean staleness": one => one.done ? short(one.staleness / one.done) : "–",
  "mean seconds": one => one.done ? short(one.seconds / one.done) : "–", loss: one => short(one.loss), "own accuracy": one => one.own === null ? "–" : short(one.own), "last seen": one => `${short(one.last)} s` };

function showDevices() {
  const busy = new Set([...fold.open.values()].map(task => task.device)), wanted = $("find").value.trim();
  const found = [...fold.devices.values()].filter(one => !wanted || String(one.device).includes(wanted));
  found.sort((a, b) => b.last - a.last);
  fill($("devices"), DEVICE, found.slice(0, ROWS).map(one => ({ ...one, busy: busy.has(one.device) })), pick);
  $("devices-note").textContent = `${Math.min(found.length, ROWS)} of ${found.length} devices, the ones seen last first. Click on one for its last tasks.`;
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
  fill($("seats"), SEAT, found.slice(0, ROWS), pick);
  $("seats-note").textContent = `${Math.min(found.length, ROWS)} of ${found.length} devices that have enrolled.`;
}

const TASK = { task: one => one.task, began: one => `${short(one.start)} s`, asked: one => one.ask === null ? "" : `${short(one.ask)} s`,
  ended: one => one.end === null ? "" : `${short(one.end)} s`, seconds: one => short((one.end ?? fold.now) - one.start), "": one => one.outcome || "under way",
  staleness: one => one.staleness ?? "–", loss: one => short(one.loss), "own accuracy": one => short(one.own) };

function showHistory() {
  const device = fold.devices.get(picked), open = [...fold.open.values()].filter(task => task.device === picked);
  $("history").hidden = !device && !served?.devices.some(one => one.device === picked);
  if ($("history").hidden) return;
  const { history = [], done = 0, lost = 0 } = device ?? {}, tasks = [...history, ...open].slice(-KEPT_HISTORY).reverse();
  $("history-title").textContent = `Device ${picked}: ${open.length ? "busy" : "idle"}, ${done} delivered, ${lost} lost`;
  fill($("history-table"), TASK, tasks);
}
