// A pattern against an event, with a verdict at each change.

import { get, path, request } from '../api.js';
import { chip, el, field, put } from '../dom.js';
import { editor, faultList } from '../editor.js';
import { patternExamples } from '../examples.js';
import { stringify } from '../exact.js';
import { later, showProblem } from '../parts.js';

const causes = {
  missing: 'The event does not have this field.',
  different: 'The event has other values.',
  present: 'The event has the field, and must not.',
  'in another element': 'It matches in another element of the array than the fields beside it.',
};

export async function patterns({ title, query, signal }) {
  title('Pattern tester');
  const begin = patternExamples[0];
  const pattern = editor('Pattern', stringify(await given(query, signal) ?? begin.pattern));
  const event = editor('Event', stringify(begin.event));
  const example = el('select', null, el('option', { value: '' }, 'Choose one'), patternExamples.map((e, i) => el('option', { value: i }, e.name)));
  // Announced at each change of its text.
  const verdict = el('div', { class: 'verdict', role: 'status', 'aria-live': 'polite' });
  const details = el('div');
  let asking = new AbortController();
  let last = '';

  const show = (kind, text, ...more) => {
    if (last !== `${kind} ${text}`) put(verdict, chip(text, kind));
    last = `${kind} ${text}`;
    put(details, more);
  };

  const test = async () => {
    asking.abort();
    asking = new AbortController();
    const own = asking;
    for (const [sheet, what] of [[pattern, 'pattern'], [event, 'event']]) {
      try {
        JSON.parse(sheet.input.value);
      } catch (error) {
        show('bad', `The ${what} is not JSON`, el('p', { class: 'hint' }, error.message));
        return;
      }
    }
    try {
      // As they are written: numbers and keys that come twice arrive as they are.
      const { data } = await request('POST', '/v1/patterns:test', {
        text: `{"pattern":${pattern.input.value},"event":${event.input.value}}`, signal: AbortSignal.any([own.signal, signal]), quiet: true,
      });
      if (own !== asking) return;
      const failed = data.failed ?? [];
      pattern.mark(failed.map((f) => f.pointer));
      if (data.match) show('good', 'It matches');
      else show('bad', 'It does not match', failed.length > 0 && [el('p', null, 'Fields that keep it from that:'), faultList(pattern, failed.map((f) => ({ pointer: f.pointer, problem: causes[f.cause] ?? f.cause })))]);
    } catch (error) {
      if (error.name === 'AbortError' || own !== asking) return;
      refused(error);
    }
  };

  const refused = (error) => {
    const faults = error.faults ?? [];
    if (error.status !== 400 || faults.length === 0) {
      show('bad', 'Not tested', showProblem(error));
      return;
    }
    const of = (prefix) => faults.filter((f) => f.pointer === prefix || f.pointer.startsWith(`${prefix}/`)).map((f) => ({ pointer: f.pointer.slice(prefix.length), problem: f.problem }));
    const inPattern = of('/pattern');
    const inEvent = of('/event');
    pattern.mark(inPattern.map((f) => f.pointer).filter(Boolean));
    event.mark(inEvent.map((f) => f.pointer).filter(Boolean));
    show('bad', `The ${inPattern.length > 0 ? 'pattern' : 'event'} is not valid`,
      inPattern.length > 0 && faultList(pattern, inPattern), inEvent.length > 0 && faultList(event, inEvent));
  };

  const soon = later(250, signal, test);
  pattern.input.addEventListener('input', soon);
  event.input.addEventListener('input', soon);
  example.addEventListener('change', () => {
    const chosen = patternExamples[example.value];
    if (!chosen) return;
    pattern.input.value = stringify(chosen.pattern);
    event.input.value = stringify(chosen.event);
    pattern.mark([]);
    event.mark([]);
    test();
  });
  test();
  return [
    el('h1', null, 'Pattern tester'),
    el('p', { class: 'hint' }, 'The result follows each change of the text. The test stores no data.'),
    el('div', { class: 'fields' }, field('Example', example)),
    el('section', { class: 'panel', 'aria-label': 'Verdict' }, verdict, details),
    el('div', { class: 'columns' }, pattern.root, event.root),
  ];
}

/** given is the pattern of the rule that the address names. */
async function given(query, signal) {
  if (!query.get('rule')) return undefined;
  const { data } = await get(path.subscriber(query.get('bus') ?? '', query.get('subscriber') ?? ''), { signal });
  return data.rules.find((rule) => rule.name === query.get('rule'))?.pattern;
}
