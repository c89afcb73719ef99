package eventpattern_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/aviaryhq/aviary/pkg/eventpattern"
)

// maker makes up patterns and events over few keys and values, so that much matches and much nearly
// does.
type maker struct{ *rand.Rand }

func (m maker) of(list ...string) string { return list[m.IntN(len(list))] }

func (m maker) key() string {
	return m.of(`"a"`, `"b"`, `"c"`, `"a.b"`, `"é"`, `"\u0061"`, `"\u00e9"`)
}

func (m maker) text() string {
	return m.of(`"x"`, `"xy"`, `"xyz"`, `"XY"`, `""`, `"yx"`, `"xaby"`, `"x*y"`, `"\u0078y"`, `"K\u212a"`, `"kk"`, `"straße"`, `"STRASSE"`, `"10.0.0.1"`,
		`"10.1.2.3"`, `"::1"`, `"::ffff:10.0.0.1"`, `"fe80::1%eth0"`, `"300"`, `"true"`, `"\ud83d\ude00z"`, `"😀"`, `"a\\b"`, `"/lib/x.so"`, `"010.0.0.1"`, `"2001:db8::"`)
}

func (m maker) number() string {
	return m.of("0", "-0", "0.0e5", "1", "300", "300.0", "3.0e2", "3e+2", "-1.5", "-15e-1", "0.1", "1e-1", "1e400", "10e399", "-1e400",
		"9007199254740993", "9007199254740992", "123456789012345678901234567890", "123456789012345678901234567890.5", "5", "4.999", "-2", "-20")
}

func (m maker) scalar() string {
	switch m.IntN(5) {
	case 0, 1:
		return m.text()
	case 2, 3:
		return m.number()
	}
	return m.of("true", "false", "null")
}

func (m maker) event(depth int) string {
	seen := map[string]bool{}
	var fields []string
	for range m.IntN(4) {
		key := m.key()
		var decoded string
		_ = json.Unmarshal([]byte(key), &decoded)
		if !seen[decoded] {
			seen[decoded] = true
			fields = append(fields, key+m.of(":", " :\n")+m.value(depth-1))
		}
	}
	return "{" + strings.Join(fields, m.of(",", ", ")) + "}"
}

func (m maker) value(depth int) string {
	if depth > 0 {
		switch m.IntN(5) {
		case 0, 1:
			return m.event(depth)
		case 2, 3:
			var elements []string
			for range m.IntN(4) {
				elements = append(elements, m.value(depth-1))
			}
			return "[" + strings.Join(elements, ",") + "]"
		}
	}
	return m.scalar()
}

func (m maker) pattern(depth int) string {
	seen := map[string]bool{}
	var fields []string
	for range 1 + m.IntN(2) {
		key := m.of(`"a"`, `"b"`, `"c"`, `"a.b"`, `"é"`)
		if seen[key] {
			continue
		}
		seen[key] = true
		if depth > 1 && m.IntN(2) == 0 {
			fields = append(fields, key+":"+m.pattern(depth-1))
		} else {
			fields = append(fields, key+":"+m.list(m.alternative))
		}
	}
	if depth > 1 && m.IntN(4) == 0 {
		fields = append(fields, fmt.Sprintf(`"$or":[%s,%s]`, m.pattern(depth-1), m.pattern(depth-1)))
	}
	return "{" + strings.Join(fields, ",") + "}"
}

func (m maker) list(one func() string) string {
	var all []string
	for range 1 + m.IntN(3) {
		all = append(all, one())
	}
	return "[" + strings.Join(all, ",") + "]"
}

func (m maker) wildcard() string {
	return m.of(`"*"`, `"x*"`, `"*y"`, `"x*y"`, `"*x*"`, `"*ab*"`, `"x\\*y"`, `"*\\\\*"`, `"x*b*y"`, `"*/lib/*"`, `"*.so"`, `"xy"`, `"x*xy"`, `"*😀*"`)
}

func (m maker) affix() string { return m.of(`"x"`, `"xy"`, `"y"`, `"/lib/"`, `"z"`, `"straß"`, `"K"`) }

func (m maker) alternative() string {
	folded := func() string { return fmt.Sprintf(`{"equals-ignore-case":%s}`, m.of(m.text(), `"k"`, `"xY"`)) }
	switch m.IntN(14) {
	case 0, 1:
		return m.scalar()
	case 2:
		return fmt.Sprintf(`{"prefix":%s}`, m.of(m.affix(), folded(), `""`))
	case 3:
		return fmt.Sprintf(`{"suffix":%s}`, m.of(m.affix(), folded()))
	case 4:
		return folded()
	case 5:
		return fmt.Sprintf(`{"wildcard":%s}`, m.wildcard())
	case 6, 7:
		return fmt.Sprintf(`{"anything-but":%s}`, m.of(m.text(), m.number(), m.list(m.text), m.list(m.number)))
	case 8:
		name := m.of("prefix", "suffix", "equals-ignore-case", "wildcard")
		one := m.affix
		if name == "wildcard" {
			one = m.wildcard
		}
		return fmt.Sprintf(`{"anything-but":{"%s":%s}}`, name, m.of(one(), m.list(one)))
	case 9:
		return fmt.Sprintf(`{"numeric":["%s",%s]}`, m.of("=", "<", "<=", ">", ">="), m.number())
	case 10:
		return m.of(`{"numeric":[">",-2,"<=",300]}`, `{"numeric":[">=",0,"<",1e400]}`, `{"numeric":[">=",-1e400,"<",1]}`)
	case 11:
		return fmt.Sprintf(`{"cidr":%s}`, m.of(`"10.0.0.0/8"`, `"10.0.0.0/24"`, `"::/0"`, `"0.0.0.0/0"`, `"::ffff:10.0.0.0/104"`, `"2001:db8::/32"`, `"::1/128"`))
	case 12:
		return `{"exists":true}`
	}
	return `{"exists":false}`
}

// TestDifferential compares an index of many rules, and Explain of each, with the naive evaluator,
// while rules come and go. AVIARY_MATCH_SEEDS is a number of fresh seeds to run in place of those of
// an ordinary run.
func TestDifferential(t *testing.T) {
	seeds := []uint64{203} // failed once
	for seed := range uint64(60) {
		seeds = append(seeds, seed)
	}
	if n, err := strconv.Atoi(os.Getenv("AVIARY_MATCH_SEEDS")); err == nil {
		seeds = seeds[:0]
		for range n {
			seeds = append(seeds, rand.Uint64())
		}
	}
	const parts = 4
	for part := range parts {
		t.Run(strconv.Itoa(part), func(t *testing.T) {
			t.Parallel()
			rounds, matches := 0, 0
			for i := part; i < len(seeds); i += parts {
				rounds++
				matches += compare(t, seeds[i], 12, 12)
			}
			if matches < rounds {
				t.Errorf("only %d matches: the comparison says little", matches)
			}
		})
	}
}

func compare(t *testing.T, seed uint64, rules, events int) (matches int) {
	t.Helper()
	m := maker{rand.New(rand.NewPCG(seed, 1))}
	x := eventpattern.NewIndex[string]()
	parsed := map[string]*eventpattern.Pattern{}
	described := map[string][][]naiveField{}
	var s eventpattern.Scratch
	for range events {
		for range rules {
			text := m.pattern(3)
			p, err := eventpattern.Parse([]byte(text))
			if err != nil {
				t.Fatalf("seed %d: %s: %v", seed, text, err)
			}
			parsed[text] = p
			if described[text], err = naivePattern([]byte(text)); err != nil {
				t.Fatal(err)
			}
			x.Set(text, p)
		}
		for text := range parsed {
			if len(parsed) > 3*rules {
				x.Update(func(c *eventpattern.Change[string]) { c.Remove(text) })
				delete(parsed, text)
				delete(described, text)
			}
		}
		event := []byte(m.event(4))
		got, err := x.Match(&s, nil, event)
		if err != nil {
			t.Fatalf("seed %d: %s: %v", seed, event, err)
		}
		values, err := naiveValues(event)
		if err != nil {
			t.Fatal(err)
		}
		for text, p := range parsed {
			want := values.meets(described[text])
			if found := count(got, text); found > 1 || found == 1 != want {
				t.Fatalf("seed %d: pattern %s\nevent %s\nfound %d times, the description says %v", seed, text, event, found, want)
			}
			if want {
				matches++
			}
			switch e, err := p.Explain(event); {
			case err != nil:
				t.Fatal(err)
			case e.Match != want, e.Match == (len(e.Failed) > 0):
				t.Fatalf("seed %d: pattern %s\nevent %s\nexplained as %+v, the description says %v", seed, text, event, e, want)
			}
		}
	}
	return matches
}

func count(list []string, one string) (n int) {
	for range slices.Values(slices.DeleteFunc(slices.Clone(list), func(s string) bool { return s != one })) {
		n++
	}
	return n
}
