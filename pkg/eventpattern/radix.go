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
	list  []posting
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

// add adds a posting of a text. e must own the node: see edited.
func (n *radix) add(e *edit, text string, p posting) {
	for {
		if text == "" {
			n.list = append(n.list, p)
			return
		}
		at := bytes.IndexByte(n.keys, text[0])
		if at < 0 {
			n.keys = append(n.keys, text[0])
			n.kids = append(n.kids, &radix{owner: e, label: text, list: []posting{p}})
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

// posted returns the postings of exactly this text.
func (n *radix) posted(text string) []posting {
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
	return n.list
}

// prefixes appends to found the postings of all texts with which data begins.
func (n *radix) prefixes(data []byte, found []posting) []posting {
	for {
		found = append(found, n.list...)
		if len(data) == 0 {
			return found
		}
		at := bytes.IndexByte(n.keys, data[0])
		if at < 0 {
			return found
		}
		n = n.kids[at]
		if len(n.label) > len(data) || n.label != string(data[:len(n.label)]) {
			return found
		}
		data = data[len(n.label):]
	}
}

// suffixes appends to found the postings of all texts whose reverse is a suffix of data.
func (n *radix) suffixes(data []byte, found []posting) []posting {
	for {
		found = append(found, n.list...)
		if len(data) == 0 {
			return found
		}
		at := bytes.IndexByte(n.keys, data[len(data)-1])
		if at < 0 {
			return found
		}
		n = n.kids[at]
		if len(n.label) > len(data) {
			return found
		}
		for i := range len(n.label) {
			if n.label[i] != data[len(data)-1-i] {
				return found
			}
		}
		data = data[:len(data)-len(n.label)]
	}
}
