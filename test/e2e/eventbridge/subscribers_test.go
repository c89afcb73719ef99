package eventbridge

import (
	"strings"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
)

// The kinds of events.
const (
	placed = "order.placed"
	paid   = "order.paid"
	low    = "stock.low"
)

// An event is one that a sender has made.
type event struct {
	bus, id, kind, group string
	n                    int   // counts the events of the group
	phase                int64 // of the fixture, when it was made
}

// A verdict says whether a subscriber gets an event.
type verdict int

const (
	never verdict = iota
	perhaps
	always
)

// A subscriber is one of the tests, with what it expects.
type subscriber struct {
	bus, name string
	order     model.Order
	pattern   any
	transform any
	// expects says what is to come.
	expects func(event) verdict
	// refuses says which events its target refuses for good, which become dead letters. Nil: none.
	refuses func(event) bool
	// unsteady: the target fails for a while again and again, which opens the breaker.
	unsteady bool

	stored model.Subscriber // its uid
	book   *book
}

func kinds(names ...string) map[string]any { return map[string]any{"type": names} }

func all(event) verdict { return always }

// when makes an expectation.
func when(is func(event) bool) func(event) verdict {
	return func(e event) verdict {
		if is(e) {
			return always
		}
		return never
	}
}

// refused is what targets with dead letters refuse.
func refused(e event) bool { return e.n%7 == 0 }

// subscribers are those of all tests: each order that survives, with patterns, transformations,
// dead letters and a breaker.
func subscribers() []*subscriber {
	anything := kinds(placed, paid, low)
	template := map[string]any{
		"paths":    map[string]string{"id": "/id", "group": "/partitionkey", "n": "/data/n", "kind": "/type"},
		"template": `{"id": {id}, "partitionkey": {group}, "type": {kind}, "data": {"n": {n}}, "made": "for {group}"}`,
	}
	odd := map[string]any{"type": []any{map[string]string{"prefix": "order."}}, "data": map[string]any{"n": []any{map[string]any{"numeric": []any{">", 2}}}, "odd": []bool{true}}}
	return []*subscriber{
		{bus: busMany, name: "any", order: model.OrderNone, pattern: anything, expects: all},
		{bus: busMany, name: "group", order: model.OrderGroup, pattern: anything, expects: all},
		{
			bus: busMany, name: "some", order: model.OrderGroup, pattern: odd, transform: template,
			expects: when(func(e event) bool { return strings.HasPrefix(e.kind, "order.") && e.n > 2 && e.n%2 == 1 }),
		},
		{bus: busMany, name: "refusing", order: model.OrderNone, pattern: kinds(placed, low), expects: when(func(e event) bool { return e.kind != paid }), refuses: refused},
		{bus: busMany, name: "refusing-group", order: model.OrderGroup, pattern: anything, expects: all, refuses: refused},
		{bus: busMany, name: "unsteady", order: model.OrderNone, pattern: kinds(paid), expects: when(func(e event) bool { return e.kind == paid }), unsteady: true},
		{bus: busMany, name: "unsteady-group", order: model.OrderGroup, pattern: kinds(paid), expects: when(func(e event) bool { return e.kind == paid }), unsteady: true},
		{bus: busMany, name: "single", order: model.OrderGroup, pattern: kinds(low), expects: when(func(e event) bool { return e.kind == low })},
		{bus: busOne, name: "total", order: model.OrderTotal, pattern: anything, expects: all},
	}
}

func (s *subscriber) path() string { return "/v1/buses/" + s.bus + "/subscribers/" + s.name }

// definition is what the API gets.
func (s *subscriber) definition(url string) map[string]any {
	d := map[string]any{
		"order": s.order, "rules": []any{map[string]any{"name": "r", "pattern": s.pattern}},
		"target": map[string]any{"webhook": map[string]any{"url": url + "/" + s.name}},
		"delivery": map[string]any{
			"timeout": "1m", // what the sink takes late on a busy machine must not come again
			"retry":   map[string]any{"max_attempts": 0, "max_age": "24h", "schedule": []string{"200ms", "500ms", "1s"}},
			"breaker": map[string]any{"failures": 3, "probe": "300ms"},
		},
	}
	if s.transform != nil {
		d["transform"] = s.transform
	}
	return d
}

// fails reports whether the target of an unsteady subscriber fails now.
func (s *subscriber) fails(since time.Duration) bool {
	return s.unsteady && since%(5*time.Second) < 1500*time.Millisecond
}
