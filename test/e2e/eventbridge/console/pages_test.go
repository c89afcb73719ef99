// Package console tests Eventbridge's console in a browser: the real pages and API on a registry
// and a processor in memory. This stores pictures of all pages below DIR:
//
//	go test -artifacts -outputdir DIR ./test/e2e/eventbridge/console
package console

import (
	"strings"
	"testing"
)

// page is one as the tests look at it.
type page struct {
	name, address, heading string
	shows                  string // a text that it has once everything is there
}

func pages() []page {
	const billing = "#/buses/orders/subscribers/billing"
	return []page{
		{"buses", "#/buses", "Buses", "What customers order"},
		{"bus", "#/buses/orders", "orders", "91,022"},
		{"bus-edit", "#/buses/orders/edit", "Edit orders", "JSON"},
		{"new-subscriber", "#/buses/orders/new", "New subscriber", "Create"},
		{"subscriber", billing, "billing", "1,284"},
		{"subscriber-open", "#/buses/orders/subscribers/warehouse", "warehouse", "connection refused"},
		{"subscriber-edit", billing + "/edit", "billing", "Save"},
		{"deliveries", billing + "/deliveries", "billing", "dead letter"},
		{"dead-letters", billing + "/dead-letters", "billing", "422 Unprocessable"},
		{"replay", billing + "/replay", "billing", "Count only"},
		{"patterns", "#/patterns", "Pattern tester", "It matches"},
		{"publish", "#/publish?bus=orders", "Publish a test event", "New event"},
		{"instances", "#/instances", "Instances", "behind"},
		{"hostile-bus", "#/buses/hostile", "hostile", "window.hacked"},
		{"hostile-subscriber", "#/buses/hostile/subscribers/victim", "victim", "window.hacked"},
		{"hostile-deliveries", "#/buses/hostile/subscribers/victim/deliveries", "victim", "window.hacked"},
		{"hostile-letters", "#/buses/hostile/subscribers/victim/dead-letters", "victim", "window.hacked"},
		{"bus-letters", "#/buses/orders/dead-letters", "Dead letters of orders", "There is no dead letter."},
		{"hostile-bus-letters", "#/buses/hostile/dead-letters", "Dead letters of hostile", "window.hacked"},
		{"nothing", "#/nothing/here", "Page not found", "Buses"},
	}
}

// TestConsole looks at the pages, and uses them.
func TestConsole(t *testing.T) {
	browser := startBrowser(t)
	axe := axeScript(t)
	t.Run("pages", func(t *testing.T) {
		for _, l := range []look{{"light", 1280}, {"dark", 1280}, {"light", 360}, {"dark", 360}} {
			t.Run(l.String(), func(t *testing.T) {
				w := newFixture(t, "")
				w.fill(t)
				b := newTab(browser, t, w.url, l)
				for _, p := range pages() {
					b.open(p.address, p.heading)
					b.see(p.shows)
					if strings.Contains(p.name, "letters") {
						b.expect("/job") // 404: there is none
					}
					b.picture(l.String() + "-" + p.name)
					b.keepsWidth()
					if l == (look{"light", 1280}) || l == (look{"dark", 360}) { // both schemes, both shapes
						b.accessible(p.name, axe)
					}
					if l == (look{"light", 1280}) { // the order of the controls is the same in all
						b.keysReach()
					}
					b.harmless()
					b.quiet()
				}
			})
		}
	})
	t.Run("token", func(t *testing.T) {
		useToken(newTab(browser, t, newFixture(t, "right").url, look{"dark", 360}))
	})
	for name, use := range uses() {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // most of the time they wait
			w := newFixture(t, "")
			w.fill(t)
			use(w, newTab(browser, t, w.url, look{"light", 1280}))
		})
	}
}

// uses are what people do with the console, each on a tab and a fixture of its own.
func uses() map[string]func(*fixture, *tab) {
	return map[string]func(*fixture, *tab){
		"create a bus":          createBus,
		"create a subscriber":   createSubscriber,
		"edit at once":          editAtOnce,
		"numbers stay":          numbersStay,
		"pause and resume":      pauseAndResume,
		"deliveries live":       deliveriesLive,
		"redrive":               redriveLetters,
		"replay":                replayEvents,
		"patterns":              testPatterns,
		"publish":               publishEvent,
		"delete":                deleteObjects,
		"go on after an outage": outage,
	}
}

// harmless fails the test when a text of somebody else became more than a text.
func (b *tab) harmless() {
	b.t.Helper()
	if eval[bool](b, `window.hacked === 1 || document.querySelector('main img, main script, main [onerror], main a[href^="javascript:"], body > script') !== null`) {
		b.t.Error("a text became markup")
	}
}
