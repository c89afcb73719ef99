package eventpattern

import (
	"github.com/aviaryhq/aviary/pkg/eventpattern/internal/fold"
	"github.com/aviaryhq/aviary/pkg/eventpattern/internal/wildcard"
)

// lookup holds the conditions on the values of one path by which matches find rules.
type lookup struct {
	owner        *edit
	exact        *exactTable
	folded       *exactTable
	prefix       *radix
	suffix       *radix
	foldedPrefix *radix
	foldedSuffix *radix
	ranges       *rangeSet
	networks     *networkSet
	grams        *gramSet
	others       *otherSet // anything-but
	absent       []post
	count        int // number of conditions, including those of others and absent
}

func (l *lookup) edited(e *edit) *lookup {
	if l == nil {
		return &lookup{owner: e}
	}
	if l.owner == e {
		return l
	}
	c := *l
	c.owner = e
	return &c
}

// place says in which table of a lookup a wildcard is.
type place struct {
	op   op // opPrefix, opSuffix, or opWildcard for the piece gram
	gram uint64
}

// add adds a condition. e must own the lookup. add uses the post exact if finding it proves the
// condition, and rough if it does not. It appends the places of wildcards to places, and remove
// takes them from the front.
func (l *lookup) add(e *edit, c *condition, exact, rough post, places *[]place) {
	l.count++
	switch c.op {
	case opExact:
		l.exact = l.exact.edited(e)
		l.exact.add(c.kind, c.text, exact)
	case opFoldedExact:
		l.folded = l.folded.edited(e)
		l.folded.add(kindString, c.text, exact)
	case opPrefix, opFoldedPrefix, opSuffix, opFoldedSuffix:
		tree, text := l.tree(c.op, c.text)
		*tree = (*tree).edited(e)
		(*tree).add(e, text, exact)
	case opRange:
		l.ranges = l.ranges.edited(e)
		l.ranges.add(c, exact)
	case opNetwork:
		l.networks = l.networks.edited(e)
		l.networks.add(c.more.net, exact)
	case opWildcard:
		*places = append(*places, l.addWildcard(e, c.more.wild, rough))
	case opAnythingBut:
		l.others = l.others.edited(e)
		l.others.add(e, c, exact)
	case opAbsent:
		l.absent = append(l.absent, exact)
	}
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

// placeOf chooses the place of a wildcard: its prefix, its suffix or a piece, whichever has the
// fewest other posts. bestCost estimates how many posts a match finds there.
func (l *lookup) placeOf(w *wildcard.Wildcard) (best place, bestCost int) {
	const shortPenalty = 8 // many values contain a short text
	bestCost = int(^uint(0) >> 1)
	if n := len(w.Prefix); n > 0 {
		best, bestCost = place{op: opPrefix}, len(l.prefix.posted(string(w.Prefix)))+shortPenalty/n
	}
	if n := len(w.Suffix); n > 0 {
		if c := len(l.suffix.posted(reversed(string(w.Suffix)))) + shortPenalty/n; c < bestCost {
			best, bestCost = place{op: opSuffix}, c
		}
	}
	pieces(w, func(g uint64) {
		c := shortPenalty / int(g>>32)
		if l.grams != nil {
			c += len(l.grams.posts[g].posts)
		}
		if c < bestCost {
			best, bestCost = place{opWildcard, g}, c
		}
	})
	return best, bestCost
}

func (l *lookup) addWildcard(e *edit, w *wildcard.Wildcard, p post) place {
	at, _ := l.placeOf(w)
	switch at.op {
	case opPrefix:
		l.prefix = l.prefix.edited(e)
		l.prefix.add(e, string(w.Prefix), p)
	case opSuffix:
		l.suffix = l.suffix.edited(e)
		l.suffix.add(e, reversed(string(w.Suffix)), p)
	default:
		l.grams = l.grams.edited(e)
		l.grams.add(at.gram, p)
	}
	return at
}

// remove undoes add.
func (l *lookup) remove(e *edit, c *condition, exact, rough post, places *[]place) {
	l.count--
	switch c.op {
	case opExact:
		l.exact = l.exact.edited(e)
		if l.exact.remove(c.kind, c.text, exact); l.exact.empty() {
			l.exact = nil
		}
	case opFoldedExact:
		l.folded = l.folded.edited(e)
		if l.folded.remove(kindString, c.text, exact); l.folded.empty() {
			l.folded = nil
		}
	case opPrefix, opFoldedPrefix, opSuffix, opFoldedSuffix:
		tree, text := l.tree(c.op, c.text)
		removeText(e, tree, text, exact)
	case opRange:
		l.ranges = l.ranges.edited(e)
		l.ranges.remove(c, exact)
	case opNetwork:
		l.networks = l.networks.edited(e)
		l.networks.remove(c.more.net, exact)
	case opWildcard:
		l.removeWildcard(e, c.more.wild, (*places)[0], rough)
		*places = (*places)[1:]
	case opAnythingBut:
		l.others = l.others.edited(e)
		l.others.remove(e, c, exact)
	case opAbsent:
		l.absent = withoutPost(l.absent, exact)
	}
}

func removeText(e *edit, tree **radix, text string, p post) {
	*tree = (*tree).edited(e)
	if (*tree).remove(e, text, p); (*tree).empty() {
		*tree = nil
	}
}

func (l *lookup) removeWildcard(e *edit, w *wildcard.Wildcard, at place, p post) {
	switch at.op {
	case opPrefix:
		removeText(e, &l.prefix, string(w.Prefix), p)
	case opSuffix:
		removeText(e, &l.suffix, reversed(string(w.Suffix)), p)
	default:
		l.grams = l.grams.edited(e)
		l.grams.remove(at.gram, p)
	}
}

// cost estimates how many posts a match finds for a value that meets the condition. The lower the
// cost, the better the condition is for finding the rule.
func (l *lookup) cost(c *condition) int {
	const vague = 64 // a condition that most values meet
	if l == nil {
		l = &lookup{}
	}
	switch c.op {
	case opExact:
		return l.exact.posted(c.kind, c.text)
	case opFoldedExact:
		return 1 + l.folded.posted(kindString, c.text)
	case opPrefix, opFoldedPrefix, opSuffix, opFoldedSuffix:
		tree, text := l.tree(c.op, c.text)
		return 1 + len((*tree).posted(text)) + vague/4/(1+len(text))
	case opNetwork:
		if l.networks == nil {
			return 2
		}
		return 2 + len(l.networks.posts[c.more.net])
	case opWildcard:
		_, cost := l.placeOf(c.more.wild)
		return 1 + cost
	case opRange:
		return vague/16 + l.ranges.overlapping(c)
	}
	return 2*vague + l.count
}

// find appends the posts for a value, except those of others and absent.
func (l *lookup) find(s *Scratch, k kind, data []byte, hits []post) []post {
	if l.exact != nil {
		hits = l.exact.posts(k, data, hits)
	}
	if k != kindString {
		if k == kindNumber && l.ranges != nil {
			before := len(hits)
			hits = l.ranges.find(data, hits)
			s.left -= len(hits) - before // each of them takes a step to find
		}
		return hits
	}
	if l.prefix != nil {
		hits = l.prefix.prefixes(data, hits)
	}
	if l.suffix != nil {
		hits = l.suffix.suffixes(data, hits)
	}
	if l.grams != nil {
		hits = l.grams.find(s, data, hits)
	}
	if l.networks != nil {
		hits = l.networks.find(data, hits)
	}
	if l.folded != nil || l.foldedPrefix != nil || l.foldedSuffix != nil {
		hits = l.findFolded(s, data, hits)
	}
	return hits
}

func (l *lookup) findFolded(s *Scratch, data []byte, hits []post) []post {
	s.folded = fold.Append(s.folded[:0], data)
	if l.folded != nil {
		hits = l.folded.posts(kindString, s.folded, hits)
	}
	if l.foldedPrefix != nil {
		hits = l.foldedPrefix.prefixes(s.folded, hits)
	}
	if l.foldedSuffix != nil {
		hits = l.foldedSuffix.suffixes(s.folded, hits)
	}
	return hits
}
