package eventpattern

import (
	"slices"

	"github.com/aviaryhq/aviary/pkg/eventpattern/internal/fold"
	"github.com/aviaryhq/aviary/pkg/eventpattern/internal/network"
	"github.com/aviaryhq/aviary/pkg/eventpattern/internal/wildcard"
)

// operator reads an object with one operator, and appends its condition to group.
func (r *reader) operator(group *[]condition) error {
	start, count := r.pos, 0
	err := r.members(func(name string, at int) error {
		if count++; count > 1 {
			return r.wrong(at, "an object has one operator: put %q into an object of its own", name)
		}
		c, err := r.operand(name, at)
		if c.op == opAnythingBut && c.more != nil {
			sortLong(c.more.but)
			c.more.but = append(c.more.few[:0], c.more.but...)
		}
		*group = append(*group, c)
		return err
	})
	if err == nil && count == 0 {
		err = r.wrong(start, "the object needs an operator")
	}
	return err
}

func (r *reader) operand(name string, at int) (condition, error) {
	switch name {
	case "prefix", "suffix":
		return r.affix(name)
	case "equals-ignore-case":
		text, err := r.stringOf(name)
		return condition{op: opFoldedExact, text: fold.String(text)}, err
	case "wildcard":
		return r.wildcard()
	case "anything-but":
		return r.anythingBut()
	case "numeric":
		return r.numeric()
	case "cidr":
		start := r.pos
		text, err := r.stringOf(name)
		if err != nil {
			return condition{}, err
		}
		first, last, why := network.Parse(text)
		if why != "" {
			return condition{}, r.wrong(start, "%s", why)
		}
		return condition{op: opNetwork, more: &operand{low: bound{first, true}, high: bound{last, true}}}, nil
	case "exists":
		switch r.peek() {
		case 't':
			_, _, err := r.scalar()
			return condition{op: opAnythingBut}, err
		case 'f':
			_, _, err := r.scalar()
			return condition{op: opAbsent}, err
		}
		return condition{}, r.wrong(r.pos, "exists takes true or false")
	}
	return condition{}, r.wrong(at, "unknown operator %q", name)
}

func (r *reader) stringOf(name string) (string, error) {
	if r.peek() != '"' {
		return "", r.wrong(r.pos, "%s takes a string", name)
	}
	return r.text()
}

// affix reads the operand of prefix or suffix: a string, or an object with equals-ignore-case.
func (r *reader) affix(name string) (condition, error) {
	plain, ignoring := opPrefix, opFoldedPrefix
	if name == "suffix" {
		plain, ignoring = opSuffix, opFoldedSuffix
	}
	if r.peek() != '{' {
		text, err := r.stringOf(name)
		return condition{op: plain, text: text}, err
	}
	start, count, text := r.pos, 0, ""
	err := r.members(func(key string, at int) (err error) {
		if count++; key != "equals-ignore-case" || count > 1 {
			return r.wrong(at, "%s takes a string, or an object with equals-ignore-case", name)
		}
		text, err = r.stringOf(key)
		return err
	})
	if err == nil && count == 0 {
		err = r.wrong(start, "%s takes a string, or an object with equals-ignore-case", name)
	}
	return condition{op: ignoring, text: fold.String(text)}, err
}

// wildcard reads the operand of wildcard. A wildcard that is equal to an exact text, a prefix or a
// suffix becomes such a condition.
func (r *reader) wildcard() (condition, error) {
	start := r.pos
	text, err := r.stringOf("wildcard")
	if err != nil {
		return condition{}, err
	}
	w, plain, why := wildcard.Parse(text)
	switch {
	case why != "":
		return condition{}, r.wrong(start, "%s", why)
	case w == nil:
		return exactly(kindString, plain), nil
	case len(w.Middle) == 0 && len(w.Suffix) == 0:
		return condition{op: opPrefix, text: string(w.Prefix)}, nil
	case len(w.Middle) == 0 && len(w.Prefix) == 0:
		return condition{op: opSuffix, text: string(w.Suffix)}, nil
	}
	return condition{op: opWildcard, more: &operand{wild: w}}, nil
}

// anythingBut reads a value, a list of values, or an object with an operator of strings.
func (r *reader) anythingBut() (condition, error) {
	c := condition{op: opAnythingBut, more: &operand{}}
	switch r.peek() {
	case '{':
		start, count := r.pos, 0
		err := r.members(func(name string, at int) error {
			if count++; count > 1 {
				return r.wrong(at, "the object of anything-but has one operator")
			}
			return r.butOperator(&c.more.but, name, at)
		})
		if err == nil && count == 0 {
			err = r.wrong(start, "the object of anything-but needs an operator")
		}
		return c, err
	case '[':
		start := r.pos
		err := r.elements(func() error { return r.butValue(&c.more.but) })
		if err == nil && len(c.more.but) == 0 {
			err = r.wrong(start, "the list of anything-but is empty")
		}
		return c, err
	}
	return c, r.butValue(&c.more.but)
}

// butValue reads a string or a number.
func (r *reader) butValue(but *[]condition) error {
	start := r.pos
	if c := r.peek(); c == '{' || c == '[' {
		return r.wrong(start, "anything-but takes a string, a number, a list of either, or an object with an operator")
	}
	c, err := r.exact()
	if err != nil {
		return err
	}
	if c.kind != kindString && c.kind != kindNumber {
		return r.wrong(start, "anything-but takes strings and numbers only")
	}
	if n := len(*but); n > 0 && (*but)[n-1].kind != c.kind {
		return r.wrong(start, "the list of anything-but holds strings or numbers, not both")
	}
	*but = append(*but, c)
	return nil
}

func (r *reader) butOperator(but *[]condition, name string, at int) error {
	if !slices.Contains([]string{"prefix", "suffix", "equals-ignore-case", "wildcard"}, name) {
		return r.wrong(at, "anything-but knows no operator %q: it takes prefix, suffix, equals-ignore-case and wildcard", name)
	}
	one := func() error {
		start := r.pos
		if r.peek() == '[' {
			return r.wrong(start, "%s takes a string", name)
		}
		c, err := r.operand(name, at)
		if err == nil && c.text == "" && (name == "prefix" || name == "suffix") {
			err = r.wrong(start, "every string has an empty %s", name)
		}
		*but = append(*but, c)
		return err
	}
	if r.peek() != '[' {
		return one()
	}
	start := r.pos
	err := r.elements(one)
	if err == nil && len(*but) == 0 {
		err = r.wrong(start, "the list of %s is empty", name)
	}
	return err
}

// numeric reads a list of comparisons: one, or a lower and an upper bound.
func (r *reader) numeric() (condition, error) {
	start := r.pos
	if r.peek() != '[' {
		return condition{}, r.wrong(start, "numeric takes a list, as in [\">\", 0, \"<=\", 5]")
	}
	c := condition{op: opRange, more: &operand{}}
	var comparison string
	parts := 0
	err := r.elements(func() error {
		at := r.pos
		if r.peek() == '{' || r.peek() == '[' {
			return r.wrong(at, "numeric takes comparisons and numbers in turn")
		}
		k, text, err := r.scalar()
		if err != nil {
			return err
		}
		parts++
		if parts%2 == 1 {
			comparison = text
			return r.comparison(&c, k, text, parts, at)
		}
		if k != kindNumber {
			return r.wrong(at, "%s needs a number", comparison)
		}
		return r.bind(&c, comparison, text, at)
	})
	switch {
	case err != nil:
		return c, err
	case parts == 0:
		return c, r.wrong(start, "the list of numeric is empty")
	case parts%2 == 1:
		return c, r.wrong(start, "%s needs a number", comparison)
	}
	if low := c.more.low; low.inclusive && low == c.more.high {
		return exactly(kindNumber, low.key), nil
	}
	return c, nil
}

// comparison checks an element of the list that must be a comparison operator.
func (r *reader) comparison(c *condition, k kind, text string, part, at int) error {
	switch {
	case k != kindString:
		return r.wrong(at, "numeric takes comparisons and numbers in turn")
	case !slices.Contains([]string{"=", "<", "<=", ">", ">="}, text):
		return r.wrong(at, "unknown comparison %q: use =, <, <=, > or >=", text)
	case part > 1 && (c.more.low.key == "" || c.more.high.key != "" || text[0] != '<'):
		return r.wrong(at, "numeric takes one comparison, or a lower bound and then an upper one")
	}
	return nil
}

func (r *reader) bind(c *condition, comparison, key string, at int) error {
	b := bound{key, comparison == "=" || len(comparison) == 2}
	switch comparison[0] {
	case '=':
		c.more.low, c.more.high = b, b
	case '>':
		c.more.low = b
	case '<':
		c.more.high = b
		if c.more.low.key != "" && c.more.low.key >= key {
			return r.wrong(at, "the lower bound is not less than the upper one: no number lies between them")
		}
	}
	return nil
}
