// Where the values of a JSON text are.

/**
 * places returns for JSON Pointers where in a text they lead: { start, end } of a key with its value, of the key alone where
 * the value has several lines, or of the value where there is no key. Pointers that lead nowhere have no place. A text that
 * is not JSON has the places before its fault.
 */
export function places(text, pointers) {
  const found = new Map();
  try {
    new Scanner(text, new Set(pointers), found).value('', -1, -1);
  } catch {
    // not JSON, or too deep
  }
  return found;
}

/** lineOf is the number of the line that has an offset, from 1. */
export function lineOf(text, offset) {
  return text.slice(0, offset).split('\n').length;
}

class Scanner {
  constructor(text, wanted, found) {
    Object.assign(this, { text, wanted, found, at: 0 });
  }

  /** value reads one. keyStart and keyEnd are those of its key, -1 without one. */
  value(pointer, keyStart, keyEnd) {
    this.space();
    const start = this.at;
    if (this.wanted.has(pointer)) this.found.set(pointer, { start, end: this.text.length }); // until its end is known
    switch (this.text[start]) {
      case '{': this.members(pointer); break;
      case '[': this.elements(pointer); break;
      case '"': this.string(); break;
      default: this.literal();
    }
    if (!this.wanted.has(pointer)) return;
    let place = { start, end: this.at };
    if (keyStart >= 0) {
      place = { start: keyStart, end: this.text.slice(start, this.at).includes('\n') ? keyEnd : this.at };
    }
    this.found.set(pointer, place);
  }

  members(pointer) {
    this.at += 1;
    for (this.space(); this.text[this.at] !== '}'; this.space()) {
      const start = this.at;
      const key = this.string();
      const end = this.at;
      this.take(':');
      this.value(`${pointer}/${key.replaceAll('~', '~0').replaceAll('/', '~1')}`, start, end);
      this.space();
      if (this.text[this.at] !== '}') this.take(',');
    }
    this.at += 1;
  }

  elements(pointer) {
    this.at += 1;
    let i = 0;
    for (this.space(); this.text[this.at] !== ']'; this.space()) {
      this.value(`${pointer}/${i}`, -1, -1);
      i += 1;
      this.space();
      if (this.text[this.at] !== ']') this.take(',');
    }
    this.at += 1;
  }

  string() {
    const start = this.at;
    if (this.text[start] !== '"') throw new SyntaxError();
    for (this.at += 1; this.text[this.at] !== '"'; this.at += 1) {
      if (this.at >= this.text.length) throw new SyntaxError();
      if (this.text[this.at] === '\\') this.at += 1;
    }
    this.at += 1;
    return JSON.parse(this.text.slice(start, this.at));
  }

  literal() {
    const start = this.at;
    while (this.at < this.text.length && !',]} \t\r\n'.includes(this.text[this.at])) this.at += 1;
    if (this.at === start) throw new SyntaxError();
  }

  take(sign) {
    this.space();
    if (this.text[this.at] !== sign) throw new SyntaxError();
    this.at += 1;
  }

  space() {
    while (this.at < this.text.length && ' \t\r\n'.includes(this.text[this.at])) this.at += 1;
  }
}
