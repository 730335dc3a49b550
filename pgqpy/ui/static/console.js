// Keeps the page up to date: fragments that have changed replace those of the same id.
const connection = document.getElementById("connection");
const problem = document.getElementById("problem");
const pauseButton = document.getElementById("pause");
const waiting = new Map();
let paused = sessionStorage.getItem("pgqpy-paused") === "yes";
let source = null;

// --- times, in the zone of the viewer

// Sweden writes them as ISO 8601 does.
const day = new Intl.DateTimeFormat("sv", { dateStyle: "short" });
const clock = new Intl.DateTimeFormat("sv", { timeStyle: "medium" });
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;

function showTimes(within) {
  const today = day.format(new Date());
  for (const each of within.querySelectorAll("time[datetime]")) {
    const when = new Date(each.dateTime);
    const date = day.format(when);
    each.title = `${date} ${clock.format(when)} in ${zone}, ${each.dateTime}`;
    each.textContent = date === today ? clock.format(when) : `${date} ${clock.format(when)}`;
  }
}

// Times without a zone are UTC for the server; what the viewer types is in the viewer's zone.
function takeTimes(input) {
  input.placeholder = input.placeholder.replace(" (UTC)", "");
  if (/^\d{4}-.*(Z|[+-]\d\d:\d\d)$/.test(input.value)) {
    const when = new Date(input.value);
    if (!isNaN(when)) input.value = `${day.format(when)} ${clock.format(when)}`;
  }
  input.form.addEventListener("formdata", ({ formData }) => {
    const found = /^(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d(?::\d\d(?:\.\d+)?)?))?$/.exec(input.value.trim());
    const when = found && new Date(`${found[1]}T${found[2] || "00:00"}`);
    if (when && !isNaN(when)) formData.set(input.name, when.toISOString());
  });
}

// --- fragments

// What tells an element from its siblings when it is written anew.
function keyOf(element) {
  return element.id || element.getAttribute("href") || element.textContent.slice(0, 80);
}

function replace(id, html) {
  const place = document.getElementById(id);
  if (!place) return;
  const kept = holdFocus(place);
  const open = [...place.querySelectorAll("details")].map((each) => each.open);
  const scrolled = [...place.querySelectorAll(".wide")].map((each) => each.scrollLeft);
  place.innerHTML = html;
  [...place.querySelectorAll("details")].forEach((each, i) => { each.open = open[i] || false; });
  [...place.querySelectorAll(".wide")].forEach((each, i) => { each.scrollLeft = scrolled[i] || 0; });
  showTimes(place);
  kept();
}

function holdFocus(place) {
  const focused = document.activeElement;
  if (!place.contains(focused)) return () => {};
  const key = keyOf(focused);
  return () => {
    const same = [...place.querySelectorAll(focused.tagName)].find((each) => keyOf(each) === key);
    if (same) same.focus({ preventScroll: true });
  };
}

// Text that is being selected, to be copied, stays.
function isSelecting(id) {
  const selection = document.getSelection();
  const place = document.getElementById(id);
  return place && !selection.isCollapsed && selection.containsNode(place, true);
}

function showWaiting() {
  if (paused) return;
  for (const [id, html] of [...waiting]) {
    if (isSelecting(id)) continue;
    waiting.delete(id);
    replace(id, html);
  }
}

// --- the connection

function say(text, isWell) {
  connection.textContent = text;
  connection.className = isWell ? "" : "warn";
}

function tell(text) {
  problem.hidden = !text;
  problem.textContent = text ? `${text} This page is shown as it was; it goes on by itself.` : "";
}

function connect() {
  if (source || document.hidden) return;
  source = new EventSource(location.href);
  source.addEventListener("fragment", (event) => {
    const { id, html } = JSON.parse(event.data);
    waiting.set(id, html);
    showWaiting();
  });
  source.addEventListener("state", (event) => {
    const state = JSON.parse(event.data);
    tell(state.problem && `${state.problem}.`);
    say(state.problem ? "no answer" : status(), !state.problem);
  });
  source.addEventListener("again", () => {
    disconnect();
    connect();
  });
  source.onopen = () => say(status(), true);
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) {
      // The browser does not try again: the sign-in has ended, or a proxy answers instead.
      tell("The console does not answer, or your sign-in has ended: load the page again.");
      disconnect();
      setTimeout(connect, 5000);
    }
    say("not connected", false);
  };
}

function disconnect() {
  if (source) source.close();
  source = null;
}

function status() {
  return paused ? "paused" : "live";
}

// A page that is not seen costs nothing.
document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));

// --- pause

function setPaused(value) {
  paused = value;
  sessionStorage.setItem("pgqpy-paused", paused ? "yes" : "no");
  pauseButton.setAttribute("aria-pressed", String(paused));
  pauseButton.textContent = paused ? "Go on" : "Pause";
  say(status(), true);
  showWaiting();
}

pauseButton.addEventListener("click", () => setPaused(!paused));
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, select, textarea");
  if (event.key === "p" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    setPaused(!paused);
  }
});
document.addEventListener("selectionchange", showWaiting);

showTimes(document);
document.querySelectorAll("input[data-time]").forEach(takeTimes);
setPaused(paused);
connect();
