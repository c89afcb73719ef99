package event

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/aviaryhq/aviary/pkg/jsontext"
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
	s := jsontext.Scanner{Src: json, MaxDepth: MaxDepth}
	at := s.Space(0)
	for _, step := range p.steps {
		if at = find(&s, at, step); at < 0 {
			return nil, false
		}
	}
	end := s.Value(at)
	if end < 0 {
		return nil, false
	}
	return json[at:end], true
}

// find returns where the member or the element named step begins in the value at i, -1 if the value
// has none.
func find(s *jsontext.Scanner, i int, step string) int {
	if i >= len(s.Src) || s.Src[i] != '{' && s.Src[i] != '[' {
		return -1
	}
	inObject := s.Src[i] == '{'
	index, err := strconv.ParseUint(step, 10, 31)
	if !inObject && (err != nil || step != strconv.FormatUint(index, 10)) {
		return -1
	}
	closing := s.Src[i] + 2
	i, more := s.Open(i)
	for ; more; index-- {
		same := !inObject && index == 0
		if inObject {
			var name []byte
			if name, i = s.Key(i); i < 0 {
				return -1
			}
			same = string(name) == step
		}
		if same {
			return i
		}
		if i = s.Value(i); i < 0 {
			return -1
		}
		i, more = s.Next(i, closing)
	}
	return -1
}
