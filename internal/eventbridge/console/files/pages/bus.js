// One bus and its subscribers.

import { get, pageOf, path, post, request } from '../api.js';
import { age, bytes, count, el, facts, renew, say, table, time } from '../dom.js';
import { act, activeChip, at, breakerChip, every, kindOf, notice, showProblem, stateChip, statusOf, way, worst } from '../parts.js';
import { confirm } from '../dialogs.js';
import { windowText } from './buses.js';

const refresh = 5000; // milliseconds between two looks at the subscribers that can be seen

export async function bus({ parameters, title, signal }) {
  const name = parameters.bus;
  title(name);
  const { data: b, etag } = await get(path.bus(name), { signal });
  const problems = el('div');
  const remove = el('button', { type: 'button', class: 'danger' }, 'Delete');
  act(remove, problems, async () => {
    if (!(await confirm(`Delete the bus ${name}?`, 'The events that it keeps are deleted, too. A bus with subscribers cannot be deleted.', 'Delete'))) return;
    await request('DELETE', path.bus(name), { ifMatch: etag });
    notice(`Bus ${name} is deleted.`);
    location.hash = '#/buses';
  });
  const list = await subscribers(name, signal);
  return [
    way(['Buses', '#/buses']),
    el('h1', null, name),
    b.description && el('p', null, b.description),
    el('div', { class: 'actions' },
      el('a', { class: 'button primary', href: `${at.bus(name)}/new` }, 'New subscriber'),
      el('a', { class: 'button', href: `#/publish?bus=${encodeURIComponent(name)}` }, 'Publish a test event'),
      el('a', { class: 'button', href: `${at.bus(name)}/dead-letters` }, 'Dead letters'),
      el('a', { class: 'button', href: `${at.bus(name)}/edit` }, 'Edit'),
      remove),
    problems,
    facts(
      ['Partitions', String(b.partitions)],
      ['Duplicates are dropped for', windowText(b.dedup_window)],
      ['Largest event', bytes(b.max_event_bytes)],
      ['Plain JSON', b.mapping ? 'mapped' : 'refused'],
      ['JSON Schemas', String(Object.keys(b.schemas ?? {}).length)],
      ['Revision', String(b.revision)],
      ['Changed', time(b.changed)],
    ),
    el('h2', null, 'Subscribers'),
    list,
  ];
}

async function subscribers(bus, signal) {
  const list = table('Subscribers', [
    { name: 'Subscriber' }, { name: 'State' }, { name: 'Order', class: 'short' }, { name: 'Target', class: 'short' }, { name: 'On all engines' },
    { name: 'Backlog', number: true }, { name: 'Oldest', number: true }, { name: 'Breaker' }, { name: 'Dead letters', number: true }, { name: 'Change', class: 'short' },
  ]);
  const more = el('button', { type: 'button', class: 'more' }, 'Show more');
  const none = el('p', { class: 'note' }, 'The bus has no subscriber yet: its events are stored and not delivered.');
  const problems = el('div');
  const rows = [];
  let after = '';
  const load = async () => {
    const page = await pageOf(path.subscribers(bus), after, { signal });
    for (const s of page.items) {
      const row = subscriberRow(list, bus, s, problems, signal);
      rows.push(row);
      list.body.append(row.root);
    }
    after = page.next ?? '';
    more.hidden = !after;
    none.hidden = rows.length > 0;
    list.root.hidden = rows.length === 0;
  };
  more.addEventListener('click', () => load().then(() => look(rows)).catch((error) => problems.replaceChildren(showProblem(error))));
  await load();
  every(refresh, signal, () => look(rows));
  return [list.root, none, more, problems];
}

/** look refreshes the rows that can be seen, and the new ones, two at once: each asks the brokers. */
async function look(rows) {
  const seen = rows.filter((row) => {
    const { top, bottom } = row.root.getBoundingClientRect();
    return !row.known || (bottom >= 0 && top <= innerHeight);
  });
  const next = async () => {
    for (let row = seen.shift(); row; row = seen.shift()) {
      row.known = true;
      await row.refresh();
    }
  };
  await Promise.all([next(), next()]);
}

function subscriberRow(list, bus, s, problems, signal) {
  const cells = {};
  const cell = (name) => (cells[name] = el('span', null, '…'));
  const turn = el('button', { type: 'button', class: 'small' });
  const root = list.row(
    [el('a', { href: at.subscriber(bus, s.name) }, s.name), s.description && el('div', { class: 'hint' }, s.description)],
    cell('state'), s.order, kindOf(s.target), cell('active'), cell('backlog'), cell('oldest'), cell('breaker'), cell('letters'), turn);
  const showState = (state, reason) => {
    renew(cells.state, `${state} ${reason}`, () => [stateChip(state), reason && el('span', { class: 'hint' }, ` ${reason}`)]);
    const to = state === 'active' ? 'Pause' : 'Resume';
    turn.textContent = to;
    turn.dataset.to = to.toLowerCase();
    turn.setAttribute('aria-label', `${to} ${s.name}`);
  };
  showState(s.state, s.reason);
  act(turn, problems, async () => {
    const { data } = await post(`${path.subscriber(bus, s.name)}:${turn.dataset.to}`, undefined, { signal });
    showState(data.state, data.reason);
  });
  const refresh = async () => {
    try {
      const status = await statusOf(bus, s.name, signal);
      showState(status.state, status.reason);
      renew(cells.active, `${status.active} ${status.behind}`, () => activeChip(status));
      say(cells.backlog, count(status.backlog?.events));
      say(cells.oldest, age(status.backlog?.oldest) || '–');
      const breaker = worst(status);
      renew(cells.breaker, `${breaker?.breaker} ${breaker?.probe_at}`, () => breakerChip(breaker));
      const letters = status.backlog?.dead_letters;
      renew(cells.letters, String(letters), () => (letters > 0 ? el('a', { href: at.subscriber(bus, s.name, '/dead-letters') }, count(letters)) : count(letters)));
    } catch (error) {
      if (error.name === 'AbortError') return;
      renew(cells.active, error.message, () => el('span', { class: 'hint' }, error.status === 404 ? 'deleted' : 'unknown'));
    }
  };
  return { root, refresh };
}
