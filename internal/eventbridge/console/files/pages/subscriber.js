// One subscriber: how it is, its rules, where and how it is delivered to.

import { get, path, post, request } from '../api.js';
import { age, count, el, facts, put, renew, span, time } from '../dom.js';
import { act, activeChip, at, breakerChip, every, kindOf, notice, showProblem, stateChip, statusOf, subscriberHead, worst } from '../parts.js';
import { confirm } from '../dialogs.js';
import { stringify } from '../exact.js';

export async function subscriber({ parameters, title, signal }) {
  const { bus, subscriber: name } = parameters;
  title(name);
  const here = path.subscriber(bus, name);
  const { data: s, etag } = await get(here, { signal });
  const problems = el('div');
  const status = el('div', { class: 'tiles' });
  const why = el('div');
  const turn = el('button', { type: 'button', class: 'primary' });
  const disable = el('button', { type: 'button' }, 'Disable');
  const remove = el('button', { type: 'button', class: 'danger' }, 'Delete');

  const showState = (state) => {
    turn.textContent = state === 'active' ? 'Pause' : 'Resume';
    disable.hidden = state === 'disabled';
  };
  // What is deleted is what the page shows, or has itself changed.
  let revision = etag;
  const tiles = {};
  const tile = (label) => {
    const value = el('dd', null, '…');
    tiles[label] = value;
    return el('div', null, el('dt', null, label), value);
  };
  put(status, el('dl', null, ['State', 'On all engines', 'Backlog', 'Oldest', 'Breaker', 'Under way', 'Dead letters'].map(tile)));

  const look = async () => {
    try {
      const now = await statusOf(bus, name, signal);
      showState(now.state);
      renew(tiles.State, now.state, () => stateChip(now.state));
      renew(tiles['On all engines'], `${now.active} ${now.behind}`, () => activeChip(now));
      renew(tiles.Backlog, String(now.backlog?.events), () => count(now.backlog?.events));
      renew(tiles.Oldest, age(now.backlog?.oldest), () => age(now.backlog?.oldest) || '–');
      const breaker = worst(now);
      renew(tiles.Breaker, `${breaker?.breaker} ${breaker?.probe_at}`, () => breakerChip(breaker));
      renew(tiles['Under way'], String(underWay(now)), () => count(underWay(now)));
      const letters = now.backlog?.dead_letters;
      renew(tiles['Dead letters'], String(letters), () => (letters > 0 ? el('a', { href: at.subscriber(bus, name, '/dead-letters') }, count(letters)) : count(letters)));
      const errors = [
        now.here?.unhealthy,
        ...Object.entries(now.instances ?? {}).filter(([, of]) => of?.unhealthy && of.unhealthy !== now.here?.unhealthy).map(([instance, of]) => `\u2068${instance}\u2069: ${of.unhealthy}`),
      ].filter(Boolean);
      const notes = [
        now.reason && `Eventbridge changed the state: ${now.reason}`,
        now.here === null && 'This process does not have the role processor. A process that has it shows deliveries and dead letters.',
        now.here !== null && now.backlog === null && 'The backlog is not known: the brokers’ admin API is not set, or does not answer.',
      ].filter(Boolean);
      renew(why, JSON.stringify([errors, notes]), () => [
        errors.map((text) => el('p', { class: 'problem' }, text)), notes.map((text) => el('p', { class: 'note' }, text)),
      ]);
    } catch (error) {
      if (error.name !== 'AbortError') renew(why, error.message, () => showProblem(error));
    }
  };
  showState(s.state);
  every(2000, signal, look);

  act(turn, problems, async () => {
    revision = (await post(`${here}:${turn.textContent.toLowerCase()}`, undefined, { signal })).etag;
    await look();
  });
  act(disable, problems, async () => {
    if (!(await confirm(`Disable ${name}?`, 'Events that come meanwhile are not matched, and never delivered. Pause instead to keep them.', 'Disable'))) return;
    revision = (await post(`${here}:disable`, undefined, { signal })).etag;
    await look();
  });
  act(remove, problems, async () => {
    if (!(await confirm(`Delete ${name}?`, 'Its backlog and its dead letters are deleted, too.', 'Delete'))) return;
    await request('DELETE', here, { ifMatch: revision });
    notice(`Subscriber ${name} is deleted.`);
    location.hash = at.bus(bus);
  });

  return [
    subscriberHead(parameters, ''),
    s.description && el('p', null, s.description),
    el('div', { class: 'actions' }, turn, disable, remove),
    problems, status, why,
    el('div', { class: 'columns' },
      section('Rules', s.rules.map((rule) => ruleOf(bus, name, rule))),
      el('div', null,
        section(`Target: ${kindOf(s.target)}`, settings(s.target?.[kindOf(s.target)])),
        section('Delivery', delivery(s)),
        s.transform && section('Transformation', settings(s.transform)),
        section('Object', facts(['Order', s.order], ['Start', s.start], ['Revision', String(s.revision)], ['Created', time(s.created)], ['Changed', time(s.changed)], ['UID', s.uid])))),
  ];
}

/** underWay is how many deliveries are under way in all processes. */
function underWay(status) {
  const told = Object.values(status.instances ?? {}).map((s) => s?.in_flight).filter((n) => typeof n === 'number');
  return told.length > 1 || !status.here ? told.reduce((a, b) => a + b, 0) : status.here.in_flight;
}

function section(heading, ...content) {
  return el('section', { class: 'panel' }, el('h2', null, heading), content);
}

function ruleOf(bus, name, rule) {
  const query = new URLSearchParams({ bus, subscriber: name, rule: rule.name });
  return el('div', { class: 'rule' },
    el('div', { class: 'head' }, el('h3', null, rule.name), el('a', { href: `#/patterns?${query}` }, 'Test', el('span', { class: 'hidden' }, ` ${rule.name}`))),
    el('pre', { tabindex: '0', 'aria-label': `Pattern of ${rule.name}` }, stringify(rule.pattern)));
}

/** settings shows an object's values by their names; what is itself an object is shown as JSON. */
function settings(object) {
  const entries = Object.entries(object ?? {});
  if (entries.length === 0) return el('p', { class: 'note' }, 'No settings.');
  return el('dl', { class: 'facts' }, entries.map(([name, value]) => el('div', { class: String(value).length > 20 && 'long' }, el('dt', null, name),
    el('dd', null, typeof value === 'object' || String(value).includes('\n') ? el('pre', { tabindex: '0', 'aria-label': name }, typeof value === 'object' ? stringify(value) : value) : String(value)))));
}

function delivery({ delivery: d = {} }) {
  const retry = d.retry ?? {};
  const breaker = d.breaker ?? {};
  return facts(
    ['At once', count(d.concurrency)],
    ['Rate', d.rate ? `${d.rate} per second` : 'no bound'],
    ['Time for one attempt', span(d.timeout)],
    ['Attempts', retry.max_attempts ? count(retry.max_attempts) : 'no bound'],
    ['Attempts end after', /^0+s?$/.test(retry.max_age ?? '') ? 'no bound' : span(retry.max_age)],
    ['Pauses between attempts', (retry.schedule ?? []).map(span).join(', ')],
    ['Jitter', retry.jitter === undefined ? undefined : String(retry.jitter)],
    ['Breaker opens after', breaker.failures ? `${count(breaker.failures)} failures in a row` : 'never'],
    ['Breaker probes after', breaker.failures ? span(breaker.probe) : undefined],
  );
}
