// Package transfer exports buses and subscribers as YAML, and imports them. Of Eventbridge, it
// imports registry/model and registry/store.
package transfer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/pkg/secret"
)

// Options say what an import does.
type Options struct {
	// DryRun makes Import change nothing, and return what it would change.
	DryRun bool
	// Prune deletes the buses and the subscribers that the file does not have.
	Prune bool
	// Lookup returns the value of NAME for ${NAME} in secrets, such as os.LookupEnv. An empty value
	// is a fault. Default: Lookup finds no value.
	Lookup func(name string) (string, bool)
	// Within bounds the time of each change. Default: only ctx bounds it.
	Within time.Duration
}

// Action is what an import does with an object.
type Action string

// The actions.
const (
	Created   Action = "create"
	Changed   Action = "change"
	Unchanged Action = "same"
	Deleted   Action = "delete"
)

// Step is what an import has done with one object, or would do in a dry run.
type Step struct {
	Action     Action `json:"action"`
	Bus        string `json:"bus"`
	Subscriber string `json:"subscriber,omitempty"` // empty: the step is about the bus
}

// key names the step's object: BUS or BUS/SUBSCRIBER.
func (step *Step) key() string { return strings.TrimSuffix(step.Bus+"/"+step.Subscriber, "/") }

// Import makes the registry equal to a file that [Export] or a person wrote: buses first, then their
// subscribers. Import checks the whole file, and each change, before the first change. Each object
// is a change of its own: after an error, the steps that Import returns are done. An object that is
// stored as the file says is not changed.
//
// In secrets, Import replaces ${NAME} by what Lookup returns, and a hidden secret by the stored
// one. If the file is not valid, the error is an [*model.Invalid] with pointers into the file.
func Import(ctx context.Context, s *store.Store, r io.Reader, opts Options) (steps []Step, err error) {
	file, err := readFile(r, opts.Lookup)
	if err != nil {
		return nil, err
	}
	var deletions []*object
	if opts.Prune { // first, because the number of subscribers is limited
		deletions = file.pruned(s.Snapshot())
	}
	objects := slices.Concat(deletions, file.buses, file.subscribers)
	draft := s.Draft()
	for _, o := range objects {
		if err := bounded(ctx, opts.Within, func(ctx context.Context) error { return o.check(ctx, draft) }); err != nil {
			if err = file.add(o, err); err != nil {
				return nil, fmt.Errorf("%s: %w", o.name, err)
			}
		}
	}
	if err := file.faults.Err(); err != nil {
		return nil, err
	}
	for _, o := range objects {
		if !opts.DryRun {
			if err := bounded(ctx, opts.Within, func(ctx context.Context) error { return o.apply(ctx, s) }); err != nil {
				return steps, fmt.Errorf("%s %s: %w", o.Action, o.key(), err)
			}
		}
		steps = append(steps, o.Step)
	}
	return steps, nil
}

// bounded calls f with a context that ends after bound. 0: without a bound.
func bounded(ctx context.Context, bound time.Duration, f func(context.Context) error) error {
	if bound > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, bound, fmt.Errorf("it took longer than %s", bound))
		defer cancel()
	}
	return f(ctx)
}

// object is a bus or a subscriber of the file, or one that the file does not have and that is
// deleted: bus and subscriber are nil then.
type object struct {
	Step
	bus        *model.Bus
	subscriber *model.Subscriber
	at         string          // its pointer in the file
	name       string          // for messages
	faults     model.FaultList // of its text
}

// check checks the change, and sets the action.
func (o *object) check(ctx context.Context, draft *store.Draft) (err error) {
	var created, changed bool
	switch {
	case o.bus != nil:
		created, changed, err = draft.PutBus(*o.bus)
	case o.subscriber != nil:
		created, changed, err = draft.PutSubscriber(ctx, o.subscriber)
	default:
		return draft.Delete(o.Bus, o.Subscriber)
	}
	switch {
	case created:
		o.Action = Created
	case changed:
		o.Action = Changed
	default:
		o.Action = Unchanged
	}
	return err
}

// apply makes the change.
func (o *object) apply(ctx context.Context, s *store.Store) (err error) {
	switch {
	case o.Action == Unchanged:
	case o.bus != nil:
		_, _, err = s.PutBus(ctx, *o.bus, store.Condition{})
	case o.subscriber != nil:
		_, _, err = s.PutSubscriber(ctx, *o.subscriber, store.Condition{})
	default:
		if o.Subscriber == "" {
			err = s.DeleteBus(ctx, o.Bus, store.Condition{})
		} else {
			err = s.DeleteSubscriber(ctx, o.Bus, o.Subscriber, store.Condition{})
		}
		if errors.Is(err, model.ErrNotFound) { // somebody else has deleted it
			err = nil
		}
	}
	return err
}

// file holds the objects of a file in their order, and all its faults.
type file struct {
	buses, subscribers []*object
	byKey              map[string]*object
	faults             model.FaultList
}

// pruned returns the deletions of what the file does not have.
func (f *file) pruned(now *store.Snapshot) (deletions []*object) {
	remove := func(bus, subscriber string) {
		o := &object{Step: Step{Action: Deleted, Bus: bus, Subscriber: subscriber}}
		o.name = "deletion of " + o.key()
		if f.byKey[o.key()] == nil {
			deletions = append(deletions, o)
		}
	}
	for b := range now.Buses() {
		for sub := range now.Subscribers(b.Name) {
			remove(b.Name, sub.Name)
		}
		remove(b.Name, "")
	}
	return deletions
}

// add adds the faults of an [*model.Invalid], with the object's name: people look for the name, not
// for a number. It omits those where the text of the object has a fault already. It returns an
// error of another kind.
func (f *file) add(o *object, err error) error {
	var bad *model.Invalid
	if !errors.As(err, &bad) {
		return err
	}
	var more model.FaultList
	more.UnlessAt(o.faults, bad.Faults)
	f.addFaults(o, more)
	return nil
}

func (f *file) addFaults(o *object, faults []model.Fault) {
	for _, fault := range faults {
		f.faults = append(f.faults, model.Fault{Pointer: o.at + fault.Pointer, Problem: fault.Problem, Item: o.name, Below: fault.Pointer})
	}
}

// addObject adds an object and its faults. It returns false for a duplicate: the file has another
// object of this name.
func (f *file) addObject(o *object) bool {
	first := f.byKey[o.key()]
	if first != nil {
		o.faults.Add("/name", "must differ from that of %s", first.at)
	} else {
		f.byKey[o.key()] = o
	}
	f.addFaults(o, o.faults)
	return first == nil
}

// readFile reads a file. The file has the faults of the text: what the objects may hold is checked
// later.
func readFile(r io.Reader, lookup func(string) (string, bool)) (*file, error) {
	f := &file{byKey: make(map[string]*object)}
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	plain, err := fromYAML(text)
	if err != nil {
		f.faults.Add("", "%s", err)
		return nil, f.faults.Err()
	}
	var content struct {
		Format int               `json:"format"`
		Buses  []json.RawMessage `json:"buses"`
	}
	f.faults = model.Decode(plain, &content)
	var more model.FaultList
	if content.Format != exportFormat {
		more.Add("/format", "must be %d", exportFormat)
	}
	if content.Buses == nil {
		more.Add("/buses", "must be given: [] for none") // a file that was cut off must not delete everything
	}
	f.faults.UnlessAt(f.faults, more)
	for i, bus := range content.Buses {
		f.readBus(bus, fmt.Sprintf("/buses/%d", i), lookup)
	}
	return f, nil
}

// readBus reads a bus and its subscribers.
func (f *file) readBus(text json.RawMessage, at string, lookup func(string) (string, bool)) {
	content := struct {
		model.Bus
		Subscribers []json.RawMessage `json:"subscribers"`
	}{Bus: model.NewBus("")}
	o := &object{at: at, bus: &content.Bus, faults: model.Decode(text, &content)}
	o.Bus, o.name = content.Name, "bus "+quoteUnlessPlain(content.Name)
	if !f.addObject(o) {
		return
	}
	f.buses = append(f.buses, o)
	for i, sub := range content.Subscribers {
		f.readSubscriber(sub, fmt.Sprintf("%s/subscribers/%d", at, i), content.Name, lookup)
	}
}

func (f *file) readSubscriber(text json.RawMessage, at, bus string, lookup func(string) (string, bool)) {
	sub := model.NewSubscriber(bus, "")
	o := &object{at: at, subscriber: &sub, faults: model.Decode(text, &sub)}
	if sub.Bus != bus {
		o.faults.Add("/bus", "must be %q, or omitted, got %q", bus, sub.Bus)
		sub.Bus = bus
	}
	o.faults = append(o.faults, expand(&sub, lookup)...)
	o.Bus, o.Subscriber, o.name = bus, sub.Name, "subscriber "+quoteUnlessPlain(bus)+"/"+quoteUnlessPlain(sub.Name)
	if f.addObject(o) {
		f.subscribers = append(f.subscribers, o)
	}
}

// expand replaces ${NAME} in secrets. "$${" stands for "${".
func expand(s *model.Subscriber, lookup func(string) (string, bool)) (f model.FaultList) {
	reference := regexp.MustCompile(`\$\$\{|\$\{[^}]*\}?`)
	model.EachSecret(reflect.ValueOf(s).Elem(), "", func(at string, v secret.String) secret.String {
		return secret.String(reference.ReplaceAllStringFunc(v.Reveal(), func(found string) string {
			name := strings.TrimSuffix(strings.TrimPrefix(found, "${"), "}")
			switch {
			case found == "$${":
				return "${"
			case !strings.HasSuffix(found, "}") || name == "":
				f.Add(at, "must be ${NAME}, or $${ for the text ${")
				return found
			case lookup != nil:
				if value, _ := lookup(name); value != "" {
					return value
				}
			}
			f.Add(at, "the environment has no %s, or it is empty", name)
			return found
		}))
	})
	return f
}

// quoteUnlessPlain returns a name for messages, quoted if it is not valid: a name in a faulty file
// may be anything.
func quoteUnlessPlain(name string) string {
	if model.ValidName(name) {
		return name
	}
	return model.Quote(name)
}
