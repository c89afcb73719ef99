// The latest attempts to deliver to a subscriber, as they come.

import { get, path } from '../api.js';
import { check, chip, el, renew, table, time } from '../dom.js';
import { every, showProblem, subscriberHead } from '../parts.js';

const kinds = { delivered: 'good', retry: 'warn', dead_letter: 'bad', gone: 'bad' };
const words = { dead_letter: 'dead letter' };

export async function deliveries({ parameters, title, signal }) {
  const { bus, subscriber: name } = parameters;
  title(`${name}: deliveries`);
  const list = table('Latest attempts', [
    { name: 'Time' }, { name: 'Event' }, { name: 'Attempt', number: true }, { name: 'Outcome' }, { name: 'Status', number: true },
    { name: 'Took', number: true }, { name: 'Error' }, { name: 'Next attempt' },
  ]);
  const none = el('p', { class: 'note', hidden: true }, 'There is no attempt yet. Only those of the process that answers are shown.');
  const why = el('div');
  const live = check('Refresh live', { checked: true });
  let shown = new Map();

  const look = async () => {
    try {
      const { data } = await get(`${path.subscriber(bus, name)}/deliveries`, { signal, quiet: true });
      const rows = new Map();
      for (const attempt of data.items) {
        let key = JSON.stringify(attempt);
        while (rows.has(key)) key += '+';
        rows.set(key, shown.get(key) ?? rowOf(list, attempt));
      }
      replace(list.body, shown, rows);
      shown = rows;
      none.hidden = rows.size > 0;
      list.root.hidden = rows.size === 0;
      renew(why, '', () => []);
    } catch (error) {
      if (error.name !== 'AbortError') renew(why, error.message, () => showProblem(error));
    }
  };
  await look();
  every(2000, signal, () => (live.box.checked ? look() : undefined));
  return [subscriberHead(parameters, '/deliveries'), el('div', { class: 'head' }, el('h2', null, 'Latest attempts'), live.root), why, list.root, none];
}

/** replace puts the rows in their order, the latest first, and leaves those alone that are there already. */
function replace(body, old, rows) {
  for (const [key, row] of old) if (!rows.has(key)) row.remove();
  let before = body.firstElementChild;
  for (const row of rows.values()) {
    if (row === before) before = before.nextElementSibling;
    else body.insertBefore(row, before);
  }
}

function rowOf(list, a) {
  return list.row(
    time(a.time),
    [el('code', null, a.event), el('div', { class: 'hint' }, el('bdi', null, a.type), ' from ', el('bdi', null, a.source))],
    String(a.attempt),
    [chip(words[a.outcome] ?? a.outcome, kinds[a.outcome]), a.batch > 1 && el('div', { class: 'hint' }, `batch of ${a.batch}`)],
    a.status ? String(a.status) : '–',
    took(a.latency_ns),
    [a.reason && el('div', null, a.reason), a.error && el('div', { class: 'hint' }, a.error),
      a.response && el('details', { class: 'hint' }, el('summary', null, 'answer'), el('pre', null, el('bdi', null, a.response))), !a.reason && !a.error && '–'],
    time(a.next));
}

function took(nanoseconds) {
  if (typeof nanoseconds !== 'number') return '–';
  const ms = nanoseconds / 1e6;
  return ms < 10 ? `${ms.toFixed(1)} ms` : ms < 10000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}
