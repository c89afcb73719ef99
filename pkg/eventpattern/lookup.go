package eventpattern

import (
	"slices"

	"github.com/aviaryhq/aviary/pkg/eventpattern/internal/fold"
	"github.com/aviaryhq/aviary/pkg/eventpattern/internal/network"
)

// posting is an entry of a lookup: a number and bits. With postingSure the value alone decides
// that the rule matches, and the number is the rule's. Otherwise the number is that of a clause,
// which the match must still check.
type posting uint32

const (
	postingSure  posting = 1 << iota
	postingList          // the number is that of a list of postings
	postingSole          // the rule has no other posting
	postingShift         = iota

	noPosting posting = 0
)

func makePosting(number uint32, bits posting) posting {
	return posting((number+1)<<postingShift) | bits
}

func (p posting) number() uint32 { return uint32(p>>postingShift) - 1 }

// lookup holds the conditions on the values of one path by which matches find rules.
type lookup struct {
	owner        *edit
	exact        [kindNull + 1]*exactTable // by kind of the value
	folded       *exactTable
	prefix       *radix
	suffix       *radix
	foldedPrefix *radix
	foldedSuffix *radix
	numbers      *rangeSet
	networks     *rangeSet
	pieces       *pieceSet
	exclusions   *exclusionSet
	any          []posting // of conditions that each value of the path may meet
}

// edited returns a lookup that e may change: l, or a copy if older snapshots use l.
func (l *lookup) edited(e *edit) *lookup {
	if l == nil {
		return &lookup{owner: e}
	}
	if l.owner == e {
		return l
	}
	c := *l
	c.owner, c.folded = e, l.folded.clone()
	for k := range c.exact {
		c.exact[k] = l.exact[k].clone()
	}
	c.numbers, c.networks, c.pieces, c.exclusions = l.numbers.clone(), l.networks.clone(), l.pieces.clone(), l.exclusions.clone()
	return &c
}

// proven reports whether a posting of the condition proves that the value meets it.
func (c *condition) proven() bool {
	return c.op != opWildcard
}

// add adds a condition that requires a value. e must own the lookup.
func (l *lookup) add(e *edit, c *condition, p posting) {
	switch c.op {
	case opExact:
		addExact(&l.exact[c.kind], c.text, p)
	case opFoldedExact:
		addExact(&l.folded, c.text, p)
	case opPrefix, opFoldedPrefix, opSuffix, opFoldedSuffix:
		tree, text := l.tree(c.op, c.text)
		*tree = (*tree).edited(e)
		(*tree).add(e, text, p)
	case opRange:
		addRange(e, &l.numbers, c, p)
	case opNetwork:
		addRange(e, &l.networks, c, p)
	case opWildcard:
		if piece, _, ok := l.pieces.rarest(c.more.wild); ok {
			if l.pieces == nil {
				l.pieces = newPieceSet()
			}
			l.pieces.add(piece, p)
			return
		}
		l.any = append(l.any, p)
	case opAnythingBut:
		if c.more != nil {
			if l.exclusions == nil {
				l.exclusions = &exclusionSet{}
			}
			l.exclusions.add(e, c, p)
			return
		}
		l.any = append(l.any, p)
	}
}

func addExact(table **exactTable, text string, p posting) {
	if *table == nil {
		*table = newExactTable()
	}
	(*table).add(text, p)
}

func (l *lookup) tree(o op, text string) (tree **radix, path string) {
	switch o {
	case opPrefix:
		return &l.prefix, text
	case opFoldedPrefix:
		return &l.foldedPrefix, text
	case opSuffix:
		return &l.suffix, reversed(text)
	}
	return &l.foldedSuffix, reversed(text)
}

func reversed(text string) string {
	b := []byte(text)
	slices.Reverse(b)
	return string(b)
}

// cost estimates how many postings a match finds for a value that meets the condition. The lower
// the cost, the better the condition is for finding the rule.
func (l *lookup) cost(c *condition) int {
	const vague = 64 // a condition that most values meet
	if l == nil {
		l = &lookup{}
	}
	switch c.op {
	case opExact:
		return l.exact[c.kind].count(c.text)
	case opFoldedExact:
		return 1 + l.folded.count(c.text)
	case opPrefix, opFoldedPrefix, opSuffix, opFoldedSuffix:
		tree, text := l.tree(c.op, c.text)
		return 1 + len((*tree).posted(text)) + vague/4/(1+len(text))
	case opNetwork:
		return 2 + l.networks.overlapping(c)
	case opRange:
		return vague/16 + l.numbers.overlapping(c)
	case opWildcard:
		if _, postings, ok := l.pieces.rarest(c.more.wild); ok {
			return 3 + postings
		}
	}
	cost := 2*vague + len(l.any)
	if l.exclusions != nil {
		cost += len(l.exclusions.postings)
	}
	return cost
}

// find appends the postings for a value, except those of any.
func (l *lookup) find(s *Scratch, k kind, data []byte, found []posting) []posting {
	if table := l.exact[k]; table != nil {
		found = table.find(data, found)
	}
	if k != kindString {
		if k == kindNumber && l.numbers != nil {
			found = l.numbers.find(data, found)
		}
		return found
	}
	if l.prefix != nil {
		found = l.prefix.prefixes(data, found)
	}
	if l.suffix != nil {
		found = l.suffix.suffixes(data, found)
	}
	if l.pieces != nil {
		found = l.pieces.find(s, data, found)
	}
	if l.networks != nil {
		if s.key = network.AppendKey(s.key[:0], data); len(s.key) > 0 {
			found = l.networks.find(s.key, found)
		}
	}
	if l.folded != nil || l.foldedPrefix != nil || l.foldedSuffix != nil {
		found = l.findFolded(s, data, found)
	}
	return found
}

func (l *lookup) findFolded(s *Scratch, data []byte, found []posting) []posting {
	s.folded = fold.Append(s.folded[:0], data)
	if l.folded != nil {
		found = l.folded.find(s.folded, found)
	}
	if l.foldedPrefix != nil {
		found = l.foldedPrefix.prefixes(s.folded, found)
	}
	if l.foldedSuffix != nil {
		found = l.foldedSuffix.suffixes(s.folded, found)
	}
	return found
}
