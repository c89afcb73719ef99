package console

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/delivery"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
)

func createBus(w *fixture, b *tab) {
	t := b.t
	b.open("#/buses", "Buses")
	b.click("summary", "Create a bus")
	b.write("Name", "Not A Name")
	b.write("Window for duplicates", "10 minutes")
	b.expect("422")
	b.click("button", "Create")
	b.wait(`document.querySelector('[data-pointer="/name"] .fault').textContent !== '' && document.querySelector('[data-pointer="/dedup_window"] .fault').textContent !== ''`)
	assert.Equal(t, "/name", eval[string](b, `document.activeElement.closest('.field').dataset.pointer`), "the first field with a fault has the focus")
	assert.Equal(t, "true", eval[string](b, `document.activeElement.getAttribute('aria-invalid')`))

	b.write("Name", "payments")
	b.write("Partitions", "8")
	b.write("Window for duplicates", "1h")
	b.click("button", "Create")
	b.shown("#/buses/payments", "payments")
	b.see("Bus payments is created.")
	made := w.Snapshot().Bus("payments")
	require.NotNil(t, made)
	assert.Equal(t, 8, made.Partitions)
	assert.Equal(t, time.Hour, time.Duration(made.DedupWindow))
	assert.Equal(t, "H1", eval[string](b, `document.activeElement.tagName`), "the heading of the new page has the focus")

	b.open("#/buses", "Buses")
	b.click("summary", "Create a bus")
	b.write("Name", "payments")
	b.expect("412")
	b.click("button", "Create")
	b.wait(`document.querySelector('form .problem') !== null`) // it exists: nothing is replaced
	assert.Equal(t, 8, w.Snapshot().Bus("payments").Partitions)
}

func createSubscriber(w *fixture, b *tab) {
	t := b.t
	b.open("#/buses/orders/new", "New subscriber")
	b.choose("Target", "rabbitmq")
	b.wait(`document.querySelector('textarea').value.includes('"exchange"')`)
	b.write("Name", "cache")
	b.write("JSON", `{
  "rules": [{"name": "a", "pattern": {"type": []}}],
  "order": "sometimes",
  "target": {"log": {}},
  "unknown": true
}`)
	b.expect("422")
	b.click("button", "Create")
	b.wait(`document.querySelectorAll('.faults li').length === 3`)
	pointers := eval[[]string](b, `[...document.querySelectorAll('.faults .pointer')].map((e) => e.firstChild.textContent)`)
	assert.ElementsMatch(t, []string{"/rules/0/pattern/type", "/order", "/unknown"}, pointers)
	assert.ElementsMatch(t, []string{`"type": []`, `"order": "sometimes"`, `"unknown": true`}, eval[[]string](b, `[...document.querySelectorAll('.sheet mark')].map((e) => e.textContent)`))
	eval[any](b, `[...document.querySelectorAll('.faults .pointer')].find((e) => e.textContent.startsWith('/order')).click()`)
	assert.Equal(t, `"order": "sometimes"`, eval[string](b, `(() => { const e = document.activeElement; return e.value.slice(e.selectionStart, e.selectionEnd); })()`), "a pointer leads to its place")
	b.picture("faults")

	b.write("JSON", `{"rules": [{"name": "a", "pattern": {"type": ["order.placed"]}}], "target": {"log": {}}}`)
	assert.Empty(t, eval[[]string](b, `[...document.querySelectorAll('.sheet mark')].map((e) => e.textContent)`), "marks go when the text changes")
	b.click("button", "Create")
	b.shown("#/buses/orders/subscribers/cache", "cache")
	assert.NotNil(t, w.Snapshot().Subscriber("orders", "cache"))
}

// editAtOnce: what somebody else has changed meanwhile is not overwritten.
func editAtOnce(w *fixture, b *tab) {
	t := b.t
	b.open("#/buses/orders/edit", "Edit orders")
	w.ask(t, http.MethodPut, "/v1/buses/orders", `{"description": "By somebody else"}`)
	b.write("JSON", `{"description": "By me"}`)
	b.expect("412")
	b.click("button", "Save")
	b.click("button", "Load the stored version")
	b.wait(`document.querySelector('textarea').value.includes('By somebody else')`)
	assert.Equal(t, "By somebody else", w.Snapshot().Bus("orders").Description)
	b.write("JSON", `{"description": "By both"}`)
	b.click("button", "Save")
	b.shown("#/buses/orders", "orders")
	assert.Equal(t, "By both", w.Snapshot().Bus("orders").Description)
}

// numbersStay: a number that JavaScript cannot hold is not changed by looking at it and saving.
func numbersStay(w *fixture, b *tab) {
	t := b.t
	before := w.Snapshot().Subscriber("orders", "billing").Rules[0].Pattern
	b.open("#/buses/orders/subscribers/billing", "billing")
	b.see("12345678901234567890")
	b.open("#/buses/orders/subscribers/billing/edit", "billing")
	b.click("button", "Save")
	b.shown("#/buses/orders/subscribers/billing", "billing")
	assert.Equal(t, compact(t, before), compact(t, w.Snapshot().Subscriber("orders", "billing").Rules[0].Pattern))
}

// compact writes JSON without blanks, numbers as they are.
func compact(t *testing.T, text json.RawMessage) string {
	t.Helper()
	made, err := json.Marshal(text)
	require.NoError(t, err)
	return string(made)
}

func pauseAndResume(w *fixture, b *tab) {
	t := b.t
	b.open("#/buses/orders", "orders")
	b.see("91,022") // rows grow while what is known of them comes
	b.click("button", "Pause billing")
	b.wait(element("button", "Resume billing"))
	assert.Equal(t, model.Paused, w.Snapshot().Subscriber("orders", "billing").State)
	assert.Equal(t, "Resume billing", eval[string](b, `document.activeElement.getAttribute('aria-label')`), "the button keeps the focus")
	b.press("\r")
	b.wait(element("button", "Pause billing"))
	assert.Equal(t, model.Active, w.Snapshot().Subscriber("orders", "billing").State)

	_, err := w.ChangeState(t.Context(), "orders", "billing", model.Disabled, "410 Gone", store.Condition{})
	require.NoError(t, err)
	b.see("410 Gone") // by itself

	b.open("#/buses/orders/subscribers/warehouse", "warehouse")
	b.click("button", "Disable")
	b.see("Disable warehouse?")
	assert.Equal(t, "Cancel", eval[string](b, `document.activeElement.textContent`))
	b.press("\x1b")
	b.wait(`document.querySelector('dialog') === null`)
	assert.Equal(t, model.Active, w.Snapshot().Subscriber("orders", "warehouse").State, "Escape does nothing")
	b.click("button", "Disable")
	b.click("dialog button", "Disable")
	b.wait(element("button", "Resume"))
	assert.Equal(t, model.Disabled, w.Snapshot().Subscriber("orders", "warehouse").State)
}

func deliveriesLive(w *fixture, b *tab) {
	t := b.t
	b.open("#/buses/orders/subscribers/billing/deliveries", "billing")
	b.see("8c1f7a52")
	eval[any](b, `void (window.second = document.querySelector('tbody tr'))`)
	add := func(event string) {
		w.set("orders", "billing", func(s *state) {
			s.attempts = append([]delivery.Attempt{{Time: time.Now(), Event: event, Type: "order.paid", Source: "/shop/web", Attempt: 1, Outcome: "delivered", Status: 200}}, s.attempts...)
		})
	}
	add("the-newest")
	b.see("the-newest")
	assert.Contains(t, eval[string](b, `document.querySelector('tbody tr').textContent`), "the-newest", "the latest is the first")
	assert.True(t, eval[bool](b, `document.querySelectorAll('tbody tr')[1] === window.second`), "rows that are there already stay")
	b.click("input", "Refresh live")
	add("not-shown")
	// It asks no more: no request is made in more than the time between two.
	assert.False(t, eval[bool](b, `new Promise((resolve) => {
		const n = performance.getEntriesByType('resource').length;
		setTimeout(() => resolve(performance.getEntriesByType('resource').length > n + 1 || document.body.innerText.includes('not-shown')), 2500);
	})`))
	b.click("input", "Refresh live")
	b.see("not-shown")
}

func redriveLetters(w *fixture, b *tab) {
	t := b.t
	b.expect("/job")
	b.open("#/buses/orders/subscribers/billing/dead-letters", "billing")
	assert.Equal(t, 3, eval[int](b, `document.querySelectorAll('.letter').length`))
	b.click("summary", "Event")
	b.see(`"total": 12345678901234567890`)

	b.write("Reason contains", "503")
	b.write("At most", "10")
	b.write("First failed from", "2026-01-15T09:30:00")
	b.click("button", "Count only")
	b.see("Would be published")
	b.see("2,100") // 3 x 700: it went on by itself, to its end
	b.wait(`document.querySelector('main [role="status"]').textContent === 'The redrive is done.'`)
	from := eval[string](b, `new Date('2026-01-15T09:30:00').toISOString().replace('.000', '')`)
	assert.Equal(t, []string{`{"reason":"503","from":"` + from + `","max":10,"dry_run":true}`}, w.took())

	b.click("button", "Redrive")
	b.wait(element("button", "Cancel the job"))
	assert.Equal(t, []string{`{"reason":"503","from":"` + from + `","max":10}`}, w.took())
	b.click("button", "Cancel the job")
	b.see("canceled")

	for _, label := range []string{"Reason contains", "At most", "First failed from"} {
		b.write(label, "")
	}
	b.click("button", "Redrive")
	b.click("button", "Cancel") // it asks first
	b.wait(`document.querySelector('dialog') === null`)
	assert.Empty(t, w.took())
	b.click("button", "Redrive")
	b.click("button", "Redrive all")
	b.see("2,100")
	assert.Equal(t, []string{`{}`}, w.took())
	b.wait(`document.querySelector('main [role="status"]').textContent === 'The redrive is done.'`)
	b.see("1 too large for the topic, 2 not written by Eventbridge")

	b.write("Type of the event", "order.paid")
	b.write("At most", "7")
	b.click("button", "Discard")
	b.click("button", "Cancel")
	b.wait(`document.querySelector('dialog') === null`)
	assert.Empty(t, w.took())
	b.click("button", "Discard")
	b.click("button", "Discard them")
	b.see("Discarded")
	b.see("2,100")
	assert.Equal(t, []string{`{"type":"order.paid","max":7}`}, w.took())
}

func replayEvents(w *fixture, b *tab) {
	t := b.t
	b.expect("/job")
	b.open("#/buses/orders/subscribers/billing/replay", "billing")
	b.click("button", "Replay")
	assert.Empty(t, w.took(), "without a time it does nothing")
	b.write("From", "2026-01-15T09:30:00")
	b.write("Events per second", "0.5")
	b.click("button", "Replay")
	b.see("2,100")
	from := eval[string](b, `new Date('2026-01-15T09:30:00').toISOString().replace('.000', '')`)
	assert.Equal(t, []string{`{"from":"` + from + `","rate":0.5}`}, w.took())
}

func testPatterns(_ *fixture, b *tab) {
	t := b.t
	b.open("#/patterns", "Pattern tester")
	b.see("It matches")
	b.write("Pattern", `{"type": ["order.placed"], "data": {"currency": ["USD"], "coupon": ["X"]}}`)
	b.see("It does not match")
	assert.Equal(t, "polite", eval[string](b, `[...document.querySelectorAll('.verdict')].find((e) => e.textContent === 'It does not match').ariaLive`))
	assert.ElementsMatch(t, []string{`"currency": ["USD"]`, `"coupon": ["X"]`}, eval[[]string](b, `[...document.querySelectorAll('.sheet mark')].map((e) => e.textContent)`))
	b.see("The event does not have this field.")
	b.picture("pattern-does-not-match")

	b.expect("400")
	b.write("Pattern", `{"data": {"total": [{"numeric": [">", "a"]}]}}`)
	b.see("The pattern is not valid")
	b.wait(`document.querySelector('.faults .pointer')?.textContent.startsWith('/data/total')`)
	b.write("Pattern", `{"type"`)
	b.see("The pattern is not JSON")
	b.write("Pattern", `{"data": {"n": [12345678901234567890]}}`)
	b.see("It does not match")
	b.write("Event", `{"data": {"n": 12345678901234567890}}`)
	b.see("It matches") // numbers are sent as they are written
	b.write("Event", `{"data": {"n": 1, "n": 12345678901234567890}}`)
	b.see("The event is not valid") // and so are keys that come twice

	for i, n := 1, eval[int](b, `document.querySelector('select').options.length`); i < n; i++ {
		option := eval[string](b, `document.querySelector('select').options[`+quote(i)+`].textContent`)
		b.choose("Example", option)
		b.wait(`/^It (matches|does not match)$/.test(document.querySelector('.verdict').textContent)`)
	}

	b.open("#/buses/orders/subscribers/billing", "billing")
	b.click("a", "Test refunds")
	b.wait(`document.querySelector('textarea')?.value.includes('refund.')`) // a rule to try
	b.see("It does not match")
}

func publishEvent(w *fixture, b *tab) {
	t := b.t
	b.open("#/publish?bus=telemetry", "Publish a test event")
	assert.Equal(t, "telemetry", eval[string](b, `document.querySelector('select').value`))
	b.write("Token of a sender", "of a sender")
	b.click("button", "Publish")
	b.see("Stored as ")
	w.mu.Lock()
	assert.Equal(t, []string{`"order.placed"`}, w.published)
	assert.Equal(t, []string{"Bearer of a sender"}, w.senders)
	w.mu.Unlock()
	b.expect("400")
	b.write("CloudEvent as JSON", `{"id": "1"}`)
	b.click("button", "Publish")
	b.see("the event has no attribute type")
}

func deleteObjects(w *fixture, b *tab) {
	t := b.t
	b.open("#/buses/hostile", "hostile")
	b.expect("409")
	b.click("button", "Delete")
	b.click("dialog button", "Delete")
	b.see("in use")
	b.open("#/buses/hostile/subscribers/victim", "victim")
	b.click("button", "Delete")
	b.click("dialog button", "Delete")
	b.shown("#/buses/hostile", "hostile")
	b.see("The bus has no subscriber yet")
	b.click("button", "Delete")
	b.click("dialog button", "Delete")
	b.shown("#/buses", "Buses")
	assert.Nil(t, w.Snapshot().Bus("hostile"))
}

// outage: a page that refreshes itself says that nobody answers, and goes on once somebody does.
func outage(w *fixture, b *tab) {
	b.open("#/buses/orders/subscribers/billing", "billing")
	b.see("1,284")
	eval[any](b, `void (window.realFetch = window.fetch, window.fetch = () => Promise.reject(new TypeError('Failed to fetch')))`)
	b.see("The server does not answer.")
	w.set("orders", "billing", func(s *state) { s.backlog.Events = 7654 })
	eval[any](b, `void (window.fetch = window.realFetch)`)
	b.see("7,654")
	b.wait(`!document.body.innerText.includes('The server does not answer.')`)
}

func useToken(b *tab) {
	t := b.t
	b.expect("401")
	b.visit("#/buses")
	b.see("The API asks for a token.")
	b.picture("token")
	b.write("Token of the API", "wrong")
	b.press("\r")
	b.see("The API does not know this token.")
	b.write("Token of the API", "right")
	b.press("\r")
	b.shown("#/buses", "Buses")
	assert.Equal(t, map[string]string{"eventbridge.token": "right"}, eval[map[string]string](b, `({ ...sessionStorage })`))
	assert.Equal(t, 0, eval[int](b, `localStorage.length`))
	assert.Empty(t, eval[string](b, `document.cookie`))
	assert.NotContains(t, eval[string](b, `location.href`), "right")

	b.click("button", "Token")
	b.click("button", "Forget")
	b.see("The API asks for a token.")
	assert.Empty(t, eval[map[string]string](b, `({ ...sessionStorage })`))
	b.press("\x1b")
	b.see("This cannot be shown")
}
