// The redrive or replay of a subscriber: how far it is, and its end.

import { get, path, request } from './api.js';
import { chip, count, el, facts, renew, say, time } from './dom.js';
import { act, every, showProblem } from './parts.js';

const kinds = { running: 'warn', done: 'good', failed: 'bad', canceled: 'plain', interrupted: 'warn' };

/** jobPanel shows the latest job. It returns its element, and show for a job that has just begun. */
export function jobPanel(bus, name, signal) {
  const address = `${path.subscriber(bus, name)}/job`;
  const problems = el('div');
  const content = el('div');
  const heading = el('h2', null, 'Latest job');
  // Only the state is announced: figures that change each second would never let a screen reader end.
  const state = el('p', { role: 'status', class: 'hidden' });
  const cancel = act(el('button', { type: 'button', hidden: true }, 'Cancel the job'), problems, async () => show((await request('DELETE', address, { signal })).data));
  const root = el('section', { class: 'panel', hidden: true }, heading, state, content, el('div', { class: 'actions' }, cancel), problems);

  function show(job) {
    const running = job.state === 'running';
    root.hidden = false;
    cancel.hidden = !running;
    say(heading, `${job.dry_run ? 'Count of a ' : 'Latest '}${job.kind}`);
    say(state, `The ${job.kind} is ${job.state}.`);
    renew(content, JSON.stringify(job), () => [
      facts(
        ['State', chip(job.state, kinds[job.state])],
        ['Looked at', count(job.read)],
        ['Chosen', count(job.chosen)],
        outcome(job),
        ['Left', left(job)],
        ['Began', time(job.began)],
        ['Ended', running ? undefined : time(job.ended)],
        ['Instance', job.instance],
      ),
      job.error && el('p', { class: 'problem' }, job.error),
    ]);
  }

  // Asked again only while a job runs: where there is none, each answer is an error in the browser's log.
  let following = false;
  async function follow() {
    if (following) return;
    following = true;
    const ended = new AbortController();
    signal.addEventListener('abort', () => ended.abort());
    await every(1000, ended.signal, async () => {
      try {
        const job = (await get(address, { signal, quiet: true })).data;
        show(job);
        if (job.state !== 'running') ended.abort();
      } catch (error) {
        ended.abort();
        if (error.name !== 'AbortError' && error.status !== 404 && error.status !== 501) problems.replaceChildren(showProblem(error));
      }
    });
    following = false;
  }

  follow();
  return { root, show: (job) => { show(job); follow(); } };
}

/** outcome is what a job has done, or would do. */
function outcome(job) {
  const [done, n] = job.kind === 'discard' ? ['discarded', job.discarded ?? 0] : ['published', job.published];
  const stay = Object.values(job.left ?? {}).reduce((sum, each) => sum + each, 0);
  return job.dry_run ? [`Would be ${done}`, count(job.chosen - stay)] : [done[0].toUpperCase() + done.slice(1), count(n)];
}

const reasons = { too_large: 'too large for the topic', foreign: 'not written by Eventbridge', encrypted: 'encrypted', truncated: 'not complete' };

/** left is what a job could not publish or discard, and why; undefined when it is nothing. */
function left(job) {
  return Object.entries(job.left ?? {}).map(([reason, n]) => `${count(n)} ${reasons[reason] ?? reason}`).join(', ') || undefined;
}

/** instant is what a field for a date and time holds, as the API takes it; undefined when it is empty. */
export function instant(input) {
  return input.value ? new Date(input.value).toISOString() : undefined;
}

/** number is what a field for a number holds; undefined when it is empty. */
export function number(input) {
  return input.value === '' ? undefined : Number(input.value);
}
