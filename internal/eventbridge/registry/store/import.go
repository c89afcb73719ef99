package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/secret"
)

// maxImportBytes bounds the size of an imported file.
const maxImportBytes = 256 << 20

// ImportOptions say what an import does.
type ImportOptions struct {
	// Bus restricts the import to one bus, which the file must have. Default: all buses.
	Bus string
	// DryRun makes Import change nothing, and return what it would change.
	DryRun bool
	// Prune deletes the subscribers that the file does not have, of the buses that it has. Without
	// Bus it also deletes the buses that the file does not have.
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

// imported holds the objects of a file.
type imported struct {
	buses       []model.Bus
	subscribers []model.Subscriber
	at          map[string]string // where each object is in the file, by its registry key
	names       map[string]string // the name of each object in error messages, by where it is
}

// err returns the error of faults, each with the name of the object that it is about.
func (file *imported) err(f model.FaultList) error {
	for i := range f {
		item := regexp.MustCompile(`^/buses/\d+(/subscribers/\d+)?`).FindString(f[i].Pointer)
		if f[i].Item = file.names[item]; f[i].Item != "" {
			f[i].Below = strings.TrimPrefix(f[i].Pointer, item)
		}
	}
	return f.Err()
}

func (file *imported) bus(name string) *model.Bus {
	for i := range file.buses {
		if file.buses[i].Name == name {
			return &file.buses[i]
		}
	}
	return nil
}

func (file *imported) subscriber(bus, name string) *model.Subscriber {
	for i := range file.subscribers {
		if file.subscribers[i].Bus == bus && file.subscribers[i].Name == name {
			return &file.subscribers[i]
		}
	}
	return nil
}

// Import makes the registry equal to a file that [Snapshot.Export] or a person wrote: buses first,
// then their subscribers. Import checks the whole file before the first change. Each object is a
// change of its own: after an error, the steps that Import returns are done. An object that is
// stored as the file says is not changed.
//
// In secrets, Import replaces ${NAME} by what Lookup returns, and a hidden secret by the stored
// one. If the file is not valid, the error is an [*model.Invalid] with pointers into the file.
func (s *Store) Import(ctx context.Context, r io.Reader, opts ImportOptions) ([]Step, error) {
	file, err := readImport(r, opts, s.opts.Checks)
	if err != nil {
		return nil, err
	}
	steps, err := s.plan(ctx, file, opts)
	if err != nil || opts.DryRun {
		return steps, err
	}
	for i, step := range steps {
		if err := bounded(ctx, opts.Within, func(ctx context.Context) error { return s.do(ctx, file, &steps[i]) }); err != nil {
			return steps[:i], fmt.Errorf("%s %s: %w", step.Action, strings.TrimSuffix(step.Bus+"/"+step.Subscriber, "/"), err)
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

// do makes one change. The object may have changed since the plan was made.
func (s *Store) do(ctx context.Context, file *imported, step *Step) error {
	before := s.Snapshot()
	switch {
	case step.Action == Deleted && step.Subscriber == "":
		return absent(s.DeleteBus(ctx, step.Bus, Condition{}))
	case step.Action == Deleted:
		return absent(s.DeleteSubscriber(ctx, step.Bus, step.Subscriber, Condition{}))
	case step.Action == Unchanged:
		return nil
	case step.Subscriber == "":
		old := before.Bus(step.Bus)
		now, created, err := s.PutBus(ctx, *file.bus(step.Bus), Condition{})
		if err == nil {
			step.note(created, old != nil && old.Revision == now.Revision)
		}
		return err
	default:
		old := before.Subscriber(step.Bus, step.Subscriber)
		now, created, err := s.PutSubscriber(ctx, *file.subscriber(step.Bus, step.Subscriber), Condition{})
		if err == nil {
			step.note(created, old != nil && old.Revision == now.Revision)
		}
		return err
	}
}

// note sets the action to what was really done.
func (step *Step) note(created, same bool) {
	switch {
	case created:
		step.Action = Created
	case same:
		step.Action = Unchanged
	default:
		step.Action = Changed
	}
}

// absent returns err, but nil if the object to delete does not exist any more.
func absent(err error) error {
	if errors.Is(err, model.ErrNotFound) {
		return nil
	}
	return err
}

// plan compares a file with the registry. It checks each object against the registry as it will be
// after the steps before, because these count against the registry's limits.
func (s *Store) plan(ctx context.Context, file *imported, opts ImportOptions) (steps []Step, err error) {
	now := s.Snapshot()
	then, sizes := now.draft(), s.draftSizes()
	var f model.FaultList
	if opts.Prune {
		steps = prune(now, file, opts)
		for _, step := range steps {
			if n := then.countSubscribers(step.Bus); step.Subscriber == "" && n > 0 {
				f.Add("/buses", "must have the bus %s: the records of %d of its subscribers cannot be read, and it cannot be deleted before them", model.Quote(step.Bus), n)
			}
			sizes.remove(now, step)
			then.remove(step.Bus, step.Subscriber)
		}
	}
	for i := range file.buses {
		made, old := file.buses[i], then.Bus(file.buses[i].Name)
		step := Step{Bus: made.Name}
		err := s.mergeBus(&made, old, then)
		step.note(old == nil, old != nil && sameBus(*old, made))
		if err == nil && step.Action != Unchanged {
			err = sizes.putBus(made, old)
		}
		f.Invalid(file.at[busKey(made.Name)], err)
		then.buses[made.Name] = &made
		steps = append(steps, step)
	}
	orders := make(map[model.Order]error) // each order is checked once
	for i := range file.subscribers {
		sub := &file.subscribers[i]
		key := subscriberKey(sub.Bus, sub.Name)
		old, readable := s.stored(then, key, sub)
		step := Step{Bus: sub.Bus, Subscriber: sub.Name}
		made, err := model.Clone(sub)
		if err != nil {
			return nil, err
		}
		err = s.merge(made, old, then.Bus(sub.Bus), then)
		step.note(old == nil, readable && sameSubscriber(*old, *made))
		if err == nil && old == nil && s.opts.Pulsar != nil {
			if _, asked := orders[made.Order]; !asked {
				orders[made.Order] = bounded(ctx, opts.Within, func(ctx context.Context) error {
					return s.opts.Pulsar.CheckOrder(ctx, made.Order)
				})
			}
			err = orders[made.Order]
		}
		if err == nil && step.Action != Unchanged {
			err = sizes.putSubscriber(*made, old)
		}
		f.Invalid(file.at[key], err)
		then.setSubscriber(made)
		steps = append(steps, step)
	}
	if err := file.err(f); err != nil {
		return nil, err // no step is done
	}
	return steps, nil
}

// prune returns the deletions of what the file does not have. They come first, because the number
// of subscribers is limited.
func prune(now *Snapshot, file *imported, opts ImportOptions) (steps []Step) {
	for b := range now.Buses() {
		inFile := file.bus(b.Name) != nil
		if !inFile && opts.Bus != "" {
			continue
		}
		for sub := range now.Subscribers(b.Name) {
			if file.subscriber(b.Name, sub.Name) == nil {
				steps = append(steps, Step{Action: Deleted, Bus: b.Name, Subscriber: sub.Name})
			}
		}
		if !inFile {
			steps = append(steps, Step{Action: Deleted, Bus: b.Name})
		}
	}
	return steps
}

// readImport reads a file and finds everything that is wrong with its objects, each looked at
// alone.
func readImport(r io.Reader, opts ImportOptions, checks model.Checks) (*imported, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxImportBytes+1))
	if err != nil {
		return nil, err
	}
	var f model.FaultList
	if len(text) > maxImportBytes {
		f.Add("", "must have at most %d bytes", maxImportBytes)
		return nil, f.Err()
	}
	root, err := model.ReadYAML(text)
	if err != nil {
		f.Add("", "%s", err)
		return nil, f.Err()
	}
	file := &imported{at: make(map[string]string), names: make(map[string]string)}
	top := members(&f, root, "", "format", "buses")
	if format := top["format"]; format == nil || format.Value != strconv.Itoa(exportFormat) {
		f.Add("/format", "must be %d", exportFormat)
	}
	if n := top["buses"]; root.Kind == yaml.MappingNode && (n == nil || n.ShortTag() == "!!null") {
		f.Add("/buses", "must be given: [] for none") // a file that was cut off must not delete everything
	}
	for i, n := range elements(&f, top["buses"], "/buses") {
		file.readBus(&f, n, fmt.Sprintf("/buses/%d", i), opts, checks)
	}
	if opts.Bus != "" && file.bus(opts.Bus) == nil {
		f.Add("/buses", "must have the bus %s", model.Quote(opts.Bus))
	}
	return file, file.err(f)
}

// readBus reads a bus and its subscribers.
func (file *imported) readBus(f *model.FaultList, n *yaml.Node, at string, opts ImportOptions, checks model.Checks) {
	name := nameOf(n)
	if opts.Bus != "" && name != opts.Bus {
		return
	}
	file.names[at] = "bus " + quoteUnlessPlain(name)
	rest, subscribers := splitImport(f, n, at)
	plain, err := model.FromYAML(rest)
	if err != nil {
		f.Add(at, "%s", err)
		return
	}
	b, err := model.DecodeBus(plain, name, checks)
	f.Invalid(at, err)
	if file.at[busKey(name)] != "" {
		f.Add(at+"/name", "must differ from that of %s", file.at[busKey(name)])
		return
	}
	file.at[busKey(name)] = at
	file.buses = append(file.buses, b)
	for i, n := range elements(f, subscribers, at+"/subscribers") {
		file.readSubscriber(f, n, fmt.Sprintf("%s/subscribers/%d", at, i), b.Name, opts, checks)
	}
}

func (file *imported) readSubscriber(f *model.FaultList, n *yaml.Node, at, bus string, opts ImportOptions, checks model.Checks) {
	name := nameOf(n)
	file.names[at] = "subscriber " + quoteUnlessPlain(bus) + "/" + quoteUnlessPlain(name)
	plain, err := model.FromYAML(n)
	if err != nil {
		f.Add(at, "%s", err)
		return
	}
	sub, err := model.DecodePrepared(plain, bus, name, checks, func(s *model.Subscriber) model.FaultList { return expand(s, opts.Lookup) })
	f.Invalid(at, err)
	key := subscriberKey(bus, name)
	if file.at[key] != "" {
		f.Add(at+"/name", "must differ from that of %s", file.at[key])
		return
	}
	file.at[key] = at
	file.subscribers = append(file.subscribers, sub)
}

// nameOf returns the name of a bus or a subscriber, empty if it has none.
func nameOf(n *yaml.Node) (name string) {
	if n.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == "name" {
				name = n.Content[i+1].Value
			}
		}
	}
	return name
}

// splitImport returns the node of a bus without its subscribers, and the node of its subscribers.
func splitImport(f *model.FaultList, n *yaml.Node, at string) (rest, subscribers *yaml.Node) {
	if n.Kind != yaml.MappingNode {
		return n, nil
	}
	made := *n
	made.Content = nil
	for i := 0; i+1 < len(n.Content); i += 2 {
		switch {
		case n.Content[i].Value != "subscribers":
			made.Content = append(made.Content, n.Content[i], n.Content[i+1])
		case subscribers != nil:
			f.Add(at+"/subscribers", "the key occurs twice")
		default:
			subscribers = n.Content[i+1]
		}
	}
	return &made, subscribers
}

// members returns the values of a mapping that may have only these keys.
func members(f *model.FaultList, n *yaml.Node, at string, keys ...string) map[string]*yaml.Node {
	found := make(map[string]*yaml.Node)
	if n.Kind != yaml.MappingNode {
		f.Add(at, "must be a mapping with the keys %s", strings.Join(keys, ", "))
		return found
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		switch key := n.Content[i].Value; {
		case !slices.Contains(keys, key):
			f.Add(at+model.Step(key), "there is no such key: the keys here are %s", strings.Join(keys, ", "))
		case found[key] != nil:
			f.Add(at+model.Step(key), "the key occurs twice")
		default:
			found[key] = n.Content[i+1]
		}
	}
	return found
}

// elements returns the elements of a list, none if there is no list.
func elements(f *model.FaultList, n *yaml.Node, at string) []*yaml.Node {
	switch {
	case n == nil || n.ShortTag() == "!!null":
		return nil
	case n.Kind != yaml.SequenceNode:
		f.Add(at, "must be a list")
		return nil
	}
	return n.Content
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
