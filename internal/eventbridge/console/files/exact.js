// JSON whose numbers stay as they were written: 12345678901234567890 and 1.0 are not the same after a plain JSON.parse. Browsers that do not know
// JSON.rawJSON (before 2025) show such numbers as JavaScript rounds them.

/** parse reads JSON. Numbers that JavaScript would write differently become objects that stringify writes as they were. */
export function parse(text) {
  if (typeof JSON.rawJSON !== 'function') return JSON.parse(text);
  return JSON.parse(text, (key, value, context) => {
    if (typeof value !== 'number' || !context?.source || String(value) === context.source) return value;
    return Number.isSafeInteger(value) && /^-?\d+$/.test(context.source) ? value : JSON.rawJSON(context.source);
  });
}

const width = 72;

/** stringify writes it for people: what fits into a line is in one, and signs that are not seen, or turn the direction of a text, are escaped. */
export function stringify(value) {
  let text;
  try {
    text = write(value, '');
  } catch {
    text = JSON.stringify(value); // nested deeper than a function may call itself
  }
  return text.replace(/[\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`);
}

function write(value, indent) {
  if (!isTree(value)) return JSON.stringify(value);
  const line = inline(value, width - indent.length);
  if (line !== undefined) return line;
  const deeper = `${indent}  `;
  if (Array.isArray(value)) return `[\n${value.map((v) => deeper + write(v, deeper)).join(',\n')}\n${indent}]`;
  return `{\n${Object.entries(value).map(([k, v]) => `${deeper}${JSON.stringify(k)}: ${write(v, deeper)}`).join(',\n')}\n${indent}}`;
}

/** inline writes a value into one line, undefined if it is longer than room. */
function inline(value, room) {
  if (!isTree(value)) return JSON.stringify(value);
  const list = Array.isArray(value);
  const parts = [];
  let left = room - 2;
  for (const [k, v] of Object.entries(value)) {
    const of = inline(v, left);
    if (of === undefined) return undefined;
    parts.push(list ? of : `${JSON.stringify(k)}: ${of}`);
    left -= parts.at(-1).length + 2;
    if (left < -2) return undefined;
  }
  return list ? `[${parts.join(', ')}]` : `{${parts.join(', ')}}`;
}

function isTree(value) {
  return value !== null && typeof value === 'object' && !JSON.isRawJSON?.(value);
}
