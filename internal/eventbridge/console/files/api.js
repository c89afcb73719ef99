// Requests to the API of the process that serves this page.

import { parse } from './exact.js';

const place = 'eventbridge.token';

/** Problem is an answer that is no success: a problem document (RFC 9457), or no answer at all (status 0). */
export class Problem extends Error {
  constructor(status, document, etag) {
    super(document.detail || document.title || `HTTP ${status}`);
    this.status = status;
    this.title = document.title || '';
    this.reason = document.reason || '';
    this.faults = Array.isArray(document.faults) ? document.faults : [];
    this.results = document.results;
    this.etag = etag;
  }
}

// The token is kept for this tab, and goes with it.
export const token = {
  get: () => sessionStorage.getItem(place) ?? '',
  set: (value) => (value ? sessionStorage.setItem(place, value) : sessionStorage.removeItem(place)),
};

// What asks the user for a token, when the API wants one: app.js sets it. It resolves to false when the user gives none.
let ask = async () => false;
let asking = null;
let declined = false;

export function onUnauthorized(f) {
  ask = f;
}

function askOnce(tried) {
  asking ??= ask(tried).then((given) => {
    declined = !given;
    return given;
  }).finally(() => { asking = null; });
  return asking;
}

/**
 * request asks the API. options:
 *   body     a value, sent as JSON
 *   text     JSON that is sent as it is
 *   type     its content type, application/json unless given
 *   ifMatch  the ETag of what is changed; create: it must not exist yet
 *   bearer   a token in place of the one that the page keeps; then none is asked for
 *   quiet    nobody asked for it just now: after the user has given no token, do not ask for one again
 *   signal   ends it
 * It returns { data, etag, status }, and throws a Problem.
 */
export async function request(method, path, options = {}) {
  for (;;) {
    const used = options.bearer ?? token.get();
    const answer = await send(method, path, options, used);
    if (answer.ok) return read(answer);
    const problem = await problemOf(answer);
    if (problem.status !== 401 || options.bearer !== undefined || (options.quiet && declined)) throw problem;
    if (token.get() !== used) continue; // somebody gave one meanwhile
    if (!(await askOnce(used))) throw problem;
    options.signal?.throwIfAborted();
  }
}

async function send(method, path, options, used) {
  const headers = { Accept: 'application/json' };
  if (used) headers.Authorization = `Bearer ${used}`;
  if (options.ifMatch) headers['If-Match'] = options.ifMatch;
  if (options.create) headers['If-None-Match'] = '*';
  let body = options.text;
  if (options.body !== undefined) body = JSON.stringify(options.body);
  if (body !== undefined) headers['Content-Type'] = options.type ?? 'application/json';
  try {
    return await fetch(path, { method, headers, body, signal: options.signal, cache: 'no-store', credentials: 'same-origin', redirect: 'error' });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Problem(0, { title: 'No answer', detail: 'The server does not answer.' });
  }
}

async function read(answer) {
  const text = await answer.text();
  return { data: text && parse(text), etag: answer.headers.get('ETag') ?? '', status: answer.status };
}

async function problemOf(answer) {
  let document = {};
  try {
    document = JSON.parse(await answer.text()) ?? {};
  } catch {
    // Something between the browser and the API answered.
  }
  return new Problem(answer.status, document, answer.headers.get('ETag') ?? '');
}

export const get = (path, options) => request('GET', path, options);
export const post = (path, body, options) => request('POST', path, { body, ...options });

const step = encodeURIComponent;

// The addresses of the API.
export const path = {
  bus: (bus) => `/v1/buses/${step(bus)}`,
  events: (bus) => `/v1/buses/${step(bus)}/events`,
  subscribers: (bus) => `/v1/buses/${step(bus)}/subscribers`,
  subscriber: (bus, name) => `/v1/buses/${step(bus)}/subscribers/${step(name)}`,
};

/** pageOf asks for one page of a list. */
export async function pageOf(address, after, options) {
  const query = new URLSearchParams({ limit: '50' });
  if (after) query.set('after', after);
  return (await get(`${address}?${query}`, options)).data;
}
