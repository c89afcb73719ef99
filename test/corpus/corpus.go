// Package corpus makes up rules and events to measure matchers with. The same call always makes the
// same ones.
package corpus

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// Corpus is rules, as patterns of pkg/eventpattern, and events of one kind of load.
type Corpus struct {
	Name   string
	Rules  []string
	Events [][]byte
}

// events of a corpus: enough for rules and events not to stay in a processor's first caches.
const events = 4096

// Exact has events of about 500 bytes. Each matches one of the n rules, which name a source and an
// instance.
func Exact(n int) Corpus {
	r := rand.New(rand.NewPCG(5, uint64(n)))
	c := Corpus{Name: fmt.Sprintf("exact/%d", n)}
	for i := range n {
		c.Rules = append(c.Rules, fmt.Sprintf(`{"source":["app.%d"],"detail":{"instance-id":["i-%08x"]}}`, i%20, i))
	}
	for range events {
		i := r.IntN(n)
		c.Events = append(c.Events, fmt.Appendf(nil, `{"version":"0","id":"%08x-%04x-7777-4444-345dd43c%04x","detail-type":"Instance State-change Notification",`+
			`"source":"app.%d","account":"0123456%05d","time":"2026-11-%02dT16:24:49Z","region":"eu-central-%d",`+
			`"resources":["arn:bird:compute:eu-central-1:123456789012:instance/i-%08x"],"detail":{"c-count":%d,"d-count":%d,"x-limit":%d.8,`+
			`"source-ip":"10.0.%d.33","instance-id":"i-%08x","state":"running","message":"%s"}}`,
			r.Uint32(), r.IntN(1<<16), r.IntN(1<<16), i%20, r.IntN(1<<16), 1+r.IntN(28), r.IntN(3), r.Uint32(), r.IntN(9), r.IntN(9), r.IntN(900), r.IntN(256), i,
			strings.Repeat("all is well ", 6)))
	}
	return c
}

// Mixed has nested events of about 750 bytes, and of each kind of condition the same number of
// rules.
func Mixed(n int) Corpus {
	r := rand.New(rand.NewPCG(6, uint64(n)))
	c := Corpus{Name: fmt.Sprintf("mixed/%d", n)}
	for i := range n {
		source := fmt.Sprintf(`"source":["shop.%d"]`, i%20)
		var rule string
		switch i % 6 {
		case 0:
			rule = fmt.Sprintf(`{%s,"detail":{"order":{"customer":{"id":["c-%05d"]}}}}`, source, i)
		case 1:
			rule = fmt.Sprintf(`{%s,"detail":{"order":{"sku":[{"prefix":"sku-%04d"}]}}}`, source, i%5000)
		case 2:
			rule = fmt.Sprintf(`{%s,"detail":{"order":{"file":[{"suffix":"-%05d.pdf"}]}}}`, source, i)
		case 3:
			rule = fmt.Sprintf(`{%s,"detail":{"order":{"path":[{"wildcard":"/shops/*/o-%05d/*"}]}}}`, source, i)
		case 4:
			low := r.IntN(9000)
			rule = fmt.Sprintf(`{%s,"detail":{"order":{"total":[{"numeric":[">=",%d,"<",%d.5]}]}}}`, source, low, low+100)
		default:
			rule = fmt.Sprintf(`{%s,"detail":{"order":{"state":[{"anything-but":["s-%d","s-%d"]}]}}}`, source, i%50, (i+7)%50)
		}
		c.Rules = append(c.Rules, rule)
	}
	for range events {
		i := r.IntN(n)
		c.Events = append(c.Events, fmt.Appendf(nil, `{"specversion":"1.0","id":"%016x","source":"shop.%d","type":"order.changed","time":"2026-11-%02dT16:24:49.%06dZ",`+
			`"datacontenttype":"application/json","detail":{"tenant":{"name":"restaurant %d","zone":"az-%d","tags":["lunch","dinner","late"]},`+
			`"order":{"customer":{"id":"c-%05d","name":"A. Guest","mail":"guest-%d@example.org","address":{"street":"Some Street %d","city":"Somewhere","zip":"%05d"}},`+
			`"sku":"sku-%04d-%d","file":"invoice-%05d.pdf","path":"/shops/%d/o-%05d/state","state":"s-%d","total":%d.%02d,"currency":"EUR",`+
			`"items":[{"name":"soup","count":%d,"price":4.5},{"name":"bread","count":%d,"price":1.25}]}},"trace":"00-%016x%016x-%016x-01"}`,
			r.Uint64(), i%20, 1+r.IntN(28), r.IntN(1000000), r.IntN(90), r.IntN(4), i, i, r.IntN(200), r.IntN(100000), i%5000, r.IntN(10), i, r.IntN(99), i,
			r.IntN(60), r.IntN(10000), r.IntN(100), 1+r.IntN(4), 1+r.IntN(4), r.Uint64(), r.Uint64(), r.Uint64()))
	}
	return c
}

// Weak has single-field rules that most events match.
func Weak(n int) Corpus {
	c := Mixed(n)
	c.Name = fmt.Sprintf("weak/%d", n)
	for i := range c.Rules {
		c.Rules[i] = fmt.Sprintf(`{"detail":{"order":{"state":[{"anything-but":["s-%d","other-%d"]}]}}}`, i%50, i)
	}
	return c
}

// Single has the events of Mixed, and as many rules of each kind with one field each. Many match
// each event: nearly all anything-but, and a third of the ranges.
func Single(n int) Corpus {
	c := Mixed(n)
	c.Name = fmt.Sprintf("single/%d", n)
	r := rand.New(rand.NewPCG(8, uint64(n)))
	for i := range c.Rules {
		switch i % 6 {
		case 0:
			c.Rules[i] = fmt.Sprintf(`{"detail":{"order":{"customer":{"id":["c-%05d"]}}}}`, i)
		case 1:
			c.Rules[i] = fmt.Sprintf(`{"detail":{"order":{"sku":[{"prefix":"sku-%04d"}]}}}`, i%5000)
		case 2:
			c.Rules[i] = fmt.Sprintf(`{"detail":{"order":{"file":[{"suffix":"-%05d.pdf"}]}}}`, i)
		case 3:
			c.Rules[i] = fmt.Sprintf(`{"detail":{"order":{"path":[{"wildcard":"/shops/*/o-%05d/*"}]}}}`, i)
		case 4:
			low := r.IntN(9000)
			c.Rules[i] = fmt.Sprintf(`{"detail":{"order":{"total":[{"numeric":[">=",%d,"<",%d]}]}}}`, low, low+r.IntN(5000)+1)
		default:
			c.Rules[i] = fmt.Sprintf(`{"detail":{"order":{"state":[{"anything-but":"s-%d"}]}}}`, i%60)
		}
	}
	return c
}
