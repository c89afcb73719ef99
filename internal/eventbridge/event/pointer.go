package event

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Pointer is a JSON Pointer (RFC 6901). The zero value points at the whole value.
type Pointer struct{ steps []string }

// ParsePointer parses a pointer: empty, or steps that each begin with "/", in which ~1 stands for /
// and ~0 for ~.
func ParsePointer(text string) (Pointer, error) {
	if text == "" {
		return Pointer{}, nil
	}
	if text[0] != '/' {
		return Pointer{}, fmt.Errorf("a JSON Pointer begins with /, got %s", shown(text))
	}
	steps := strings.Split(text[1:], "/")
	if len(steps) > MaxDepth {
		return Pointer{}, fmt.Errorf("a JSON Pointer has at most %d steps, got %d", MaxDepth, len(steps))
	}
	for i, step := range steps {
		for rest := step; ; {
			_, after, found := strings.Cut(rest, "~")
			if !found {
				break
			}
			if after == "" || after[0] != '0' && after[0] != '1' {
				return Pointer{}, errors.New("in a JSON Pointer ~ must be followed by 0 or 1")
			}
			rest = after[1:]
		}
		steps[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(step)
	}
	return Pointer{steps}, nil
}

// Find returns the value that the pointer points at, as it is in valid JSON, and whether there is
// one. The value is a part of json.
func (p Pointer) Find(json []byte) (value []byte, found bool) {
	s := scanner{src: json}
	at := s.skipBlanks(0)
	for _, step := range p.steps {
		if at >= len(json) {
			return nil, false
		}
		switch json[at] {
		case '{':
			at = s.findKey(at, step)
		case '[':
			at = s.findElement(at, step)
		default:
			return nil, false
		}
		if at < 0 {
			return nil, false
		}
	}
	end := s.pass(at)
	if end < 0 {
		return nil, false
	}
	return json[at:end], true
}

// findKey returns where the value of a key of the object at i begins, -1 if there is no such key.
func (s *scanner) findKey(i int, name string) int {
	i = s.skipBlanks(i + 1)
	for i < len(s.src) && s.src[i] == '"' {
		at := i + 1
		end := s.pass(i)
		if end < 0 {
			return -1
		}
		raw := s.src[at : end-1]
		same := string(raw) == name
		if !same && strings.IndexByte(string(raw), '\\') >= 0 {
			same = string(appendDecoded(nil, raw)) == name
		}
		if i = s.skipBlanks(end); i >= len(s.src) || s.src[i] != ':' {
			return -1
		}
		i = s.skipBlanks(i + 1)
		if same {
			return i
		}
		if i = s.pass(i); i < 0 {
			return -1
		}
		if i = s.skipBlanks(i); i < len(s.src) && s.src[i] == ',' {
			i = s.skipBlanks(i + 1)
		}
	}
	return -1
}

// findElement returns where an element of the list at i begins, -1 if there is no such element.
func (s *scanner) findElement(i int, step string) int {
	n, err := strconv.ParseUint(step, 10, 31)
	if err != nil || len(step) > 1 && step[0] == '0' {
		return -1
	}
	i = s.skipBlanks(i + 1)
	for ; i < len(s.src) && s.src[i] != ']'; n-- {
		if n == 0 {
			return i
		}
		if i = s.pass(i); i < 0 {
			return -1
		}
		if i = s.skipBlanks(i); i < len(s.src) && s.src[i] == ',' {
			i = s.skipBlanks(i + 1)
		}
	}
	return -1
}

// pass returns the position after the value at i of valid JSON, -1 if the value ends too early. It
// looks only at brackets and texts.
func (s *scanner) pass(i int) int {
	src, depth := s.src, 0
	for ; i < len(src); i++ {
		switch src[i] {
		case '"':
			for i++; i < len(src) && src[i] != '"'; i++ {
				if src[i] == '\\' {
					i++
				}
			}
			if i >= len(src) {
				return -1
			}
		case '{', '[':
			depth++
			continue
		case '}', ']':
			depth--
		default:
			if depth > 0 {
				continue
			}
			for i < len(src) && src[i] > ' ' && src[i] != ',' && src[i] != '}' && src[i] != ']' {
				i++
			}
			return i
		}
		if depth <= 0 {
			return i + 1
		}
	}
	return -1
}
