(() => {
  "use strict";

  const PAGE = 25; // rows drawn at a time
  const TOKENS = 240; // tokens drawn of a row that is shut
  const PROMPT = 110; // characters of its prompt
  const SHADES = 10; // as many as page.css has
  const SQUARE = 420; // the largest side of a square figure
  const MINUS = "\u2212";

  const find = (selector, within = document) => within.querySelector(selector);
  const findAll = (selector, within = document) => [...within.querySelectorAll(selector)];

  // Elements are made here and nowhere else; text always becomes a text node.
  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.filter((child) => child !== null));
    return element;
  }

  // ---- Unpacking ----

  function bytesOf(base64) {
    const text = atob(base64);
    const bytes = new Uint8Array(text.length);
    for (let n = 0; n < text.length; n++) bytes[n] = text.charCodeAt(n);
    return bytes;
  }

  async function unpack(id) {
    const holder = document.getElementById(id);
    const stream = new Blob([bytesOf(holder.textContent)]).stream().pipeThrough(new DecompressionStream("gzip"));
    holder.remove();
    return new Response(stream).text();
  }

  async function loadVega() {
    const script = make("script");
    script.textContent = await unpack("vega");
    document.body.append(script);
  }

  const afterPaint = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));

  // Rows as objects, whose texts and tokens are looked up when they are wanted.
  function readRows(data) {
    const { rows, tokens } = data;
    let start = 0;
    return rows.id.map((id, n) => {
      const count = tokens.counts[n];
      const row = { n, id, group: rows.group[n], prompt: rows.prompt[n], start, count, own: rows.text[n], open: false };
      row.values = rows.values.map((column) => column[n]);
      start += Math.max(0, count);
      return row;
    });
  }

  function pieceOf(data, place) {
    return data.tokens.distinct[data.tokens.pieces[place]];
  }

  function textOf(data, row) {
    if (row.own !== null) return row.own;
    const pieces = [];
    for (let n = 0; n < row.count; n++) pieces.push(pieceOf(data, row.start + n));
    return pieces.join("");
  }

  // ---- Numbers ----

  function number(value, digits) {
    if (value === null || value === undefined) return "–";
    const small = value !== 0 && Math.abs(value) < 0.5 * 10 ** -digits;
    return (small ? value.toExponential(1) : value.toFixed(digits)).replace("-", MINUS);
  }

  const whole = (value) => value.toLocaleString("en");
  const percent = (above, below) => (below ? `${((100 * above) / below).toFixed(1)} %` : "–");

  // ---- Tip: one box for tokens and charts ----

  const tip = {
    box: find("#tip"),
    show(around, ...children) {
      this.box.replaceChildren(...children);
      this.box.hidden = false;
      const { width, height } = this.box.getBoundingClientRect();
      const left = Math.min(Math.max(8, around.left), document.documentElement.clientWidth - width - 8);
      const above = around.top - height - 8;
      this.box.style.transform = `translate(${left}px, ${above < 8 ? around.bottom + 8 : above}px)`;
    },
    hide() {
      this.box.hidden = true;
    },
  };

  // ---- Tokens ----

  const visible = (piece) => piece.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣") || "(empty)";

  function shade(nats, hottest) {
    if (nats === null) return "impossible heat-10";
    const step = Math.min(SHADES, Math.round((SHADES * Math.abs(nats)) / hottest));
    return step ? `${nats < 0 ? "cool" : "heat"}-${step}` : "";
  }

  // Space before a word stays outside of its colour
  function tokenElement(data, place, n) {
    const nats = data.tokens.nats[place];
    const [, space, word] = pieceOf(data, place).match(/^( *)([^]*)$/);
    const text = (word || space || "∅").replaceAll("\n", "↵\n");
    const heat = shade(nats === null ? null : nats / 1000, data.hottest);
    const token = make("span", { class: `token ${heat}`, "data-n": n, tabindex: n === 0 ? "0" : "-1" }, text);
    return word ? [space, token] : [token];
  }

  function tokenStory(data, row, n) {
    const place = row.start + n;
    const nats = data.tokens.nats[place];
    const error = data.tokens.errors[place];
    const known = error === null ? "" : ` ± ${number(error / 1000, 3)}`;
    const cost = nats === null ? "impossible for the model" : `${number(nats / 1000, 3)}${known} nats`;
    return [make("b", {}, visible(pieceOf(data, place))), `\n${cost}\ntoken ${n + 1} of ${row.count}`];
  }

  function heatMap(data, row) {
    const count = row.open ? row.count : Math.min(row.count, TOKENS);
    const label = `Tokens of row ${row.id}, walk with the arrow keys`;
    const map = make("span", { class: "tokens", role: "group", "aria-label": label });
    for (let n = 0; n < count; n++) map.append(...tokenElement(data, row.start + n, n));
    if (count < row.count) map.append(" …");
    return map;
  }

  function words(data, row) {
    const block = make("div", { class: row.open ? "open" : "shut", dir: "auto" });
    if (row.prompt) {
      const fits = row.open || row.prompt.length <= PROMPT;
      const short = fits ? row.prompt : `… ${[...row.prompt].slice(-PROMPT).join("")}`;
      block.append(make("span", { class: "prompt" }, short));
    }
    if (row.count > 0) block.append(heatMap(data, row));
    else block.append(textOf(data, row));
    return block;
  }

  // ---- The table of rows ----

  class Rows {
    constructor(data, outcome) {
      this.data = data;
      this.outcome = outcome;
      this.all = readRows(data);
      this.table = find("#table");
      this.page = 0;
      this.order = { key: "n", ascending: true };
      this.wanted = { text: "", group: "", outcome: "", column: 0, least: NaN, most: NaN };
      this.collator = new Intl.Collator("en", { numeric: true });
      this.fields = this.makeFields();
      this.drawControls();
      this.drawHead();
      this.listen();
      this.update();
    }

    makeFields() {
      const columns = this.data.columns.map((column, n) => ({
        ...column,
        key: `c${n}`,
        number: true,
        of: (row) => row.values[n],
      }));
      const group = { key: "group", title: "Group", of: (row) => this.data.groups[row.group] ?? null };
      const id = { key: "id", title: "Row", of: (row) => row.id };
      return [id, ...(this.data.groups.length ? [group] : []), ...columns];
    }

    // Filters

    drawControls() {
      const form = find("#controls");
      form.append(this.searchBox());
      const groups = this.data.groups.map((group, n) => [n, group]);
      if (groups.length > 1) form.append(this.choice("Group", "group", [["", "all"], ...groups]));
      if (this.outcome) form.append(this.choice("At the threshold", "outcome", this.outcomes()));
      if (this.data.columns.length) form.append(this.between());
      form.addEventListener("submit", (event) => event.preventDefault());
    }

    outcomes() {
      return [
        ["", "all"],
        ["tp", "true positives"],
        ["fp", "false positives"],
        ["tn", "true negatives"],
        ["fn", "false negatives"],
      ];
    }

    searchBox() {
      const input = make("input", { type: "search", id: "search", placeholder: "words, or a row's name" });
      let waiting;
      input.addEventListener("input", () => {
        clearTimeout(waiting);
        waiting = setTimeout(() => this.filter({ text: input.value.toLowerCase() }), 120);
      });
      return make("label", { class: "search" }, "Search", input);
    }

    choice(title, name, options) {
      const select = make("select", { id: `filter-${name}` });
      for (const [value, text] of options) select.append(make("option", { value }, text));
      select.addEventListener("change", () => this.filter({ [name]: select.value }));
      return make("label", {}, title, select);
    }

    between() {
      const box = make("span", { class: "between" });
      const columns = this.data.columns.map((column, n) => [n, column.title]);
      box.append(this.choice("Only rows whose", "column", columns));
      for (const [name, title] of [["least", "is at least"], ["most", "and at most"]]) {
        const input = make("input", { type: "number", step: "any", id: `filter-${name}` });
        input.addEventListener("input", () => this.filter({ [name]: input.valueAsNumber }));
        box.append(make("label", {}, title, input));
      }
      return box;
    }

    filter(change) {
      Object.assign(this.wanted, change);
      this.page = 0;
      this.update();
    }

    haystack(row) {
      row.searched ??= `${row.id}\n${row.prompt}\n${textOf(this.data, row)}`.toLowerCase();
      return row.searched;
    }

    isWanted(row) {
      const { text, group, outcome, column, least, most } = this.wanted;
      if (group !== "" && row.group !== Number(group)) return false;
      if (outcome !== "" && this.outcome(row) !== outcome) return false;
      const value = row.values[Number(column)] ?? null;
      if (!Number.isNaN(least) && (value === null || value < least)) return false;
      if (!Number.isNaN(most) && (value === null || value > most)) return false;
      return text === "" || this.haystack(row).includes(text);
    }

    // Order: rows without a value come last, whichever way

    sort(key) {
      const field = this.fields.find((candidate) => candidate.key === key);
      const ascending = this.order.key === key ? !this.order.ascending : !field.number;
      this.order = { key, ascending };
      this.page = 0;
      this.update();
    }

    compare(one, other) {
      const field = this.fields.find((candidate) => candidate.key === this.order.key);
      if (!field) return one.n - other.n;
      const [a, b] = [field.of(one) ?? null, field.of(other) ?? null];
      if (a === null || b === null) return (a === null) - (b === null) || one.n - other.n;
      const found = typeof a === "number" && typeof b === "number" ? a - b : this.collator.compare(a, b);
      return (this.order.ascending ? found : -found) || one.n - other.n;
    }

    update() {
      this.shown = this.all.filter((row) => this.isWanted(row)).sort((one, other) => this.compare(one, other));
      this.draw();
    }

    // Drawing

    drawHead() {
      const line = make("tr", { role: "row" });
      for (const field of this.fields) {
        const attributes = { type: "button", "data-key": field.key, title: field.about || false };
        const button = make("button", attributes, field.title);
        button.addEventListener("click", () => this.sort(field.key));
        line.append(make("th", { role: "columnheader", scope: "col", class: field.number ? "number" : false }, button));
      }
      this.table.append(make("thead", { role: "rowgroup" }, line));
    }

    draw() {
      tip.hide();
      const from = this.page * PAGE;
      const rows = this.shown.slice(from, from + PAGE);
      for (const body of findAll("tbody", this.table)) body.remove();
      this.table.append(...rows.map((row) => this.drawRow(row)));
      this.offerMore();
      this.drawOrder();
      this.drawPages();
      const range = `Rows ${whole(from + 1)} to ${whole(from + rows.length)} of ${whole(this.shown.length)}`;
      const all = this.shown.length < this.all.length ? ` (${whole(this.all.length)} in all)` : "";
      find("#count").textContent = (rows.length ? range : "No such row") + all;
    }

    drawRow(row) {
      const line = make("tr", { role: "row" });
      for (const field of this.fields) line.append(this.drawCell(field, row));
      const cell = make("td", { role: "cell", class: "words", colspan: this.fields.length }, words(this.data, row));
      return make("tbody", { role: "rowgroup", "data-row": row.n }, line, make("tr", { role: "row" }, cell));
    }

    drawCell(field, row) {
      const value = field.of(row);
      if (field.number) {
        const attributes = { role: "cell", class: "number", "data-title": field.title };
        return make("td", attributes, number(value, field.digits));
      }
      if (field.key === "id") return make("th", { role: "rowheader", scope: "row", dir: "auto" }, String(value));
      if (value === null) return make("td", { role: "cell" });
      const dot = make("span", { class: "dot", "aria-hidden": "true" });
      dot.style.color = `var(--series-${row.group % 6})`;
      return make("td", { role: "cell" }, dot, make("span", { dir: "auto" }, value));
    }

    // What does not fit gets a button. All are measured before any is changed, which is quicker
    offerMore() {
      const blocks = findAll(".words > div", this.table);
      const long = blocks.map((block) => this.rowOf(block).open || this.isLong(block, this.rowOf(block)));
      blocks.forEach((block, n) => long[n] && this.addMore(block));
    }

    isLong(block, row) {
      return block.scrollHeight > block.clientHeight + 2 || row.count > TOKENS || row.prompt.length > PROMPT;
    }

    addMore(block) {
      const { open, id } = this.rowOf(block);
      const attributes = { "aria-expanded": String(open), "aria-label": `Show ${open ? "less" : "all"} of row ${id}` };
      block.classList.toggle("cut", !open);
      block.after(make("button", { type: "button", class: "more", ...attributes }, open ? "Show less" : "Show all"));
    }

    rowOf(element) {
      return this.all[Number(element.closest("[data-row]").dataset.row)];
    }

    toggle(row) {
      row.open = !row.open;
      const body = find(`[data-row="${row.n}"]`, this.table);
      find(".more", body).remove();
      const block = words(this.data, row);
      find(".words > div", body).replaceWith(block);
      this.addMore(block);
      return body;
    }

    drawOrder() {
      for (const button of findAll("th button", this.table)) {
        const heading = button.closest("th");
        const mine = button.dataset.key === this.order.key;
        heading.toggleAttribute("aria-sort", mine);
        if (mine) heading.setAttribute("aria-sort", this.order.ascending ? "ascending" : "descending");
      }
    }

    drawPages() {
      const last = Math.max(0, Math.ceil(this.shown.length / PAGE) - 1);
      const place = find("#pages");
      const turn = (title, page, possible) => {
        const button = make("button", { type: "button", disabled: !possible }, title);
        button.addEventListener("click", () => this.turn(page, title));
        return button;
      };
      place.hidden = last === 0;
      place.replaceChildren(
        turn("Previous", this.page - 1, this.page > 0),
        make("span", {}, `Page ${whole(this.page + 1)} of ${whole(last + 1)}`),
        turn("Next", this.page + 1, this.page < last),
      );
    }

    turn(page, title) {
      this.page = page;
      this.draw();
      find("#rows").scrollIntoView();
      const same = findAll("#pages button:enabled").find((button) => button.textContent === title);
      same?.focus({ preventScroll: true });
    }

    // Tokens are heard at the table: there may be thousands

    listen() {
      const tokenOf = (event) => event.target.closest?.(".token");
      this.table.addEventListener("pointerover", (event) => (tokenOf(event) ? this.showToken(tokenOf(event)) : tip.hide()));
      this.table.addEventListener("pointerleave", () => tip.hide());
      this.table.addEventListener("focusin", (event) => tokenOf(event) && this.showToken(tokenOf(event)));
      this.table.addEventListener("focusout", () => tip.hide());
      this.table.addEventListener("click", (event) => this.click(event.target));
      this.table.addEventListener("keydown", (event) => tokenOf(event) && this.walk(event, tokenOf(event)));
      document.addEventListener("keydown", (event) => event.key === "Escape" && tip.hide());
      document.addEventListener("scroll", () => this.followScroll(), { passive: true });
    }

    // Walking by keyboard scrolls too: then the tip goes along
    followScroll() {
      const walked = document.activeElement?.matches(".token:focus-visible") && !tip.box.hidden;
      if (walked) this.showToken(document.activeElement);
      else tip.hide();
    }

    click(target) {
      if (target.matches(".more")) find(".more", this.toggle(this.rowOf(target))).focus();
      else if (target.matches(".token")) this.showToken(target);
    }

    showToken(token) {
      for (const other of findAll("[aria-describedby]", this.table)) other.removeAttribute("aria-describedby");
      tip.show(token.getClientRects()[0], ...tokenStory(this.data, this.rowOf(token), Number(token.dataset.n)));
      token.setAttribute("aria-describedby", "tip");
    }

    walk(event, token) {
      const row = this.rowOf(token);
      const n = Number(token.dataset.n);
      const steps = { ArrowRight: n + 1, ArrowLeft: n - 1, Home: 0, End: row.count - 1 };
      const next = steps[event.key];
      if (next === undefined) return;
      event.preventDefault();
      const wanted = `.token[data-n="${Math.min(row.count - 1, Math.max(0, next))}"]`;
      const body = token.closest("tbody");
      if (!row.open && find(".more", body)) this.toggle(row);
      const goal = find(wanted, body);
      find('.token[tabindex="0"]', body)?.setAttribute("tabindex", "-1");
      goal.setAttribute("tabindex", "0");
      goal.focus();
    }
  }

  // ---- The threshold ----

  class Threshold {
    constructor(data) {
      Object.assign(this, data.threshold);
      this.data = data;
      this.column = data.columns[data.threshold.column];
      this.cells = data.rows.values[data.threshold.column];
      this.value = this.start;
      this.watchers = [];
      this.nameGroups();
      this.setUp();
      this.update(this.start);
    }

    isPositive(value) {
      return this.above ? value >= this.value : value <= this.value;
    }

    outcome(row) {
      const value = this.cells[row.n];
      if (value === null || ![this.positive, this.negative].includes(row.group)) return null;
      const called = this.isPositive(value);
      return (called === (row.group === this.positive) ? "t" : "f") + (called ? "p" : "n");
    }

    counts() {
      const found = { tp: 0, fp: 0, tn: 0, fn: 0 };
      this.data.rows.group.forEach((group, n) => {
        const outcome = this.outcome({ group, n });
        if (outcome) found[outcome] += 1;
      });
      return found;
    }

    nameGroups() {
      for (const place of findAll("#threshold [data-group]")) {
        place.textContent = this.data.groups[this[place.dataset.group]];
      }
    }

    setUp() {
      const [slider, exact] = [find("#slider"), find("#exact")];
      for (const [name, value] of [["min", this.low], ["max", this.high], ["step", this.step]]) slider[name] = value;
      slider.addEventListener("input", () => this.update(slider.valueAsNumber));
      exact.addEventListener("input", () => {
        if (Number.isFinite(exact.valueAsNumber)) this.update(exact.valueAsNumber, exact);
      });
    }

    update(value, source) {
      this.value = value;
      find("#slider").value = value;
      if (source !== find("#exact")) find("#exact").value = Number(value.toPrecision(8));
      this.draw(this.counts());
    }

    draw(counts) {
      const { tp, fp, tn, fn } = counts;
      for (const [name, count] of Object.entries(counts)) find(`[data-count="${name}"]`).textContent = whole(count);
      const all = tp + fp + tn + fn;
      const rates = { tpr: [tp, tp + fn], fpr: [fp, fp + tn], precision: [tp, tp + fp], accuracy: [tp + tn, all] };
      for (const [name, [above, below]] of Object.entries(rates)) {
        find(`[data-rate="${name}"]`).textContent = percent(above, below);
      }
      this.drawRule(counts);
      for (const watch of this.watchers) watch({ threshold: this.value, ...ratesOf(counts) });
    }

    drawRule({ tp, fp, tn, fn }) {
      const side = this.above ? "at or above" : "at or below";
      const both = this.data.rows.group.filter((group) => group === this.positive || group === this.negative).length;
      const missing = both - tp - fp - tn - fn;
      const b = (text) => make("b", {}, text);
      find("#rule").replaceChildren(
        "A row is called ", b(this.data.groups[this.positive]), ` if its ${this.column.title} is ${side} `,
        b(String(Number(this.value.toPrecision(6)))), `, and `, b(this.data.groups[this.negative]), " otherwise.",
        missing ? ` ${whole(missing)} without this number are left out.` : "",
      );
    }
  }

  function ratesOf({ tp, fp, tn, fn }) {
    return { false_positives: fp + tn ? fp / (fp + tn) : 0, true_positives: tp + fn ? tp / (tp + fn) : 0 };
  }

  // ---- Figures ----

  const isSquare = (spec) => spec.usermeta?.square === true;
  const side = (place) => Math.min(place.clientWidth, SQUARE);

  // The specification of the static files, with its data
  function complete(figure, config) {
    return { ...figure.spec, data: { name: "table", values: figure.data }, config };
  }

  // The same, as wide as its place
  function fitted(figure, place, config) {
    const square = { width: side(place), height: side(place), autosize: { type: "fit", contains: "padding" } };
    return { ...complete(figure, config), ...(isSquare(figure.spec) ? square : { width: "container" }) };
  }

  function embed(place, spec, options) {
    return vegaEmbed(place, spec, { mode: "vega-lite", actions: false, defaultStyle: false, ...options });
  }

  async function drawFigure(figure, element, looks, threshold) {
    const place = find(".chart", element);
    if (!figure.data.length) {
      place.replaceWith(make("p", { class: "caption" }, "There is nothing to draw."));
      return;
    }
    const tooltip = (handler, event, item, value) => showValue(event, value);
    const { view } = await embed(place, fitted(figure, place, looks.page), { renderer: "svg", tooltip });
    for (const button of findAll("[data-save]", element)) {
      button.addEventListener("click", () => save(figure, button.dataset.save, looks.file));
    }
    find(".save", element).hidden = false;
    follow(figure, view, element, threshold);
    if (isSquare(figure.spec)) {
      addEventListener("resize", () => view.width(side(place)).height(side(place)).runAsync());
    }
  }

  function showValue(event, value) {
    if (value === null || value === undefined || value === "") return tip.hide();
    const known = Object.entries(value).filter(([, text]) => !["", "undefined", "null"].includes(text));
    const around = { left: event.clientX + 12, top: event.clientY - 4, bottom: event.clientY + 12 };
    tip.show(around, known.map(([name, text]) => `${name}: ${text}`).join("\n"));
  }

  // Charts with parameters of the threshold move with the slider; the line can be dragged too
  function follow(figure, view, element, threshold) {
    if (!threshold) return;
    const names = (figure.spec.params ?? []).map((one) => one.name);
    const watch = (news) => {
      const mine = Object.keys(news).filter((name) => names.includes(name));
      for (const name of mine) view.signal(name, news[name]);
      if (mine.length) view.runAsync();
    };
    threshold.watchers.push(watch);
    watch({ threshold: threshold.value, ...ratesOf(threshold.counts()) });
    if (names.includes("threshold")) drag(view, element, threshold);
  }

  function drag(view, element, threshold) {
    element.classList.add("draggable");
    const move = (event) => {
      if (!(event.buttons & 1)) return;
      const box = find("svg", element).getBoundingClientRect();
      const [left] = view.origin();
      const x = event.clientX - box.left - left;
      const value = view.scale("x").invert(Math.min(view.width(), Math.max(0, x)));
      const digits = Math.max(0, Math.ceil(-Math.log10(threshold.step)));
      threshold.update(Number(value.toFixed(Math.min(12, digits))));
    };
    const place = find(".chart", element);
    place.addEventListener("pointerdown", move);
    place.addEventListener("pointermove", move);
  }

  // ---- Saving: what the static files hold ----

  function csv(figure) {
    const names = [...new Set(figure.data.flatMap((row) => Object.keys(row)))];
    const quoted = (value) => {
      const text = value === null || value === undefined ? "" : String(value);
      return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    const lines = [names, ...figure.data.map((row) => names.map((name) => row[name]))];
    return lines.map((line) => `${line.map(quoted).join(",")}\n`).join("");
  }

  async function fileOf(figure, kind, config) {
    if (kind === "csv") return new Blob([csv(figure)], { type: "text/csv" });
    const spec = { ...complete(figure, config), title: figure.title };
    const { view } = await embed(make("div"), spec, { renderer: "none" });
    if (kind === "svg") return new Blob([await view.toSVG()], { type: "image/svg+xml" });
    const canvas = await view.toCanvas(2);
    return new Promise((done) => canvas.toBlob(done, "image/png"));
  }

  async function save(figure, kind, config) {
    const address = URL.createObjectURL(await fileOf(figure, kind, config));
    make("a", { href: address, download: `${figure.name}.${kind}` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  }

  // ---- Light and dark ----

  function setUpTheme() {
    const button = find("#theme");
    const system = matchMedia("(prefers-color-scheme: dark)");
    const now = () => document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light");
    const name = () => (button.textContent = now() === "dark" ? "Light" : "Dark");
    button.addEventListener("click", () => {
      document.documentElement.dataset.theme = now() === "dark" ? "light" : "dark";
      name();
    });
    system.addEventListener("change", name);
    button.hidden = false;
    name();
  }

  // ---- Start: the words are there already; then rows, then charts ----

  async function start() {
    setUpTheme();
    await afterPaint();
    const data = JSON.parse(await unpack("data"));
    const threshold = data.threshold ? new Threshold(data) : null;
    if (data.rows.id.length) {
      const rows = new Rows(data, threshold && ((row) => threshold.outcome(row)));
      threshold?.watchers.push(() => rows.wanted.outcome && rows.filter({}));
    }
    await afterPaint();
    if (data.figures.length) await loadVega();
    for (const element of findAll("[data-figure]")) {
      await drawFigure(data.figures[Number(element.dataset.figure)], element, data.looks, threshold);
    }
    document.documentElement.dataset.ready = "yes";
  }

  start().catch((error) => {
    const problem = find("#problem");
    problem.textContent = `Charts and rows cannot be shown: ${error.message}`;
    problem.hidden = false;
    throw error;
  });
})();
