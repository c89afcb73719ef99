package registry

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

	"go.yaml.in/yaml/v3"

	"github.com/aviaryhq/aviary/pkg/secret"
)

// maxImportBytes bounds a file.
const maxImportBytes = 256 << 20

// ImportOptions say what an import does.
type ImportOptions struct {
	// Bus is the only one that is looked at, and has to be in the file. Default: all.
	Bus string
	// DryRun changes nothing, and tells what would be changed.
	DryRun bool
	// Prune deletes what the file does not have: subscribers of the buses that it has, and, without Bus, other buses.
	Prune bool
	// Lookup finds what ${NAME} stands for in secrets, such as os.LookupEnv. Default: nothing is found.
	Lookup func(name string) (string, bool)
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

// Step is one thing that an import has done, or would do in a dry run.
type Step struct {
	Action     Action `json:"action"`
	Bus        string `json:"bus"`
	Subscriber string `json:"subscriber,omitempty"` // empty: it is about the bus
}

// imported are the objects of a file.
type imported struct {
	buses       []Bus
	subscribers []Subscriber
	at          map[string]string // where in the file, by their keys
}

func (file *imported) bus(name string) *Bus {
	for i := range file.buses {
		if file.buses[i].Name == name {
			return &file.buses[i]
		}
	}
	return nil
}

func (file *imported) subscriber(bus, name string) *Subscriber {
	for i := range file.subscribers {
		if file.subscribers[i].Bus == bus && file.subscribers[i].Name == name {
			return &file.subscribers[i]
		}
	}
	return nil
}

// Import makes the registry what a file says that [Snapshot.Export] wrote, or somebody by hand: buses first, each with its
// subscribers. The whole file is checked before the first change; then each object is a change of its own, so that after an error
// the steps that are returned are done. What is stored as the file says is not changed.
//
// In secrets, ${NAME} stands for what Lookup finds, and a hidden secret for the stored one. The error of a file that is not valid is
// an [*Invalid] with pointers into the file.
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
		if err := s.do(ctx, file, &steps[i]); err != nil {
			return steps[:i], fmt.Errorf("%s %s: %w", step.Action, strings.TrimSuffix(step.Bus+"/"+step.Subscriber, "/"), err)
		}
	}
	return steps, nil
}

// do makes one change. Somebody else may have changed the object since it was planned.
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

// note says what was really done.
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

// absent is err unless what was to be deleted is gone already.
func absent(err error) error {
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// plan compares a file with the registry as it is now. Each object is looked at as the registry will be once the steps before are done: their rules count.
func (s *Store) plan(ctx context.Context, file *imported, opts ImportOptions) (steps []Step, err error) {
	now := s.Snapshot()
	then, sizes := now.draft(), s.draftSizes()
	var f faults
	if opts.Prune {
		steps = prune(now, file, opts)
		for _, step := range steps {
			if n := then.countSubscribers(step.Bus); step.Subscriber == "" && n > 0 {
				f.add("/buses", "must have the bus %s: the records of %d of its subscribers cannot be read, and it cannot be deleted before them", quote(step.Bus), n)
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
		f.invalid(file.at[busKey(made.Name)], err)
		then.buses[made.Name] = &made
		steps = append(steps, step)
	}
	orders := make(map[Order]error) // each is asked for once
	for i := range file.subscribers {
		sub := &file.subscribers[i]
		key := subscriberKey(sub.Bus, sub.Name)
		old, readable := s.stored(then, key, sub)
		step := Step{Bus: sub.Bus, Subscriber: sub.Name}
		made, err := clone(sub)
		if err != nil {
			return nil, err
		}
		err = s.merge(made, old, then.Bus(sub.Bus), then)
		step.note(old == nil, readable && sameSubscriber(*old, *made))
		if err == nil && old == nil && s.opts.Pulsar != nil {
			if _, asked := orders[made.Order]; !asked {
				orders[made.Order] = s.opts.Pulsar.CheckOrder(ctx, made.Order)
			}
			err = orders[made.Order]
		}
		if err == nil && step.Action != Unchanged {
			err = sizes.putSubscriber(*made, old)
		}
		f.invalid(file.at[key], err)
		then.setSubscriber(made)
		steps = append(steps, step)
	}
	if err := f.err(); err != nil {
		return nil, err // none of them is done
	}
	return steps, nil
}

// prune returns the deletions of what a file does not have. They come first: there is a bound of subscribers.
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

// readImport reads a file and finds all that is wrong with its objects in themselves.
func readImport(r io.Reader, opts ImportOptions, checks Checks) (*imported, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxImportBytes+1))
	if err != nil {
		return nil, err
	}
	var f faults
	if len(text) > maxImportBytes {
		f.add("", "must have at most %d bytes", maxImportBytes)
		return nil, f.err()
	}
	root, err := readYAML(text)
	if err != nil {
		f.add("", "%s", err)
		return nil, f.err()
	}
	file := &imported{at: make(map[string]string)}
	top := members(&f, root, "", "format", "buses")
	if format := top["format"]; format == nil || format.Value != strconv.Itoa(exportFormat) {
		f.add("/format", "must be %d", exportFormat)
	}
	if n := top["buses"]; root.Kind == yaml.MappingNode && (n == nil || n.ShortTag() == "!!null") {
		f.add("/buses", "must be given: [] for none") // a file that was cut off is no wish to delete all
	}
	for i, n := range elements(&f, top["buses"], "/buses") {
		file.readBus(&f, n, fmt.Sprintf("/buses/%d", i), opts, checks)
	}
	if opts.Bus != "" && file.bus(opts.Bus) == nil {
		f.add("/buses", "must have the bus %s", quote(opts.Bus))
	}
	return file, f.err()
}

// readBus reads a bus and its subscribers.
func (file *imported) readBus(f *faults, n *yaml.Node, at string, opts ImportOptions, checks Checks) {
	name := nameOf(n)
	if opts.Bus != "" && name != opts.Bus {
		return
	}
	rest, subscribers := takeApart(f, n, at)
	plain, err := fromYAML(rest)
	if err != nil {
		f.add(at, "%s", err)
		return
	}
	b, err := DecodeBus(plain, name, checks)
	f.invalid(at, err)
	if file.at[busKey(name)] != "" {
		f.add(at+"/name", "must differ from that of %s", file.at[busKey(name)])
		return
	}
	file.at[busKey(name)] = at
	file.buses = append(file.buses, b)
	for i, n := range elements(f, subscribers, at+"/subscribers") {
		file.readSubscriber(f, n, fmt.Sprintf("%s/subscribers/%d", at, i), b.Name, opts, checks)
	}
}

func (file *imported) readSubscriber(f *faults, n *yaml.Node, at, bus string, opts ImportOptions, checks Checks) {
	name := nameOf(n)
	plain, err := fromYAML(n)
	if err != nil {
		f.add(at, "%s", err)
		return
	}
	sub, err := decodeSubscriber(plain, bus, name, checks, func(s *Subscriber) faults { return expand(s, opts.Lookup) })
	f.invalid(at, err)
	key := subscriberKey(bus, name)
	if file.at[key] != "" {
		f.add(at+"/name", "must differ from that of %s", file.at[key])
		return
	}
	file.at[key] = at
	file.subscribers = append(file.subscribers, sub)
}

// invalid adds the faults of an error of decoding.
func (f *faults) invalid(at string, err error) {
	var bad *Invalid
	if errors.As(err, &bad) {
		f.below(at, bad.Faults)
		if bad.More > 0 {
			f.add(at, "has %d more faults", bad.More)
		}
	}
}

// nameOf returns the name of a bus or a subscriber, empty without one.
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

// takeApart returns a bus without its subscribers, and these.
func takeApart(f *faults, n *yaml.Node, at string) (rest, subscribers *yaml.Node) {
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
			f.add(at+"/subscribers", "the key is there twice")
		default:
			subscribers = n.Content[i+1]
		}
	}
	return &made, subscribers
}

// members are the values of a mapping that may only have these keys.
func members(f *faults, n *yaml.Node, at string, keys ...string) map[string]*yaml.Node {
	found := make(map[string]*yaml.Node)
	if n.Kind != yaml.MappingNode {
		f.add(at, "must be a mapping with the keys %s", strings.Join(keys, ", "))
		return found
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		switch key := n.Content[i].Value; {
		case !slices.Contains(keys, key):
			f.add(at+step(key), "there is no such key: the keys here are %s", strings.Join(keys, ", "))
		case found[key] != nil:
			f.add(at+step(key), "the key is there twice")
		default:
			found[key] = n.Content[i+1]
		}
	}
	return found
}

// elements are those of a list, none when there is no list.
func elements(f *faults, n *yaml.Node, at string) []*yaml.Node {
	switch {
	case n == nil || n.ShortTag() == "!!null":
		return nil
	case n.Kind != yaml.SequenceNode:
		f.add(at, "must be a list")
		return nil
	}
	return n.Content
}

// expand replaces ${NAME} in secrets. "$${" stands for "${".
func expand(s *Subscriber, lookup func(string) (string, bool)) (f faults) {
	reference := regexp.MustCompile(`\$\$\{|\$\{[^}]*\}?`)
	eachSecret(reflect.ValueOf(s).Elem(), "", func(at string, v secret.String) secret.String {
		return secret.String(reference.ReplaceAllStringFunc(v.Reveal(), func(found string) string {
			name := strings.TrimSuffix(strings.TrimPrefix(found, "${"), "}")
			switch {
			case found == "$${":
				return "${"
			case !strings.HasSuffix(found, "}") || name == "":
				f.add(at, "must be ${NAME}, or $${ for the text ${")
				return found
			case lookup != nil:
				if value, ok := lookup(name); ok {
					return value
				}
			}
			f.add(at, "the environment has no %s", name)
			return found
		}))
	})
	return f
}
