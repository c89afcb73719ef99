package transfer_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/storetest"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/transfer"
)

func export(t testing.TB, m *store.Store) string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, transfer.Export(&out, m.Snapshot()))
	return out.String()
}

// steps are what an import did, without what stayed.
func steps(t testing.TB, m *store.Store, text string, opts transfer.Options) []string {
	t.Helper()
	done, err := transfer.Import(testContext(t), m, strings.NewReader(text), opts)
	require.NoError(t, err)
	var all []string
	for _, s := range done {
		if s.Action != transfer.Unchanged {
			all = append(all, fmt.Sprintf("%s %s/%s", s.Action, s.Bus, s.Subscriber))
		}
	}
	return all
}

const file = `format: 1
buses:
  - name: orders
    description: "true"
    partitions: 1
    dedup_window: 10m0s
    max_event_bytes: 262144
    schemas:
      order:
        maximum: 1.50
        required: [id, 1e2]
    subscribers:
      - name: mail
        state: active
        rules:
          - name: big
            pattern:
              data:
                amount: [{numeric: ['>', 100.0]}]
                note: [null, true, "yes", "1"]
        order: none
        start: latest
        transform:
          template: |
            {"id": {id}}
          paths:
            id: /id
        target:
          webhook:
            url: https://example.com/a
            headers:
              X-Key: ${KEY}$${x}
  - name: payments
    partitions: 1
`

// JSON with escapes means the same as without them, in a file and in a change.
func TestEscapesMeanTheSame(t *testing.T) {
	t.Parallel()
	m := newStore(t)
	const plain = "{\"format\": 1, \"buses\": [{\"name\": \"orders\", \"description\": \"a/b \U0001f600 \x7f <<\", \"schemas\": {\"é\": {\"maximum\": 1e400, \"title\": \"\u2028\"}}," +
		"\"subscribers\": [{\"name\": \"mail\", \"rules\": [{\"name\": \"r\", \"pattern\": {\"type\": [\"a/\U0001f600\"]}}], \"target\": {\"log\": {}}}]}]}"
	const escaped = `{"\u0066ormat": 1, "buses": [{"name": "\u006frders", "description": "a\/b \ud83d\ude00 \u007f \u003c<", "schemas": {"\u00e9": {"maximum": 1e400, "t\u0069tle": "\u2028"}},
	"subscribers": [{"name": "m\u0061il", "rules": [{"name": "r", "pattern": {"\u0074ype": ["\u0061\/\ud83d\ude00"]}}], "target": {"log": {}}}]}]}`
	require.Len(t, steps(t, m, escaped, transfer.Options{}), 2)
	require.Equal(t, "a/b \U0001f600 \x7f <<", m.Snapshot().Bus("orders").Description)
	require.Contains(t, string(m.Snapshot().Bus("orders").Schemas["é"]), `"maximum":1e400`)
	require.Empty(t, steps(t, m, plain, transfer.Options{}))
	require.Empty(t, steps(t, m, export(t, m), transfer.Options{}))

	given, err := model.DecodeSubscriber([]byte(`{"rules": [{"name": "r", "pattern": {"\u0074ype": ["\u0061\/\ud83d\ude00"]}}], "target": {"log": {}}}`), "orders", "mail", model.Checks{})
	require.NoError(t, err)
	before := m.Snapshot().Revision()
	_, _, err = m.PutSubscriber(testContext(t), given, store.Condition{})
	require.NoError(t, err)
	require.Equal(t, before, m.Snapshot().Revision(), "it is what is stored")
}

func TestExportAndImportAreIdempotent(t *testing.T) {
	t.Parallel()
	m := newStore(t)
	opts := transfer.Options{Lookup: func(name string) (string, bool) { return "key-123", name == "KEY" }}
	dry := opts
	dry.DryRun = true
	all := []string{"create orders/", "create payments/", "create orders/mail"}
	require.Equal(t, all, steps(t, m, file, dry))
	require.Zero(t, m.Snapshot().Revision(), "a dry run changes nothing")
	require.Equal(t, all, steps(t, m, file, opts))
	require.Empty(t, steps(t, m, file, opts), "nothing is left to do")
	require.EqualValues(t, 3, m.Snapshot().Revision())
	sub := m.Snapshot().Subscriber("orders", "mail")
	require.Equal(t, "key-123${x}", sub.Target.Webhook.Headers["X-Key"].Reveal())
	require.JSONEq(t, `{"data":{"amount":[{"numeric":[">",100]}],"note":[null,true,"yes","1"]}}`, string(sub.Rules[0].Pattern))
	require.Contains(t, string(m.Snapshot().Bus("orders").Schemas["order"]), "1.50", "numbers keep their digits")
	require.Contains(t, sub.Transform.Template, `{"id": {id}}`)

	first := export(t, m)
	require.NotContains(t, first, "-123")
	require.Contains(t, first, `description: "true"`)
	require.Equal(t, first, export(t, m))
	require.Empty(t, steps(t, m, first, transfer.Options{}), "what was exported is what is stored, its secrets too")
	const one = "format: 1\nbuses:\n  - name: payments\n    partitions: 1\n    dedup_window: 10m0s\n    max_event_bytes: 262144\n"

	// Another registry has no secrets to keep.
	other := newStore(t)
	_, err := transfer.Import(testContext(t), other, strings.NewReader(first), transfer.Options{})
	require.Equal(t, []string{"/buses/0/subscribers/0/target/webhook/headers/X-Key: no secret is stored here: give the secret"}, storetest.Faults(t, err))
	require.Zero(t, other.Snapshot().Revision(), "nothing is changed before all is looked at")

	changed := strings.Replace(first, "https://example.com/a", "https://example.com/b", 1)
	require.Equal(t, []string{"change orders/mail"}, steps(t, m, changed, transfer.Options{}))
	require.Equal(t, "key-123${x}", m.Snapshot().Subscriber("orders", "mail").Target.Webhook.Headers["X-Key"].Reveal())

	// Only pruning deletes.
	require.Empty(t, steps(t, m, one, transfer.Options{}))
	require.Equal(t, []string{"delete orders/mail", "delete orders/"}, steps(t, m, one, transfer.Options{Prune: true, DryRun: true}))
	require.Equal(t, []string{"delete orders/mail", "delete orders/"}, steps(t, m, one, transfer.Options{Prune: true}))
	require.Equal(t, one, export(t, m))
}

// The state that somebody set is kept when the file does not say it.
func TestAnImportDoesNotUndoAPause(t *testing.T) {
	t.Parallel()
	m := storeWithBus(t)
	ctx := testContext(t)
	putSubscriber(t, m)
	without := strings.ReplaceAll(export(t, m), "        state: active\n", "")
	_, err := m.ChangeState(ctx, "orders", "mail", model.Paused, "", store.Condition{})
	require.NoError(t, err)
	require.Empty(t, steps(t, m, without, transfer.Options{}))
	require.Equal(t, model.Paused, m.Snapshot().Subscriber("orders", "mail").State)
}

func TestAllFaultsOfAFileAreFoundAtOnce(t *testing.T) {
	t.Parallel()
	m := storeWithBus(t)
	for text, want := range map[string][]string{
		"":                            {": it is empty"},
		"a: [":                        {": it is not YAML: yaml: line 1: did not find expected node content"},
		"format: 1\n---\nformat: 1\n": {": line 2: it must be one YAML document"},
		"format: 1":                   {"/buses: must be given: [] for none"},
		"format: 1\nbuses:":           {"/buses: must be given: [] for none"},
		"[]":                          {": must be an object, got a list"},
		"format: 1\nbuses: [{name: a, subscribers: [{name: b}], subscribers: []}]": {
			"/buses/0/subscribers: the key occurs twice", "/buses/0/subscribers/0/rules: must be 1 to 1000 rules, got 0",
			"/buses/0/subscribers/0/target: must have exactly one of webhook, pulsar, kafka, rabbitmq and log, got 0"},
		"format: 2\nbusses: []\nbuses: 1\nformat: 1": {
			"/buses: must be a list, got 1", "/busses: unknown key; the keys here are buses, format", "/format: the key occurs twice"},
		"format: 1\nbuses: [{name: a}, {name: a, partitions: x}, {name: B, subscribers: 1}, 5]": {
			"/buses/1/name: must differ from that of /buses/0", "/buses/1/partitions: must be a whole number, got a text",
			`/buses/2/name: must be 1 to 63 of a-z, 0-9 and -, without a - at the beginning or end, got "B"`, "/buses/2/subscribers: must be a list, got 1",
			"/buses/3: must be an object, got 5"},
		"format: 1\nbuses: [{name: a, subscribers: [{name: b, rules: [{name: r}], target: {log: {}}}]}]": {"/buses/0/subscribers/0/rules/0/pattern: must be given"},
		"format: 1\nbuses: [{name: &x a, description: *x}]":                                              {": line 2: anchors and aliases (& and *) are not supported: repeat the value"},
		"format: 1\nbuses: [{name: a, partitions: .inf}]":                                                {`: line 2: must be a number that JSON can express, got ".inf"`},
		"format: 1\nbuses: [{name: a, description: !!binary aGk=}]":                                      {": line 2: tags (!!binary) are not supported"},
		"format: 1\nbuses: [{name: a, name: a}]":                                                         {"/buses/0/name: the key occurs twice"},
		"format: 1\nbuses: [{name: a, partitions: 0x1, subscribers: [{name: b}]}]":                       {"/buses/0/subscribers/0/rules: must be 1 to 1000 rules, got 0", "/buses/0/subscribers/0/target: must have exactly one of webhook, pulsar, kafka, rabbitmq and log, got 0"},
		"format: 1\nbuses:\n- name: a\n  subscribers:\n  - {name: b, rules: [{name: r, pattern: {a: [1]}}], target: {webhook: {url: 'https://e.com', bearer: '${A} ${', headers: {X: '${}'}}}}": {
			"/buses/0/subscribers/0/target/webhook/bearer: must be ${NAME}, or $${ for the text ${", "/buses/0/subscribers/0/target/webhook/bearer: the environment has no A, or it is empty",
			"/buses/0/subscribers/0/target/webhook/headers/X: must be ${NAME}, or $${ for the text ${"},
		"format: 1\nbuses:\n- name: a\n  subscribers:\n  - {name: b, rules: [{name: r, pattern: {a: [1]}}], target: {webhook: {url: 'https://e.com', signing_secret: '${EMPTY}'}}}": {
			"/buses/0/subscribers/0/target/webhook/signing_secret: the environment has no EMPTY, or it is empty"},
	} {
		_, err := transfer.Import(testContext(t), m, strings.NewReader(text), transfer.Options{Lookup: func(name string) (string, bool) { return "", name == "EMPTY" }})
		require.ElementsMatch(t, want, storetest.Faults(t, err), "%s", text)
	}
	require.EqualValues(t, 1, m.Snapshot().Revision())
}

// People look for a bus or a subscriber by its name, not by its number in the file.
func TestFaultsOfAFileNameWhatTheyAreAbout(t *testing.T) {
	t.Parallel()
	m := storeWithBus(t)
	_, err := transfer.Import(testContext(t), m, strings.NewReader(
		"format: 1\nbuses: [{name: a, partitions: x, subscribers: [{name: b, rules: [{name: r, pattern: {a: [1]}}]}, {name: B}]}]"), transfer.Options{})
	var bad *model.Invalid
	require.ErrorAs(t, err, &bad)
	var lines []string
	for _, fault := range bad.Faults {
		lines = append(lines, fault.String())
	}
	require.Subset(t, lines, []string{
		"bus a: /partitions: must be a whole number, got a text",
		"subscriber a/b: /target: must have exactly one of webhook, pulsar, kafka, rabbitmq and log, got 0",
		`subscriber a/"B": /name: must be 1 to 63 of a-z, 0-9 and -, without a - at the beginning or end, got "B"`,
	})
}

// A change that the brokers do not answer does not hold an import up for ever.
func TestAnImportBoundsEachChange(t *testing.T) {
	t.Parallel()
	m := storeWithBus(t)
	done, err := transfer.Import(testContext(t), m, strings.NewReader("format: 1\nbuses: [{name: a}]"), transfer.Options{Within: time.Nanosecond})
	require.ErrorIs(t, err, model.ErrUnavailable)
	require.ErrorContains(t, err, "create a: ")
	require.ErrorContains(t, err, "it took longer than 1ns")
	require.Empty(t, done)
}

// What the registry would refuse is found before the first change, and by a dry run: the objects
// before it were changed, and the rest was not.
func TestAnImportIsLookedAtWholeBeforeTheFirstChange(t *testing.T) {
	t.Parallel()
	m := storeWithBus(t)
	ctx := testContext(t)
	putSubscriber(t, m)
	before := m.Snapshot().Revision()
	refused := func(text string, opts transfer.Options, want ...string) {
		t.Helper()
		for _, dry := range []bool{true, false} {
			opts.DryRun = dry
			done, err := transfer.Import(ctx, m, strings.NewReader(text), opts)
			require.Equal(t, want, storetest.Faults(t, err), text[:min(len(text), 200)])
			require.Empty(t, done, "what is not done is not told")
			require.Equal(t, before, m.Snapshot().Revision())
		}
	}
	refused("format: 1\nbuses: [{name: first}, {name: orders, partitions: 2}]", transfer.Options{}, "/buses/1/partitions: cannot be changed: it is 1")

	// The file's own rules count, and those that it deletes do not.
	var branches []string
	for i := range 8 {
		branches = append(branches, fmt.Sprintf(`o%d: {$or: [{a: [1]}, {b: [2]}]}`, i))
	}
	heavy := func(subscribers int) string {
		var rules strings.Builder
		for i := range 48 {
			fmt.Fprintf(&rules, "{name: r%d, pattern: {%s}}, ", i, strings.Join(branches, ", "))
		}
		text := "format: 1\nbuses:\n- name: orders\n  partitions: 1\n  subscribers:\n"
		for i := range subscribers {
			text += fmt.Sprintf("  - {name: s%d, target: {log: {}}, rules: [%s]}\n", i, rules.String())
		}
		return text
	}
	const tooMuch = "/rules: the patterns of all subscribers would have 2162690 fields and alternatives after $or is expanded; the limit is 2000000"
	refused("format: 1\nbuses: [{name: orders, subscribers: [{name: new, rules: [{name: r, pattern: {a: [1]}}], target: {webhook: {url: 'https://e.com', bearer: <redacted>}}}]}]",
		transfer.Options{Prune: true}, "/buses/0/subscribers/0/target/webhook/bearer: no secret is stored here: give the secret")
	refused(heavy(11), transfer.Options{}, "/buses/0/subscribers/10"+tooMuch)
	require.Len(t, steps(t, m, heavy(10), transfer.Options{Prune: true}), 11)
	renamed := strings.ReplaceAll(heavy(10), "{name: s", "{name: z")
	require.Len(t, steps(t, m, renamed, transfer.Options{Prune: true, DryRun: true}), 20, "what is deleted makes room")
}

// Whatever JSON an object holds comes back from YAML as it was.
func FuzzExport(f *testing.F) {
	for _, text := range []string{
		`{"a":[1]}`, `{"a":["yes","no","1","1e3","0x1","~","null","2026-01-02","<<","*","&a","!!x"," a ","a: b","# c","\u0000\u2028\n"]}`,
		`{"":[1e400,-0,1.0,0.10,12345678901234567890,1E5,1e-7]}`, `{"<<":["a"],"a":[{"prefix":""}]}`, `{"y":[true,false,null]}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if !json.Valid([]byte(text)) || !strings.HasPrefix(text, "{") {
			return
		}
		b := model.NewBus("a")
		b.Schemas = map[string]json.RawMessage{"t": json.RawMessage(text)}
		snapshot, err := store.NewSnapshot(1, []model.Bus{b}, nil)
		if err != nil {
			return
		}
		var out bytes.Buffer
		require.NoError(t, transfer.Export(&out, snapshot))
		back, err := transfer.ReadBuses(bytes.NewReader(out.Bytes()))
		require.NoError(t, err, "%s", out.String())
		var want, got bytes.Buffer
		require.NoError(t, json.Compact(&want, []byte(text)))
		require.NoError(t, json.Compact(&got, back[0].Schemas["t"]))
		require.Equal(t, canonical(t, want.Bytes()), canonical(t, got.Bytes()))
	})
}

// canonical has each text written in one way, and numbers with their digits.
func canonical(t testing.TB, text []byte) string {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	require.NoError(t, d.Decode(&v))
	made, err := json.Marshal(v)
	require.NoError(t, err)
	return string(made)
}
