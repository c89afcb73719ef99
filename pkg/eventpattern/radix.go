package eventpattern

import (
	"bytes"
	"slices"
)

// radix is a node of a radix tree of texts. The tree finds all texts with which a value begins, or
// ends if the texts were added reversed.
type radix struct {
	owner *edit
	label string // the text from the parent to this node
	keys  []byte // first bytes of the labels of kids
	kids  []*radix
	posts []post
}

func (n *radix) edited(e *edit) *radix {
	if n == nil {
		return &radix{owner: e}
	}
	if n.owner == e {
		return n
	}
	c := *n
	c.owner, c.keys, c.kids = e, slices.Clone(n.keys), slices.Clone(n.kids)
	return &c
}

func reversed(text string) string {
	b := []byte(text)
	slices.Reverse(b)
	return string(b)
}

// add adds a post of a text. e must own the node: see edited.
func (n *radix) add(e *edit, text string, p post) {
	for {
		if text == "" {
			n.posts = append(n.posts, p)
			return
		}
		at := bytes.IndexByte(n.keys, text[0])
		if at < 0 {
			n.keys = append(n.keys, text[0])
			n.kids = append(n.kids, &radix{owner: e, label: text, posts: []post{p}})
			return
		}
		kid := n.kids[at].edited(e)
		n.kids[at] = kid
		same := commonPrefix(kid.label, text)
		if same < len(kid.label) {
			rest := *kid
			rest.label = kid.label[same:]
			*kid = radix{owner: e, label: kid.label[:same], keys: []byte{rest.label[0]}, kids: []*radix{&rest}}
		}
		n, text = kid, text[same:]
	}
}

func commonPrefix(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// posted returns the posts of exactly this text.
func (n *radix) posted(text string) []post {
	for n != nil && text != "" {
		at := bytes.IndexByte(n.keys, text[0])
		if at < 0 || len(n.kids[at].label) > len(text) || n.kids[at].label != text[:len(n.kids[at].label)] {
			return nil
		}
		n, text = n.kids[at], text[len(n.kids[at].label):]
	}
	if n == nil {
		return nil
	}
	return n.posts
}

// remove removes an existing post of a text. e must own the node. remove also removes nodes without
// posts that are not needed any more.
func (n *radix) remove(e *edit, text string, p post) {
	if text == "" {
		n.posts = withoutPost(n.posts, p)
		return
	}
	at := bytes.IndexByte(n.keys, text[0])
	kid := n.kids[at].edited(e)
	n.kids[at] = kid
	kid.remove(e, text[len(kid.label):], p)
	switch {
	case len(kid.posts) > 0:
	case len(kid.kids) == 0:
		n.keys, n.kids = slices.Delete(n.keys, at, at+1), slices.Delete(n.kids, at, at+1)
	case len(kid.kids) == 1:
		only := kid.kids[0].edited(e)
		only.label = kid.label + only.label
		n.kids[at] = only
	}
}

func (n *radix) empty() bool { return len(n.posts) == 0 && len(n.kids) == 0 }

// prefixes appends to hits the posts of all texts with which data begins.
func (n *radix) prefixes(data []byte, hits []post) []post {
	for {
		hits = append(hits, n.posts...)
		if len(data) == 0 {
			return hits
		}
		at := bytes.IndexByte(n.keys, data[0])
		if at < 0 {
			return hits
		}
		n = n.kids[at]
		if len(n.label) > len(data) || n.label != string(data[:len(n.label)]) {
			return hits
		}
		data = data[len(n.label):]
	}
}

// suffixes appends to hits the posts of all texts whose reverse is a suffix of data.
func (n *radix) suffixes(data []byte, hits []post) []post {
	for {
		hits = append(hits, n.posts...)
		if len(data) == 0 {
			return hits
		}
		at := bytes.IndexByte(n.keys, data[len(data)-1])
		if at < 0 {
			return hits
		}
		n = n.kids[at]
		if len(n.label) > len(data) {
			return hits
		}
		for i := range len(n.label) {
			if n.label[i] != data[len(data)-1-i] {
				return hits
			}
		}
		data = data[:len(data)-len(n.label)]
	}
}
