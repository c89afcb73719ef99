// The frame of the console: which page is shown, the token, and what every page may use.

import { onUnauthorized, token } from './api.js';
import { askForToken } from './dialogs.js';
import { el, put } from './dom.js';
import { showProblem } from './parts.js';
import { buses } from './pages/buses.js';
import { bus } from './pages/bus.js';
import { subscriber } from './pages/subscriber.js';
import { deliveries } from './pages/deliveries.js';
import { busLetters, deadLetters } from './pages/dead-letters.js';
import { replay } from './pages/replay.js';
import { editBus, editSubscriber, newSubscriber } from './pages/edit.js';
import { patterns } from './pages/patterns.js';
import { publish } from './pages/publish.js';
import { instances } from './pages/instances.js';

// Addresses behind the #, with :names of their parts, and the page of each.
const pages = [
  ['/buses', buses],
  ['/buses/:bus', bus],
  ['/buses/:bus/edit', editBus],
  ['/buses/:bus/new', newSubscriber],
  ['/buses/:bus/dead-letters', busLetters],
  ['/buses/:bus/subscribers/:subscriber', subscriber],
  ['/buses/:bus/subscribers/:subscriber/edit', editSubscriber],
  ['/buses/:bus/subscribers/:subscriber/deliveries', deliveries],
  ['/buses/:bus/subscribers/:subscriber/dead-letters', deadLetters],
  ['/buses/:bus/subscribers/:subscriber/replay', replay],
  ['/patterns', patterns],
  ['/publish', publish],
  ['/instances', instances],
];

const main = document.getElementById('main');
let leaving = new AbortController();
let first = true;

/** find returns the page of an address, with its parameters. */
function find(address) {
  const [path, query] = address.split('?');
  const steps = path.split('/');
  for (const [pattern, page] of pages) {
    const wanted = pattern.split('/');
    if (wanted.length !== steps.length) continue;
    const parameters = {};
    const fits = wanted.every((step, i) => {
      if (!step.startsWith(':')) return step === steps[i];
      parameters[step.slice(1)] = decode(steps[i]);
      return parameters[step.slice(1)] !== '';
    });
    if (fits) return { page, parameters, query: new URLSearchParams(query ?? '') };
  }
  return null;
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/**
 * show shows the page of the address. A page is a function of { parameters, query, signal, title } that returns what is shown;
 * signal ends when the page is left, and with it whatever it does again and again.
 */
async function show() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  document.querySelector('dialog[open]')?.close();
  const address = location.hash.slice(1) || '/buses';
  const found = find(address);
  mark(address);
  main.setAttribute('aria-busy', 'true');
  let content;
  try {
    content = found ? await found.page({ ...found, signal, title }) : nothing();
  } catch (error) {
    if (signal.aborted) return;
    title('Not shown');
    content = [el('h1', null, 'This cannot be shown'), showProblem(error), el('p', null, el('button', { type: 'button', onclick: show }, 'Try again'))];
  }
  if (signal.aborted) return;
  put(main, content);
  main.removeAttribute('aria-busy');
  const heading = main.querySelector('h1');
  heading?.setAttribute('tabindex', '-1');
  if (!first) {
    heading?.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  first = false;
}

function nothing() {
  title('Not found');
  return [el('h1', null, 'Page not found'), el('p', null, el('a', { href: '#/buses' }, 'Buses'))];
}

function title(text) {
  document.title = `${text} · Eventbridge`;
}

/** mark shows in the navigation where the page is. */
function mark(address) {
  for (const link of document.querySelectorAll('nav[aria-label="Main"] a')) {
    const here = address === link.hash.slice(1) || address.startsWith(`${link.hash.slice(1)}/`) || address.startsWith(`${link.hash.slice(1)}?`);
    if (here) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
}

onUnauthorized((tried) => askForToken(tried ? 'The API does not know this token.' : 'The API asks for a token.'));

document.getElementById('token').addEventListener('click', async () => {
  const before = token.get();
  await askForToken('');
  if (token.get() !== before) show();
});

document.getElementById('skip').addEventListener('click', (event) => {
  event.preventDefault(); // the address names the page
  main.focus();
});

addEventListener('hashchange', show);
show();
