// The console's script: live numbers, and the changes somebody asks for. Whatever comes from the gateway is put into the page as text.

const page = document.body.dataset.page;
const find = (selector, root = document) => root.querySelector(selector);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

// --- asking the API ---

async function ask(method, path, body) {
  const headers = { Accept: "application/json" };
  if (method !== "GET") {
    // asked for each time: a page may be older than its session's token
    headers["X-CSRF-Token"] = (await ask("GET", "/v1/session")).csrf;
    if (body !== undefined) headers["Content-Type"] = "application/json";
  }
  const answer = await fetch(path, { method, headers, body: typeof body === "object" ? JSON.stringify(body) : body });
  const text = await answer.text();
  if (answer.ok) return answer.headers.get("content-type")?.startsWith("text/html") ? text : JSON.parse(text || "{}");
  let message = `The gateway answered ${answer.status}.`;
  try { message = JSON.parse(text).message; } catch { /* a page, not the API's answer */ }
  throw new Error(message);
}

// an epoch may have more digits than a number here: it goes back as it came
const ofLife = (epoch, rest) => `{"epoch":${epoch},${JSON.stringify(rest).slice(1)}`;

const query = values => new URLSearchParams(Object.entries(values).filter(([, value]) => value !== "" && value !== undefined));

const encode = text => {
  let found = "";
  for (const byte of new TextEncoder().encode(text)) found += String.fromCharCode(byte);
  return btoa(found);
};

const headersOf = text => text.split("\n").filter(line => line.trim()).map(line => {
  const at = line.indexOf(":");
  if (at < 1) throw new Error(`a header is "name: value", not ${JSON.stringify(line)}`);
  return [line.slice(0, at).trim(), encode(line.slice(at + 1).trim())];
});

// --- making elements; text only ---

function make(name, text, attributes = {}, ...children) {
  const element = document.createElement(name);
  if (text !== null && text !== undefined) element.textContent = text;
  for (const [key, value] of Object.entries(attributes)) if (value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
  element.append(...children);
  return element;
}

const show = (output, ...children) => output.replaceChildren(...children);
const notice = (text, kind = "") => make("div", text, { class: `notice ${kind}`.trim() });
const complain = (output, error) => show(output, notice(error.message, "bad"));

function say(text, kind = "good") {
  const said = notice(text, kind);
  find("#said").replaceChildren(said);
  setTimeout(() => said.remove(), 8000);
}

function confirmed(title, text, word) {
  const dialog = find("#dialog");
  return new Promise(resolve => {
    const yes = make("button", word, { class: "main", value: "yes" });
    const no = make("button", "Cancel", { value: "" });
    show(dialog, make("h2", title, { id: "dialog-title" }), make("p", text), make("form", null, { method: "dialog" }, make("div", null, { class: "row" }, no, yes)));
    dialog.returnValue = "";
    dialog.onclose = () => resolve(dialog.returnValue === "yes");
    dialog.showModal();
    no.focus();
  });
}

// --- numbers ---

const short = value => {
  for (const unit of ["", "k", "M", "G"]) {
    if (Math.abs(value) < 999.95 || unit === "G") return (unit === "" ? (value >= 100 || value === Math.round(value) ? value.toFixed(0) : value.toFixed(1)) : value.toFixed(1)) + unit;
    value /= 1000;
  }
};
const size = value => {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (value < 1024 || unit === "GiB") return (unit === "B" || value >= 100 ? value.toFixed(0) : value.toFixed(1)) + " " + unit;
    value /= 1024;
  }
};

function draw(svg, values) {
  const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
  const top = Math.max(...values, 1e-9), step = width / Math.max(1, values.length - 1);
  const points = values.map((value, index) => `${(index * step).toFixed(1)} ${(height - 2 - (height - 4) * value / top).toFixed(1)}`);
  if (!points.length) return;
  const line = "M" + points.join("L");
  const drawn = [["path", `${line}L${width} ${height}L0 ${height}Z`, "area"], ["path", line, ""]].map(([name, d, kind]) => {
    const path = document.createElementNS("http://www.w3.org/2000/svg", name);
    path.setAttribute("d", d);
    if (kind) path.setAttribute("class", kind);
    return path;
  });
  svg.replaceChildren(...drawn);
}

// --- live: one stream of events for a page, and parts of it that are asked for again ---

function lamp(id, good, text) {
  const one = find(id);
  one.classList.toggle("good", good);
  one.classList.toggle("bad", !good);
  if (one.textContent !== text) one.textContent = text;
}

function onPulse(pulse) {
  lamp("#lamp-ready", pulse.ready, pulse.ready ? "ready" : `not ready: ${pulse.phase}`);
  lamp("#lamp-audit", pulse.unaccounted === 0, pulse.unaccounted === 0 ? "0 unaccounted" : `${pulse.unaccounted} unaccounted`);
  if (page === "overview") overview(pulse);
}

const rates = { in: [], out: [] };
for (const name of ["in", "out"]) {
  const svg = find(`#spark-${name}`);
  if (svg) { rates[name] = svg.dataset.values.split(" ").filter(Boolean).map(Number); draw(svg, rates[name]); }
}

function overview(pulse) {
  for (const [name, flow] of [["in", pulse.received], ["out", pulse.delivered]]) {
    find(`#rate-${name}`).textContent = short(flow.messages || 0);
    find(`#bytes-${name}`).textContent = `${size(flow.size || 0)}/s`;
    rates[name] = [...rates[name], flow.messages || 0].slice(-90);
    draw(find(`#spark-${name}`), rates[name]);
  }
  find("#backlog").textContent = short(pulse.backlog);
  find("#topics").textContent = pulse.topics;
  find("#latency").textContent = (1000 * pulse.publish_seconds[1]).toFixed(1);
  find("#unaccounted").textContent = pulse.unaccounted;
  find("#accounts").textContent = pulse.accounts;
  find("#health").replaceChildren(
    ...pulse.wrong.map(text => notice(`Does not add up: ${text}`, "bad")),
    ...pulse.problems.map(text => notice(`Not ready: ${text}`, "bad")),
    ...pulse.waiting.map(text => notice(text)));
  const flows = new Map(pulse.flows.map(flow => [flow.edge, flow]));
  for (const edge of all(".edge")) {
    const flow = flows.get(edge.dataset.edge), moves = flow && (flow.messages || 0) > 0;
    edge.classList.toggle("flows", Boolean(moves));
    find("path", edge).setAttribute("stroke-width", moves ? Math.min(7, 1.6 + Math.log10(1 + flow.messages)).toFixed(1) : "1.6");
    const [rate, weight] = all(".rate tspan", edge);
    rate.textContent = moves ? `${short(flow.messages)}/s` : "";
    weight.textContent = moves ? `${size(flow.size || 0)}/s` : "";
  }
  const upstreams = new Map(pulse.upstreams.map(one => [`target:${one.name}`, one]));
  for (const node of all(".node")) {
    const name = node.dataset.node.slice(node.dataset.node.indexOf(":") + 1), alarms = [];
    if (node.dataset.node.startsWith("route:") && pulse.refused[name]) alarms.push(`${short(pulse.refused[name])}/s refused`);
    if (node.dataset.node.startsWith("topics:") && pulse.dead_lettered[name]) alarms.push(`${short(pulse.dead_lettered[name])}/s dead letters`);
    if (node.dataset.node.startsWith("listener:") && pulse.held_back[name]) alarms.push(`${short(pulse.held_back[name])}/s held back`);
    const upstream = upstreams.get(node.dataset.node);
    if (upstream && !upstream.connected) alarms.push(`down, ${short(upstream.backlog)} wait`);
    else if (upstream && upstream.circuit !== "closed") alarms.push(`circuit ${upstream.circuit}`);
    node.classList.toggle("bad", alarms.length > 0);
    find(".alarm", node).textContent = alarms.join(", ");
  }
  const moving = pulse.flows.filter(flow => (flow.messages || 0) > 0);
  find("#no-flows").hidden = moving.length > 0;
  find("#flows").replaceChildren(...moving.slice(0, 60).map(flow => {
    const [from, to] = flow.edge.split(">").map(text => text.replace(":", " "));
    return make("tr", null, {}, make("td", from), make("td", to), make("td", short(flow.messages), { class: "n" }), make("td", size(flow.size || 0), { class: "n" }));
  }));
}

// parts of a page that the server writes are asked for again, unless somebody is at work in them
async function again() {
  const parts = all("[data-live]");
  if (!parts.length || document.hidden || find("dialog").open) return;
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of parts) {
    const other = fresh.getElementById(part.id);
    if (other && !part.contains(document.activeElement) && part.innerHTML !== other.innerHTML) part.replaceChildren(...[...other.childNodes].map(node => document.importNode(node, true)));
  }
}

let lost = false;
function follow() {
  const source = new EventSource("/v1/events");
  source.addEventListener("pulse", event => {
    if (lost) { lost = false; find("#lost").hidden = true; again(); }
    if (!document.hidden) onPulse(JSON.parse(event.data));
  });
  source.onerror = () => {
    lost = true;
    find("#lost").hidden = false;
    if (source.readyState === EventSource.CLOSED) setTimeout(follow, 2000); // refused, not just broken off
  };
  addEventListener("pagehide", () => source.close());
}
follow();
if (find("[data-live]")) setInterval(() => again().catch(() => {}), 5000);

// --- a frame and its bytes: what the pointer is on in one is marked in the other ---

function mark(root) {
  for (const [name, on] of [["pointerover", true], ["pointerout", false]]) {
    root.addEventListener(name, event => {
      const part = event.target.closest?.("[data-part]");
      if (part) for (const one of all(`[data-part="${CSS.escape(part.dataset.part)}"]`, root)) one.classList.toggle("hot", on);
    });
  }
}
if (page === "message") mark(document);

// --- changes ---

const fields = form => Object.fromEntries(new FormData(form));

const table = (heads, rows) => make("div", null, { class: "scroll", tabindex: "0", role: "region", "aria-label": heads.join(", ") }, make("table", null, {},
  make("thead", null, {}, make("tr", null, {}, ...heads.map(text => make("th", text, { scope: "col" })))),
  make("tbody", null, {}, ...rows.map(row => make("tr", null, {}, ...row.map(text => make("td", String(text), { class: "wrap" })))))));

const submitted = {
  async "log-out"() {
    await ask("POST", "/logout");
    location.href = "/login";
  },

  async publish(form, output) {
    const values = fields(form);
    form.dataset.producer ||= `console-${crypto.getRandomValues(new Uint32Array(3)).join("-")}`;
    const sequence = Number(form.dataset.sequence || 0);
    const found = await ask("POST", "/v1/append", {
      address: values.address, protocol: values.protocol, producer: form.dataset.producer, sequence,
      values: [encode(values.value)], keys: values.key ? [encode(values.key)] : undefined,
      headers: values.headers.trim() ? [headersOf(values.headers)] : undefined,
    });
    form.dataset.sequence = sequence + 1;
    show(output, found.stored
      ? make("div", "Stored: ", { class: "notice good" }, ...found.places.map(one => make("a", `${one.topic}/${one.partition} at ${one.base_offset}`, { href: `/message?${query({ topic: one.topic, partition: one.partition, offset: one.base_offset })}` })))
      : notice("The route's transform left it out."));
  },

  async explain(form, output) {
    const values = fields(form);
    const found = await ask("POST", "/v1/explain", {
      protocol: values.protocol, address: values.address, listener: values.listener, principal: values.principal,
      key: values.key ? encode(values.key) : null, value: values.value ? encode(values.value) : null,
      headers: headersOf(values.headers).map(([name, value]) => ({ name, value })),
    });
    show(output,
      make("p", null, {}, make("strong", `Route ${found.route}`), found.topic ? `, stored as ${found.topic}` : ""),
      make("ol", null, { class: "steps" }, ...found.steps.map(step => make("li", `${step.kind}: ${step.where}`, {}, ...step.notes.map(note => make("small", note))))));
    if (found.after) show(output, ...output.childNodes, make("div", null, { class: "sides" },
      make("div", "before", {}, make("pre", found.before.text ?? "(bytes)")), make("div", "after", {}, make("pre", found.after.text ?? "(bytes)"))));
    if (found.topic && found.read_topic !== found.topic) output.append(notice(`A reader of this address reads ${found.read_topic || "nothing"}, not ${found.topic}.`));
  },

  async configuration(form, output, button) {
    const text = form.elements.text.value.replace(/\r\n/g, "\n"), apply = form.elements.apply;
    if (button?.name === "apply") {
      if (!await confirmed("Apply this configuration?", "The file is replaced, and the gateway goes on with it. If that cannot be, both stay as they are.", "Apply")) return;
      const found = await ask("POST", "/v1/configuration/apply", { text, seen: form.dataset.digest });
      if (found.outcome === "applied") { form.dataset.digest = (await ask("GET", "/v1/routes")).digest; apply.disabled = true; }
      show(output, notice(found.outcome === "applied" ? "Applied." : `Not applied (${found.outcome}); everything is as it was.`, found.outcome === "applied" ? "good" : "bad"), make("ul", null, {}, ...found.why.map(one => make("li", one))));
      return;
    }
    const found = await ask("POST", "/v1/configuration/check", { text });
    if (apply) apply.disabled = !found.good || found.plan.some(one => one.endsWith("needs a restart"));
    const list = (title, items) => items.length ? [make("h3", title), make("ul", null, {}, ...items.map(one => make("li", typeof one === "string" ? one : `line ${one.line}: ${one.path ? one.path + ": " : ""}${one.message}`)))] : [];
    show(output, notice(found.good ? "Good." : "This cannot be applied.", found.good ? "good" : "bad"), ...list("Problems", found.problems), ...list("Warnings", found.warnings), ...list("What would change", found.plan));
    if (found.good && !found.plan.length) output.append(make("p", "Nothing would change."));
  },

  async place(form, output) {
    const { kind, name, topic, partition, to, value, time, force } = fields(form);
    const at = to === "offset" ? Number(value) : to === "time" ? Date.parse(time + "Z") : 0;
    if (to === "offset" && value === "") throw new Error("Say which offset.");
    if (to === "time" && Number.isNaN(at)) throw new Error("Say which time.");
    const path = kind === "group" ? "/v1/groups/reset" : "/v1/consumers/reset";
    const asked = { ...(kind === "group" ? { group: name } : { kind, name }), topic, to, value: at, partition: partition === "" ? null : Number(partition), force: force === "on" };
    const rows = found => table(["Partition", "From", "To", "Skipped", "Once more", "Then before it"], found.moves.map(one => [one.partition, one.before, one.after, one.skipped, one.repeated, one.lag ?? one.backlog].map(cell => cell ?? "–")));
    const preview = await ask("POST", path, { ...asked, dry_run: true });
    const go = make("button", "Do it", { class: "danger", type: "button" });
    show(output, make("p", `${kind} ${name} would be there on ${topic}:`), rows(preview), go);
    go.onclick = () => run(output, async () => {
      go.disabled = true;
      const found = await ask("POST", path, asked);
      show(output, notice(`${kind} ${name} is there.`, "good"), rows(found));
      again();
    });
    go.focus();
  },

  async redrive(form, output, button) {
    const chosen = all("input[name=letter]:checked", form).map(box => box.value.split(":").map(Number));
    if (!chosen.length) throw new Error("Choose the letters first.");
    const dry = button?.name !== "again";
    if (!dry && !await confirmed("Send again?", `${chosen.length} letter(s) are published again, each at most once.`, "Send again")) return;
    const rows = [];
    for (const partition of new Set(chosen.map(([number]) => number))) {
      const found = await ask("POST", "/v1/redrive", ofLife(form.dataset.epoch, {
        topic: form.dataset.topic, partition, dry_run: dry,
        offsets: chosen.filter(([number]) => number === partition).map(([, offset]) => offset).sort((a, b) => a - b),
        to: form.elements.to.value, protocol: form.elements.to.value ? form.elements.protocol.value : "",
      }));
      for (const one of found.letters) rows.push([`${partition}:${one.offset}`, { done: "sent again", would: "would be sent", before: "was sent before", refused: "stays", gone: "gone" }[one.outcome], one.target, one.message]);
    }
    show(output, table(["Letter", "Outcome", "To", "Why"], rows));
  },

  async tap(form) { startTap(form); },
};

const clicked = {
  async "close-connection"(button) {
    if (!await confirmed("Close this connection?", `${button.dataset.peer} is cut off now.`, "Close it")) return;
    await ask("DELETE", `/v1/connections?${query({ id: button.dataset.id })}`);
    say(`${button.dataset.peer} is closed.`);
    document.activeElement?.blur();
    await again();
  },

  async place(button) {
    const form = find("#place"), { kind, name, topic } = button.dataset;
    Object.assign(form.elements.kind, { value: kind });
    form.elements.name.value = name;
    form.elements.topic.value = topic;
    form.elements.partition.value = "";
    show(find("output", form));
    find("#placing").open = true;
    form.scrollIntoView({ block: "center" });
    form.elements.to.focus({ preventScroll: true });
  },

  async purge(button) {
    const form = button.closest("form"), { topic, epoch, end } = form.dataset;
    if (!await confirmed("Drop all dead letters?", `Everything in ${topic} goes, sent again or not. This cannot be undone.`, "Drop them")) return;
    await ask("DELETE", `/v1/topics?${query({ name: topic, epoch, end })}`);
    location.href = "/letters";
  },

  async "edit-letter"(button) {
    const letter = button.dataset, form = button.closest("form"), dialog = find("#dialog");
    const field = (label, element) => make("label", label, {}, element);
    const value = make("textarea", null, { rows: "8", name: "value" }), headers = make("textarea", null, { rows: "3", name: "headers" });
    value.value = letter.value;
    headers.value = letter.headers.trim();
    const key = make("input", null, { name: "key" });
    key.value = letter.hasKey ? new TextDecoder().decode(Uint8Array.from(atob(letter.key), char => char.charCodeAt(0))) : "";
    const to = make("input", null, { name: "to", placeholder: letter.to });
    const output = make("output", null), dry = make("button", "Dry run", { type: "button" }), send = make("button", "Send this", { type: "button", class: "main" }), close = make("button", "Close", { type: "button" });
    show(dialog, make("h2", `Edit letter ${letter.partition}:${letter.offset}`, { id: "dialog-title" }), field("Value", value), field("Key", key), field("Headers, one name: value a line", headers), field("To an address (empty: where it came from)", to), output, make("div", null, { class: "row" }, close, dry, send));
    const go = isDry => run(output, async () => {
      const found = await ask("POST", "/v1/redrive", ofLife(form.dataset.epoch, {
        topic: form.dataset.topic, partition: Number(letter.partition), offsets: [Number(letter.offset)], to: to.value, dry_run: isDry,
        edited: { value: encode(value.value), key: key.value || letter.hasKey ? encode(key.value) : null, headers: headersOf(headers.value) },
      }));
      const [one] = found.letters;
      show(output, notice({ done: `Sent to ${one.target}.`, would: `Would go to ${one.target}.`, before: "It was sent again before.", gone: "It is gone." }[one.outcome] ?? `It stays: ${one.message}`, one.outcome === "done" || one.outcome === "would" ? "good" : "bad"));
      if (one.outcome === "done") { dry.disabled = send.disabled = true; }
    });
    dry.onclick = () => go(true);
    send.onclick = () => go(false);
    close.onclick = () => dialog.close();
    dialog.onclose = null;
    dialog.showModal();
    value.focus();
  },

  async pause(button) {
    tapping.paused = !tapping.paused;
    button.textContent = tapping.paused ? "Go on" : "Pause";
  },

  async clear() {
    find("#tapped").replaceChildren();
    find("#none").hidden = false;
  },
};

async function run(output, work) {
  try {
    await work();
  } catch (error) {
    if (output) complain(output, error); else say(error.message, "bad");
  }
}

document.addEventListener("submit", event => {
  const form = event.target.closest("form[data-action]");
  if (!form || !submitted[form.dataset.action]) return;
  event.preventDefault();
  const output = find("output", form), button = event.submitter;
  if (button) button.disabled = true;
  run(output, () => submitted[form.dataset.action](form, output, button)).finally(() => {
    if (button && !(button.name === "apply" && find(".notice.good", output))) button.disabled = false;
  });
});

document.addEventListener("click", event => {
  const button = event.target.closest("button[data-action]");
  if (button && clicked[button.dataset.action]) run(null, () => clicked[button.dataset.action](button));
});

find("#place")?.elements.to.addEventListener("change", event => { for (const one of all("#place [data-only]")) one.hidden = one.dataset.only !== event.target.value; });
// what was shown was for what stood in the form then
find("#place")?.addEventListener("input", event => show(find("output", event.currentTarget)));
find("#all")?.addEventListener("change", event => { for (const box of all("input[name=letter]")) box.checked = event.target.checked; });
find("form[data-action=configuration] textarea")?.addEventListener("input", event => { const apply = event.target.form.elements.apply; if (apply) apply.disabled = true; });

// --- the tap ---

const tapping = { source: null, paused: false };
const MOST_TAPPED = 200;

function startTap(form) {
  const start = form.elements.start, pause = find("[data-action=pause]"), report = find("#report");
  tapping.source?.close();
  if (start.textContent === "Stop") {
    start.textContent = "Start";
    pause.disabled = true;
    report.textContent = "stopped";
    tapping.source = null;
    return;
  }
  const values = fields(form);
  const source = tapping.source = new EventSource(`/v1/tap?${query({ ...values, redact: values.redact === "on" ? "true" : "" })}`);
  start.textContent = "Stop";
  pause.disabled = false;
  report.textContent = "waiting for a message";
  source.addEventListener("message", event => { if (!tapping.paused) tapped(JSON.parse(event.data).message); });
  source.addEventListener("report", event => {
    const found = JSON.parse(event.data).report;
    report.textContent = `${found.seen} seen, ${found.matched} shown${found.dropped ? `, ${found.dropped} left out` : ""}${found.unreadable ? `, ${found.unreadable} the expression could not read` : ""}`;
  });
  source.onerror = async () => {
    if (source.readyState !== EventSource.CLOSED) return;
    start.textContent = "Start";
    pause.disabled = true;
    // an EventSource does not tell why it was refused
    await run(null, () => ask("GET", `/v1/tap?${query({ ...values, redact: "" })}`));
    report.textContent = "not started";
  };
}

function tapped(one) {
  find("#none").hidden = true;
  const text = content => content === null || content === undefined ? "none" : content.format === "redacted" ? `${content.size} bytes` : content.text ?? `${content.size} bytes, not text`;
  const side = (name, value) => value && make("div", null, {},
    make("h3", name),
    value.key ? make("div", `key ${text(value.key)}`, { class: one.changed.includes("key") && name === "after" ? "mono changed" : "mono" }) : "",
    ...value.headers.map(header => make("div", `${header.name}: ${text(header.value)}`, { class: name === "after" && !one.before?.headers.some(other => other.name === header.name && text(other.value) === text(header.value)) && one.changed.includes("headers") ? "mono changed" : "mono" })),
    make("pre", text(value.value).slice(0, 2000), { class: one.changed.includes("value") && name === "after" ? "changed" : "" }));
  const look = one.before ?? one.after, readable = look && look.value.format !== "redacted";
  const languages = make("button", "in five languages", { type: "button", class: "small" });
  languages.onclick = () => run(null, async () => {
    const html = await ask("POST", "/message", { topic: one.address, protocol: one.protocol, value: look.value.data, key: look.key?.data ?? null, headers: look.headers.map(header => ({ name: header.name, value: header.value.data })) });
    const dialog = find("#dialog"), close = make("button", "Close", { type: "button" });
    close.onclick = () => dialog.close();
    const found = new DOMParser().parseFromString(html, "text/html");
    show(dialog, make("h2", `A message to ${one.address}`, { id: "dialog-title" }), ...[...found.body.childNodes].map(node => document.importNode(node, true)), make("div", null, { class: "row" }, close));
    mark(dialog);
    dialog.onclose = null;
    dialog.showModal();
  });
  const entry = make("article", null, { class: "tapped" },
    make("header", null, {},
      make("strong", one.address), make("span", `route ${one.route}`), make("span", [...new Set([one.protocol, one.listener, one.principal, one.client])].filter(Boolean).join(" "), { class: "empty" }),
      make("span", one.fate, { class: `badge ${{ stored: "good", filtered: "warn", failed: "bad" }[one.fate]}` }),
      ...(one.changed.length ? [make("span", `changed: ${one.changed.join(", ")}`, { class: "badge warn" })] : []),
      readable ? languages : ""),
    one.problem ? make("div", one.problem, { class: "notice bad" }) : "",
    make("div", null, { class: "sides" }, ...[side(one.changed.length || one.fate !== "stored" ? "before" : "message", one.before), one.before && !one.changed.length && one.fate === "stored" ? null : side("after", one.after)].filter(Boolean)));
  const log = find("#tapped");
  log.prepend(entry);
  while (log.childElementCount > MOST_TAPPED) log.lastElementChild.remove();
}
