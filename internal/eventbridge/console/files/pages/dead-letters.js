// What was given up, and its redrive.

import { get, path, post, request } from '../api.js';
import { count, el, field, showFaults, time } from '../dom.js';
import { confirm } from '../dialogs.js';
import { stringify } from '../exact.js';
import { instant, jobPanel, number } from '../job.js';
import { act, at, showProblem, submit, subscriberHead, way } from '../parts.js';

export async function deadLetters({ parameters, title, signal }) {
  const { bus, subscriber: name } = parameters;
  title(`${name}: dead letters`);
  const here = path.subscriber(bus, name);
  const job = jobPanel(bus, name, signal);
  return [
    subscriberHead(parameters, '/dead-letters'),
    redrive(here, name, job, signal),
    job.root,
    await oldest(here, signal),
  ];
}

/** busLetters are events that no engine can match, or whose copies for a subscriber brokers refuse. */
export async function busLetters({ parameters: { bus }, title, signal }) {
  title(`${bus}: dead letters`);
  return [
    way(['Buses', '#/buses'], [bus, at.bus(bus)]),
    el('h1', null, `Dead letters of ${bus}`),
    el('p', null, 'No engine can match these events, or the brokers refuse a copy of them for a subscriber: the reason says which. Mend the sender, and have it send them again.'),
    await oldest(path.bus(bus), signal),
  ];
}

/** oldest shows the oldest dead letters of a subscriber, or of a bus. */
async function oldest(here, signal) {
  const list = el('div', { class: 'letters' });
  const problems = el('div');
  const load = async () => {
    const { data } = await get(`${here}/dead-letters?limit=100`, { signal });
    list.replaceChildren(...(data.items.length > 0 ? data.items.map(letter) : [el('p', { class: 'note' }, 'There is no dead letter.')]));
    if (data.items.length === 100) list.append(el('p', { class: 'note' }, 'These are the oldest 100.'));
  };
  await load().catch((error) => {
    if (error.name === 'AbortError') throw error;
    problems.replaceChildren(showProblem(error));
  });
  const again = act(el('button', { type: 'button', class: 'small' }, 'Refresh'), problems, load);
  return [
    el('div', { class: 'head' }, el('h2', null, 'Dead letters'), again),
    problems, list,
  ];
}

function letter(l) {
  const e = l.event !== null && typeof l.event === 'object' ? l.event : {};
  return el('article', { class: 'panel letter' },
    el('h3', null, el('bdi', null, text(e.type, 'An event that cannot be read')), ' ', el('code', null, text(e.id, ''))),
    el('p', { class: 'reason' }, l.reason),
    el('p', { class: 'hint' }, l.attempts === 1 ? '1 attempt, failed ' : `${count(l.attempts)} attempts, first failed `, time(l.first_failed), ', given up ', time(l.given_up)),
    el('details', null, el('summary', null, 'Event'), el('pre', { tabindex: '0', 'aria-label': 'Event as JSON' }, eventText(l))));
}

function eventText(l) {
  if (l.bytes) return stringify(new TextDecoder().decode(Uint8Array.from(atob(l.bytes), (c) => c.charCodeAt(0))));
  return typeof l.event === 'string' ? l.event : stringify(l.event);
}

function text(value, otherwise) {
  return typeof value === 'string' && value !== '' ? value : otherwise;
}

function redrive(here, name, job, signal) {
  const reason = el('input', { autocomplete: 'off' });
  const type = el('input', { autocomplete: 'off', spellcheck: 'false' });
  const from = el('input', { type: 'datetime-local', step: 1 });
  const to = el('input', { type: 'datetime-local', step: 1 });
  const rate = el('input', { type: 'number', min: 0, step: 'any', inputmode: 'decimal' });
  const max = el('input', { type: 'number', min: 0, inputmode: 'numeric' });
  const problems = el('div');
  const form = el('form', { class: 'fields' },
    field('Reason contains', reason, { pointer: '/reason' }),
    field('Type of the event', type, { pointer: '/type' }),
    field('First failed from', from, { pointer: '/from' }),
    field('First failed before', to, { pointer: '/to' }),
    field('Events per second', rate, { pointer: '/rate', hint: 'Empty: no bound.' }),
    field('At most', max, { pointer: '/max', hint: 'Empty: no bound.' }),
    el('div', { class: 'actions' },
      el('button', { type: 'submit', value: 'dry' }, 'Count only'),
      el('button', { type: 'submit', value: 'redrive', class: 'primary' }, 'Redrive'),
      el('button', { type: 'submit', value: 'discard', class: 'danger' }, 'Discard')),
    problems);
  submit(form, problems, async (button) => {
    showFaults(form, []);
    const options = {
      reason: reason.value || undefined, type: type.value.trim() || undefined, from: instant(from), to: instant(to),
      rate: number(rate), max: number(max),
    };
    if (button?.value === 'discard') {
      const chosen = Object.entries(options).filter(([, value]) => value !== undefined);
      const filtered = options.reason || options.type || options.from || options.to; // a rate chooses none
      const what = filtered ? `The dead letters of ${name} that match the filter are removed.`
        : `No filter is set: ${options.max > 0 ? `up to ${count(options.max)}` : 'all'} dead letters of ${name} are removed.`;
      if (!(await confirm('Discard dead letters?', `${what} They cannot be brought back.`, 'Discard them'))) return;
      job.show((await request('DELETE', `${here}/dead-letters?${new URLSearchParams(chosen)}`, { signal })).data);
      return;
    }
    options.dry_run = button?.value === 'redrive' ? undefined : true;
    if (!options.dry_run && Object.values(options).every((o) => o === undefined)
      && !(await confirm('Redrive all dead letters?', `No filter is set: all dead letters of ${name} are delivered again.`, 'Redrive all'))) return;
    const { data } = await post(`${here}:redrive`, options, { signal });
    job.show(data);
  });
  return el('section', { class: 'panel' }, el('h2', null, 'Redrive'),
    el('p', { class: 'hint' }, 'Redrive or discard the dead letters that match the filter. Count them first.'), form);
}
