// A field for JSON in which places can be marked.

import { el, id, put } from './dom.js';
import { lineOf, places } from './places.js';

/**
 * editor makes one. It returns root and input, and:
 *   mark(pointers)   marks the values that JSON Pointers lead to, until the text changes
 *   go(pointer)      selects one, and moves the focus there
 *   line(pointer)    its line, 0 where there is none
 */
export function editor(label, text, { rows = 14, hint } = {}) {
  const input = el('textarea', { id: id('json'), rows, spellcheck: 'false', autocapitalize: 'off', autocomplete: 'off' });
  input.value = text;
  const behind = el('pre', { class: 'behind', 'aria-hidden': 'true' });
  const note = hint && el('p', { class: 'hint', id: id('hint') }, hint);
  if (note) input.setAttribute('aria-describedby', note.id);
  const root = el('div', { class: 'editor' }, el('label', { for: input.id }, label), note, el('div', { class: 'sheet' }, behind, input));

  input.addEventListener('scroll', () => {
    behind.scrollTop = input.scrollTop;
    behind.scrollLeft = input.scrollLeft;
  });
  input.addEventListener('input', () => mark([]));

  function mark(pointers) {
    const text = input.value;
    const found = [...places(text, pointers).values()].sort((a, b) => a.start - b.start);
    const parts = [];
    let at = 0;
    for (const { start, end } of found) {
      if (start < at) continue; // inside one that is marked
      parts.push(text.slice(at, start), el('mark', null, text.slice(start, end)));
      at = end;
    }
    put(behind, found.length > 0 ? [parts, text.slice(at), '\n'] : []);
    if (pointers.length > 0) input.setAttribute('aria-invalid', 'true');
    else input.removeAttribute('aria-invalid');
    behind.scrollTop = input.scrollTop;
  }

  function go(pointer) {
    const place = places(input.value, [pointer]).get(pointer);
    input.focus();
    if (!place) return;
    input.setSelectionRange(place.start, place.end);
    const lines = input.value.split('\n').length;
    input.scrollTop = Math.max(0, (lineOf(input.value, place.start) / lines) * input.scrollHeight - input.clientHeight / 2);
  }

  function line(pointer) {
    const place = places(input.value, [pointer]).get(pointer);
    return place ? lineOf(input.value, place.start) : 0;
  }

  return { root, input, mark, go, line };
}

/** faultList shows faults of an editor's text, each with a button that leads there. */
export function faultList(sheet, faults) {
  return el('ul', { class: 'faults' }, faults.map(({ pointer, problem }) => {
    const line = sheet.line(pointer);
    return el('li', null,
      el('button', { type: 'button', class: 'pointer', onclick: () => sheet.go(pointer) }, pointer || 'the whole', line > 0 && el('span', { class: 'hint' }, ` line ${line}`)),
      ' ', el('span', null, problem));
  }));
}
