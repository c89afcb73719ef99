// Making elements. Texts become text nodes: nothing that comes from the server is ever markup.

/**
 * el makes an element. Of props, "class" and "data" have their meaning, functions named on… listen to events, true and
 * false set and leave out an attribute, and everything else is an attribute. Children are elements, texts, or lists of them;
 * null and undefined are omitted.
 */
export function el(tag, props, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === 'function') node.addEventListener(name.slice(2), value);
    else if (name === 'data') Object.assign(node.dataset, value);
    else node.setAttribute(name, value === true ? '' : String(value));
  }
  append(node, children);
  return node;
}

function append(node, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(node, child);
    else node.append(child);
  }
}

/** put replaces the children of a node. */
export function put(node, ...children) {
  node.replaceChildren();
  append(node, children);
  return node;
}

/** say sets a text, if it is another one: screen readers are told of changes only, and a selection stays. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const shown = new WeakMap();

/** renew replaces the children of a node by those that build makes, if key is another than at the last time: the focus stays. */
export function renew(node, key, build) {
  if (shown.get(node) === key) return;
  shown.set(node, key);
  put(node, build());
}

/** time shows an instant in the zone of the browser. */
export function time(at) {
  if (!known(at)) return el('span', { class: 'none' }, '–');
  return el('time', { datetime: at, title: at }, stamp(at));
}

/** stamp is an instant as text: 2026-11-22 17:24:53. */
export function stamp(at) {
  const d = new Date(at);
  const two = (n) => String(n).padStart(2, '0');
  return `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
}

/** known says whether there is such an instant; Go's zero time is none. */
export function known(at) {
  return typeof at === 'string' && !at.startsWith('0001-') && !Number.isNaN(Date.parse(at));
}

/** age is how long ago an instant is, in its largest unit or two. */
export function age(at) {
  if (!known(at)) return '';
  const s = Math.max(0, Math.round((Date.now() - Date.parse(at)) / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** count is a number with its thousands apart. */
export function count(n) {
  return typeof n === 'number' ? n.toLocaleString('en') : '–';
}

/** bytes is a size in the largest unit that keeps it whole. */
export function bytes(n) {
  if (typeof n !== 'number') return '–';
  if (n >= 1 << 20 && n % (1 << 20) === 0) return `${n >> 20} MiB`;
  if (n >= 1024 && n % 1024 === 0) return `${n / 1024} KiB`;
  return `${count(n)} bytes`;
}

/** span is a duration without the parts that are zero: 12h instead of 12h0m0s. */
export function span(duration) {
  return String(duration ?? '').replace(/([hm])0m(?=0s$)/, '$1').replace(/([hm])0s$/, '$1');
}

let ids = 0;

/** id is one that no other element of the page has. */
export function id(prefix) {
  ids += 1;
  return `${prefix}-${ids}`;
}

/**
 * field is a labelled control, with a hint and a place for a fault. pointer is where the API sees it: showFaults finds it
 * by that.
 */
export function field(label, control, { hint, pointer, wide } = {}) {
  control.id ||= id('field');
  const note = hint && el('span', { class: 'hint', id: id('hint') }, hint);
  const fault = el('span', { class: 'fault', id: id('fault') });
  control.setAttribute('aria-describedby', [note?.id, fault.id].filter(Boolean).join(' '));
  return el('div', { class: wide ? 'field wide' : 'field', data: pointer === undefined ? {} : { pointer } },
    el('label', { for: control.id }, label), control, note, fault);
}

/** check is a labelled box to tick. */
export function check(label, props) {
  const box = el('input', { type: 'checkbox', ...props });
  box.id ||= id('check');
  return { box, root: el('span', { class: 'check' }, box, el('label', { for: box.id }, label)) };
}

/** showFaults puts faults beside the fields that they are about, and returns the others. */
export function showFaults(form, faults) {
  const rest = [];
  for (const place of form.querySelectorAll('.field .fault')) place.textContent = '';
  for (const control of form.querySelectorAll('[aria-invalid]')) control.removeAttribute('aria-invalid');
  for (const fault of faults ?? []) {
    const place = [...form.querySelectorAll('.field')].find((f) => f.dataset.pointer === fault.pointer);
    if (!place) {
      rest.push(fault);
      continue;
    }
    const text = place.querySelector('.fault');
    text.textContent = text.textContent ? `${text.textContent}; ${fault.problem}` : fault.problem;
    place.querySelector('input, select, textarea')?.setAttribute('aria-invalid', 'true');
  }
  form.querySelector('[aria-invalid]')?.focus();
  return rest;
}

/** chip is a word with a sign and a colour of its kind: good, warn, bad or plain. */
export function chip(text, kind = 'plain') {
  return el('span', { class: `chip ${kind}` }, text);
}

/**
 * table makes one whose rows become cards on small screens: there the name of its column stands before each cell. Roles are
 * given, since a table that is shown as blocks is none to screen readers.
 */
export function table(caption, columns) {
  const body = el('tbody', { role: 'rowgroup' });
  const root = el('table', { role: 'table' },
    el('caption', { class: 'hidden' }, caption),
    el('thead', { role: 'rowgroup' },
      el('tr', { role: 'row' }, columns.map((c) => el('th', { role: 'columnheader', scope: 'col', class: c.number ? 'number' : c.class }, c.name)))),
    body);
  const row = (...cells) => {
    const tr = el('tr', { role: 'row' });
    cells.forEach((cell, i) => tr.append(el('td', { role: 'cell', class: columns[i].number ? 'number' : columns[i].class, data: { label: columns[i].name } },
      el('div', { class: 'cell' }, cell))));
    return tr;
  };
  return { root, body, row };
}

/** facts is a list of names and values; a missing value is omitted. */
export function facts(...pairs) {
  return el('dl', { class: 'facts' }, pairs
    .filter(([, value]) => value !== undefined && value !== null && value !== '')
    .map(([name, value]) => el('div', null, el('dt', null, name), el('dd', null, value))));
}
