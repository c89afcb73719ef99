package match

// lookup is what rules want of the values of one path.
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
	count        int // posts, those of others and absent among them
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

// place is where a wildcard is found.
type place struct {
	op   op // opPrefix, opSuffix, or opWildcard for a piece
	gram uint64
}

// add expects a lookup that e may change. exact is the post if the lookup decides about the condition, rough if it does not. It appends the places of
// wildcards, which remove takes from the front.
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

// placeOf picks where a wildcard is found: under its prefix, its suffix or a piece, where the fewest others are. It returns an estimate of what is found
// there with it, too.
func (l *lookup) placeOf(w *wildcard) (best place, bestCost int) {
	const shortPenalty = 8 // a short text is found in many values
	bestCost = int(^uint(0) >> 1)
	if n := len(w.prefix); n > 0 {
		best, bestCost = place{op: opPrefix}, len(l.prefix.posted(string(w.prefix)))+shortPenalty/n
	}
	if n := len(w.suffix); n > 0 {
		if c := len(l.suffix.posted(reversed(string(w.suffix)))) + shortPenalty/n; c < bestCost {
			best, bestCost = place{op: opSuffix}, c
		}
	}
	w.pieces(func(g uint64) {
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

func (l *lookup) addWildcard(e *edit, w *wildcard, p post) place {
	at, _ := l.placeOf(w)
	switch at.op {
	case opPrefix:
		l.prefix = l.prefix.edited(e)
		l.prefix.add(e, string(w.prefix), p)
	case opSuffix:
		l.suffix = l.suffix.edited(e)
		l.suffix.add(e, reversed(string(w.suffix)), p)
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

func (l *lookup) removeWildcard(e *edit, w *wildcard, at place, p post) {
	switch at.op {
	case opPrefix:
		removeText(e, &l.prefix, string(w.prefix), p)
	case opSuffix:
		removeText(e, &l.suffix, reversed(string(w.suffix)), p)
	default:
		l.grams = l.grams.edited(e)
		l.grams.remove(at.gram, p)
	}
}

// cost estimates how many posts a value brings that meets a condition: the fewer, the better a way to find the rule.
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
		return vague/16 + l.ranges.crowd(c)
	}
	return 2*vague + l.count
}

// find appends what the value brings. Others and absent are not its matter.
func (l *lookup) find(s *Scratch, k kind, data []byte, hits []post) []post {
	if l.exact != nil {
		hits = l.exact.posts(k, data, hits)
	}
	if k != kindString {
		if k == kindNumber && l.ranges != nil {
			before := len(hits)
			hits = l.ranges.find(data, hits)
			s.left -= len(hits) - before // they are found one by one
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
	s.folded = appendFolded(s.folded[:0], data)
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
