// What several pages show in the same way.

import { Problem, get, path } from './api.js';
import { chip, el, known, stamp } from './dom.js';

/** showProblem shows why something did not work, with the faults that have no place of their own. */
export function showProblem(error, faults = error.faults ?? []) {
  const text = error instanceof Problem ? error.message : `The console failed: ${error.message}`;
  return el('div', { class: 'problem', role: 'alert' },
    el('p', null, error.title && error.title !== text && el('strong', null, `${error.title}. `), text),
    faults.length > 0 && el('ul', null, faults.map((f) => el('li', null, f.pointer && [el('code', null, f.pointer), ' '], f.problem))));
}

/** notice says briefly that something was done. */
export function notice(text) {
  const place = document.getElementById('notice');
  const line = el('p', null, text);
  place.replaceChildren(line);
  setTimeout(() => line.remove(), 6000);
}

/** way is the trail of links above a heading. */
export function way(...links) {
  return el('nav', { class: 'way', 'aria-label': 'Where this page is' }, el('ol', null, links.map(([text, address]) => el('li', null, el('a', { href: address }, text)))));
}

export const at = {
  bus: (bus) => `#/buses/${encodeURIComponent(bus)}`,
  subscriber: (bus, name, part = '') => `#/buses/${encodeURIComponent(bus)}/subscribers/${encodeURIComponent(name)}${part}`,
};

/** subscriberHead is what the pages of a subscriber begin with. */
export function subscriberHead({ bus, subscriber }, here) {
  const tab = (text, part) => el('a', { href: at.subscriber(bus, subscriber, part), 'aria-current': here === part && 'page' }, text);
  return [
    way(['Buses', '#/buses'], [bus, at.bus(bus)]),
    el('h1', null, subscriber),
    el('nav', { class: 'tabs', 'aria-label': 'Subscriber' },
      tab('Overview', ''), tab('Deliveries', '/deliveries'), tab('Dead letters', '/dead-letters'), tab('Replay', '/replay'), tab('Edit', '/edit')),
  ];
}

/** stateChip shows what a subscriber does. */
export function stateChip(state) {
  return chip(state, { active: 'good', paused: 'warn', disabled: 'bad' }[state]);
}

/**
 * worst is the breaker to show of a subscriber's status: each process has its own, so the one that lets least through. What
 * the process that answers does is newer than what others have told.
 */
export function worst(status) {
  const order = ['closed', 'half_open', 'open'];
  const others = Object.values(status.instances ?? {}).filter((s) => s !== null && typeof s === 'object');
  return [status.here, ...(others.length > 1 || !status.here ? others : [])].filter((s) => s?.breaker)
    .sort((a, b) => order.indexOf(b.breaker) - order.indexOf(a.breaker))[0];
}

/** breakerChip shows what a breaker lets through. */
export function breakerChip(state) {
  switch (state?.breaker) {
    case 'open':
      return [chip('open', 'bad'), known(state.probe_at) && el('span', { class: 'hint' }, ` probe at ${stamp(state.probe_at).slice(11)}`)];
    case 'half_open':
      return chip('half open', 'warn');
    case 'closed':
      return chip('closed', 'good');
    default:
      return state?.breaker ? chip(state.breaker) : el('span', { class: 'none' }, '–');
  }
}

/** activeChip shows whether all engines match by the rules that are shown. */
export function activeChip(status) {
  return status.active ? chip('yes', 'good')
    : [chip('not yet', 'warn'), status.behind?.length > 0 && el('span', { class: 'hint' }, ` ${status.behind.join(', ')}`)];
}

/** kindOf is the kind of a target. */
export function kindOf(target) {
  return Object.keys(target ?? {})[0] ?? '–';
}

/** every calls f at once, and again so many milliseconds after it has ended, while the page is shown and can be seen. */
export async function every(milliseconds, signal, f) {
  while (!signal.aborted) {
    if (!document.hidden) await f();
    if (signal.aborted) return;
    await new Promise((resolve) => {
      const done = () => {
        clearTimeout(timer);
        document.removeEventListener('visibilitychange', done);
        signal.removeEventListener('abort', done);
        resolve();
      };
      const timer = setTimeout(done, milliseconds);
      document.addEventListener('visibilitychange', done);
      signal.addEventListener('abort', done);
    });
  }
}

/** later calls f once calls have stopped for so many milliseconds. */
export function later(milliseconds, signal, f) {
  let timer;
  signal.addEventListener('abort', () => clearTimeout(timer));
  return () => {
    clearTimeout(timer);
    timer = setTimeout(f, milliseconds);
  };
}

/** statusOf asks how a subscriber's deliveries are. */
export async function statusOf(bus, name, signal) {
  return (await get(`${path.subscriber(bus, name)}/status`, { signal, quiet: true })).data;
}

/** submit makes a form do f, once at a time, and shows at the end of the form what goes wrong. */
export function submit(form, place, f) {
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    if (form.getAttribute('aria-busy') === 'true') return;
    form.setAttribute('aria-busy', 'true');
    place.replaceChildren();
    try {
      await f(event.submitter);
    } catch (error) {
      if (error.name !== 'AbortError') place.replaceChildren(showProblem(error));
    } finally {
      form.removeAttribute('aria-busy');
    }
  });
}

/** act makes a button do f, once at a time. It stays a button meanwhile: one that is disabled loses the focus. */
export function act(button, place, f) {
  button.addEventListener('click', async () => {
    if (button.getAttribute('aria-disabled') === 'true') return;
    button.setAttribute('aria-disabled', 'true');
    place.replaceChildren();
    try {
      await f();
    } catch (error) {
      if (error.name !== 'AbortError') place.replaceChildren(showProblem(error));
    } finally {
      button.removeAttribute('aria-disabled');
    }
  });
  return button;
}
