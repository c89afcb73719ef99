package command

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// keySpec says at which positions keys are, as the key specifications of COMMAND do.
type keySpec struct {
	word  string // keys begin after this word; "" when they begin at an index
	begin int    // that index, or where the search for the word begins: from the end when < 0

	counted bool
	// For a range, a is the last key, relative to the first one or, when < 0, to the end; b is the
	// step between keys; c, when > 1, is the limit: only the first 1/c of the remaining arguments
	// are keys. For a counted list (numkeys), a is the position of the number and b that of the
	// first key, both relative to begin; c is the step.
	a, b, c int
}

func parseKeySpecs(text string) ([]keySpec, error) {
	if text == "-" {
		return nil, nil
	}
	var specs []keySpec
	for one := range strings.SplitSeq(text, ";") {
		if strings.Contains(one, "?") {
			continue // unknown position, as for SORT
		}
		spec, err := parseKeySpec(one)
		if err != nil {
			return nil, err
		}
		specs = append(specs, spec)
	}
	return specs, nil
}

func parseKeySpec(text string) (keySpec, error) {
	var s keySpec
	at := strings.LastIndexAny(text, "rn")
	if at < 1 {
		return s, fmt.Errorf("key specification %q", text)
	}
	begin, find := text[:at], text[at:]
	s.counted = find[0] == 'n'
	if _, err := fmt.Sscanf(find[1:], "%d/%d/%d", &s.a, &s.b, &s.c); err != nil {
		return s, fmt.Errorf("key specification %q: %w", text, err)
	}
	number := begin[1:]
	if begin[0] == 'k' {
		s.word, number, _ = strings.Cut(strings.ToLower(number), "@")
	}
	var err error
	if s.begin, err = strconv.Atoi(number); err != nil {
		return s, fmt.Errorf("key specification %q: %w", text, err)
	}
	return s, nil
}

// Keys calls yield with the position of each key among the arguments, until yield returns false. It
// allocates nothing. For an option with a key that is given several times, it yields the key of
// each one.
func (c *Command) Keys(raw []byte, args []resp.Arg, yield func(position int) bool) {
	if c.Name == "xread" || c.Name == "xreadgroup" {
		// A group or a consumer may be named STREAMS, so a search for this word is not enough.
		first, _ := Streams(raw, args)
		for i := first; first > 0 && i < first+(len(args)-first)/2; i++ {
			if !yield(i) {
				return
			}
		}
		return
	}
	specs, stores := c.keys, 0
	switch c.Name {
	case "sort":
		stores = 2
	case "georadius", "georadiusbymember":
		specs, stores = c.keys[:1], 5 // the other specifications find only the first STORE, but Redis uses the last one
	}
	for i := range specs {
		if !specs[i].each(raw, args, yield) {
			return
		}
	}
	if stores > 0 {
		eachStore(raw, args, stores, yield)
	}
}

// eachStore calls yield with the position after each word STORE or STOREDIST.
func eachStore(raw []byte, args []resp.Arg, from int, yield func(int) bool) {
	for i := from; i+1 < len(args); i++ {
		word := raw[args[i].Start:args[i].End]
		if (resp.EqualFold(word, "store") || resp.EqualFold(word, "storedist")) && !yield(i+1) {
			return
		}
	}
}

// Streams reads the options of XREAD and XREADGROUP as Redis does. It returns where the keys begin,
// 0 when Redis refuses the options, and where the timeout is, 0 if the command does not block.
func Streams(raw []byte, args []resp.Arg) (first, timeout int) {
	for i := 1; i < len(args); i++ {
		word, more := raw[args[i].Start:args[i].End], len(args)-i-1
		switch {
		case resp.EqualFold(word, "block") && more > 0:
			i++
			timeout = i // the last one counts
		case resp.EqualFold(word, "count") && more > 0:
			i++
		case resp.EqualFold(word, "group") && more > 1:
			i += 2
		case resp.EqualFold(word, "noack"):
		case resp.EqualFold(word, "streams") && more > 0:
			return i + 1, timeout
		default:
			return 0, timeout
		}
	}
	return 0, timeout
}

// SingleKey returns the position of the only key, or 0 if the command has no key or may have
// several.
func (c *Command) SingleKey() int {
	if len(c.keys) == 1 && c.Name != "sort" {
		if s := &c.keys[0]; s.word == "" && !s.counted && s.a == 0 {
			return s.begin
		}
	}
	return 0
}

// HasKeys reports whether arguments of the command may be keys.
func (c *Command) HasKeys() bool { return len(c.keys) > 0 }

func (s *keySpec) each(raw []byte, args []resp.Arg, yield func(int) bool) bool {
	first, ok := s.first(raw, args)
	if !ok {
		return true
	}
	var last int
	step := max(1, s.b)
	if s.counted {
		if first+s.a >= len(args) {
			return true
		}
		number := args[first+s.a]
		n, ok := resp.ParseInt(raw[number.Start:number.End])
		if !ok || n <= 0 || n > int64(len(args)) {
			return true
		}
		step = max(1, s.c)
		last = first + s.b + (int(n)-1)*step
		first += s.b
	} else {
		switch {
		case s.a >= 0:
			last = first + s.a
		case s.c > 1:
			last = first + (len(args)-first)/s.c + s.a
		default:
			last = len(args) + s.a
		}
	}
	for i := first; i <= last && i < len(args); i += step {
		if !yield(i) {
			return false
		}
	}
	return true
}

// first returns the position to which the specification is relative. ok is false if there is none.
func (s *keySpec) first(raw []byte, args []resp.Arg) (int, bool) {
	if s.word == "" {
		return s.begin, s.begin < len(args)
	}
	from, to, step := s.begin, len(args), 1
	if s.begin < 0 {
		from, to, step = len(args)+s.begin, 0, -1
	}
	for i := from; i > 0 && i < len(args) && i != to; i += step {
		if resp.EqualFold(raw[args[i].Start:args[i].End], s.word) {
			return i + 1, true
		}
	}
	return 0, false
}
