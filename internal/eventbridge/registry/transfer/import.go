// Package transfer exports Eventbridge's buses and subscribers as YAML, and imports them.
package transfer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/pkg/secret"
)

// maxImportBytes bounds the size of an imported file.
const maxImportBytes = 256 << 20

// Options say what an import does.
type Options struct {
	// DryRun makes Import change nothing, and return what it would change.
	DryRun bool
	// Prune deletes the buses and the subscribers that the file does not have.
	Prune bool
	// Lookup returns the value of NAME for ${NAME} in secrets, such as os.LookupEnv. An empty value
	// is a fault. Default: Lookup finds no value.
	Lookup func(name string) (string, bool)
	// Checks are those of the store.
	Checks model.Checks
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

// Import makes the registry equal to a file that [Export] or a person wrote: buses first, then their
// subscribers. Import checks the whole file before the first change. Each object is a change of its
// own: after an error, the steps that Import returns are done. An object that is stored as the file
// says is not changed.
//
// In secrets, Import replaces ${NAME} by what Lookup returns, and a hidden secret by the stored
// one. If the file is not valid, the error is an [*model.Invalid] with pointers into the file.
func Import(ctx context.Context, s *store.Store, r io.Reader, opts Options) ([]Step, error) {
	file, err := readFile(r, opts)
	if err != nil {
		return nil, err
	}
	steps, err := plan(ctx, s, file, opts)
	if err != nil || opts.DryRun {
		return steps, err
	}
	for i := range steps {
		step := &steps[i]
		if err := bounded(ctx, opts.Within, func(ctx context.Context) error { return step.do(ctx, s, file) }); err != nil {
			return steps[:i], fmt.Errorf("%s %s: %w", step.Action, step.key(), err)
		}
	}
	return steps, nil
}

// bounded calls change with a context that ends after bound. 0: without a bound.
func bounded(ctx context.Context, bound time.Duration, change func(context.Context) error) error {
	if bound > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, bound, fmt.Errorf("it took longer than %s", bound))
		defer cancel()
	}
	return change(ctx)
}

// key names the step's object: BUS or BUS/SUBSCRIBER.
func (step *Step) key() string { return strings.TrimSuffix(step.Bus+"/"+step.Subscriber, "/") }

// setAction sets the action to what was done, or would be.
func (step *Step) setAction(created, changed bool) {
	switch {
	case created:
		step.Action = Created
	case changed:
		step.Action = Changed
	default:
		step.Action = Unchanged
	}
}

// do makes one change. The object may have changed since the plan was made.
func (step *Step) do(ctx context.Context, s *store.Store, file *file) (err error) {
	switch {
	case step.Action == Unchanged:
	case step.Action == Deleted:
		if step.Subscriber == "" {
			err = s.DeleteBus(ctx, step.Bus, store.Condition{})
		} else {
			err = s.DeleteSubscriber(ctx, step.Bus, step.Subscriber, store.Condition{})
		}
		if errors.Is(err, model.ErrNotFound) {
			return nil
		}
	case step.Subscriber == "":
		old := s.Snapshot().Bus(step.Bus)
		now, created, err := s.PutBus(ctx, *file.objects[step.key()].bus, store.Condition{})
		if err != nil {
			return err
		}
		step.setAction(created, old == nil || old.Revision != now.Revision)
	default:
		old := s.Snapshot().Subscriber(step.Bus, step.Subscriber)
		now, created, err := s.PutSubscriber(ctx, *file.objects[step.key()].subscriber, store.Condition{})
		if err != nil {
			return err
		}
		step.setAction(created, old == nil || old.Revision != now.Revision)
	}
	return err
}

// plan compares a file with the registry, and checks each change.
func plan(ctx context.Context, s *store.Store, file *file, opts Options) (steps []Step, err error) {
	draft := s.Draft()
	if opts.Prune { // first, because the number of subscribers is limited
		steps = prune(s.Snapshot(), file)
		for _, step := range steps {
			if n := draft.Delete(step.Bus, step.Subscriber); n > 0 {
				file.faults.Add("/buses", "must have the bus %s: the records of %d of its subscribers cannot be read, and it cannot be deleted before them", model.Quote(step.Bus), n)
			}
		}
	}
	for _, key := range file.buses {
		o, step := file.objects[key], Step{Bus: key}
		created, changed, err := draft.PutBus(*o.bus)
		step.setAction(created, changed)
		if err := file.refused(o, err); err != nil {
			return nil, fmt.Errorf("%s: %w", o.name, err)
		}
		steps = append(steps, step)
	}
	for _, key := range file.subscribers {
		o := file.objects[key]
		step := Step{Bus: o.subscriber.Bus, Subscriber: o.subscriber.Name}
		err := bounded(ctx, opts.Within, func(ctx context.Context) error {
			created, changed, err := draft.PutSubscriber(ctx, o.subscriber)
			step.setAction(created, changed)
			return err
		})
		if err := file.refused(o, err); err != nil {
			return nil, fmt.Errorf("%s: %w", o.name, err)
		}
		steps = append(steps, step)
	}
	if err := file.faults.Err(); err != nil {
		return nil, err // no step is done
	}
	return steps, nil
}

// prune returns the deletions of what the file does not have.
func prune(now *store.Snapshot, file *file) (steps []Step) {
	remove := func(step Step) {
		if _, ok := file.objects[step.key()]; !ok {
			steps = append(steps, step)
		}
	}
	for b := range now.Buses() {
		for sub := range now.Subscribers(b.Name) {
			remove(Step{Action: Deleted, Bus: b.Name, Subscriber: sub.Name})
		}
		remove(Step{Action: Deleted, Bus: b.Name})
	}
	return steps
}

// file holds the objects of a file by their keys, BUS or BUS/SUBSCRIBER, and all its faults.
type file struct {
	objects            map[string]*object
	buses, subscribers []string // the keys in the order of the file
	faults             model.FaultList
}

// object is a bus or a subscriber.
type object struct {
	at         string // its pointer in the file
	name       string // for messages
	bus        *model.Bus
	subscriber *model.Subscriber
}

// add adds faults of an object, with its name: people look for the name, not for a number.
func (f *file) add(o *object, faults []model.Fault) {
	for _, fault := range faults {
		f.faults = append(f.faults, model.Fault{Pointer: o.at + fault.Pointer, Problem: fault.Problem, Item: o.name, Below: fault.Pointer})
	}
}

// refused adds the faults that a check of a change found. It returns an error of another kind.
func (f *file) refused(o *object, err error) error {
	var bad *model.Invalid
	if !errors.As(err, &bad) {
		return err
	}
	f.add(o, bad.Faults)
	return nil
}

// has adds an object, unless the file has one of its name already.
func (f *file) has(key string, o *object) bool {
	if first := f.objects[key]; first != nil {
		f.add(o, []model.Fault{{Pointer: "/name", Problem: "must differ from that of " + first.at}})
		return true
	}
	f.objects[key] = o
	return false
}

// readFile reads a file and finds everything that is wrong with its objects, each looked at alone.
func readFile(r io.Reader, opts Options) (*file, error) {
	f := &file{objects: make(map[string]*object)}
	text, err := io.ReadAll(io.LimitReader(r, maxImportBytes+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxImportBytes {
		f.faults.Add("", "must have at most %d bytes", maxImportBytes)
		return nil, f.faults.Err()
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
		f.readBus(bus, fmt.Sprintf("/buses/%d", i), opts)
	}
	return f, f.faults.Err()
}

// readBus reads a bus and its subscribers.
func (f *file) readBus(text json.RawMessage, at string, opts Options) {
	content := struct {
		model.Bus
		Subscribers []json.RawMessage `json:"subscribers"`
	}{Bus: model.NewBus("")}
	faults := model.Decode(text, &content)
	size := len(text)
	for _, sub := range content.Subscribers {
		size -= len(sub)
	}
	if size > model.MaxObjectBytes {
		faults.Add("", "must have at most %d bytes, got %d", model.MaxObjectBytes, size)
	}
	faults.UnlessAt(faults, model.ValidateBus(&content.Bus, opts.Checks))
	o := &object{at: at, name: "bus " + quoteUnlessPlain(content.Name), bus: &content.Bus}
	f.add(o, faults)
	if f.has(content.Name, o) {
		return
	}
	f.buses = append(f.buses, content.Name)
	for i, sub := range content.Subscribers {
		f.readSubscriber(sub, fmt.Sprintf("%s/subscribers/%d", at, i), content.Name, opts)
	}
}

func (f *file) readSubscriber(text json.RawMessage, at, bus string, opts Options) {
	sub := model.NewSubscriber(bus, "")
	faults := model.Decode(text, &sub)
	if len(text) > model.MaxObjectBytes {
		faults.Add("", "must have at most %d bytes, got %d", model.MaxObjectBytes, len(text))
	}
	if sub.Bus != bus {
		faults.Add("/bus", "must be %q, or left out, got %q", bus, sub.Bus)
		sub.Bus = bus
	}
	faults = append(faults, expand(&sub, opts.Lookup)...)
	faults.UnlessAt(faults, model.ValidateGiven(sub, opts.Checks))
	o := &object{at: at, name: "subscriber " + quoteUnlessPlain(bus) + "/" + quoteUnlessPlain(sub.Name), subscriber: &sub}
	f.add(o, faults)
	if key := bus + "/" + sub.Name; !f.has(key, o) {
		f.subscribers = append(f.subscribers, key)
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
