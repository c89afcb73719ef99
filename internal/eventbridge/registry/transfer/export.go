package transfer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
)

// exportFormat is the version of exported files.
const exportFormat = 1

// Export writes all buses and their subscribers as YAML, sorted by name. It omits fields that the
// store sets, such as revisions, so that the same registry always makes the same text.
// Secrets are hidden; an import of the text keeps the stored ones. Objects whose records cannot be
// read are missing: Export returns an error for them after it has written the rest.
func Export(w io.Writer, s *store.Snapshot) error {
	list := &yaml.Node{Kind: yaml.SequenceNode}
	for b := range s.Buses() {
		n, err := exported(b, "name", "revision", "created", "changed")
		if err != nil {
			return err
		}
		subscribers := &yaml.Node{Kind: yaml.SequenceNode}
		for sub := range s.Subscribers(b.Name) {
			one, err := exported(sub, "name", "bus", "revision", "created", "changed", "uid", "reason")
			if err != nil {
				return err
			}
			subscribers.Content = append(subscribers.Content, one)
		}
		if len(subscribers.Content) > 0 {
			n.Content = append(n.Content, text("subscribers"), subscribers)
		}
		list.Content = append(list.Content, n)
	}
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	root := &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{
		text("format"), {Kind: yaml.ScalarNode, Tag: "!!int", Value: fmt.Sprint(exportFormat)}, text("buses"), list,
	}}
	if err := e.Encode(root); err != nil {
		return fmt.Errorf("cannot write YAML: %w", err)
	}
	if _, err := w.Write(out.Bytes()); err != nil {
		return err
	}
	missing := s.Unreadable()
	for _, key := range slices.Sorted(maps.Keys(missing)) {
		return fmt.Errorf("%d objects are missing, because their records cannot be read: the first is %s: %s", len(missing), key, missing[key])
	}
	return nil
}

// exported returns an object as YAML, its name first, and without the given keys.
func exported(object any, name string, without ...string) (*yaml.Node, error) {
	plain, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	all, err := toYAML(plain)
	if err != nil {
		return nil, err
	}
	n := &yaml.Node{Kind: yaml.MappingNode}
	for i := 0; i+1 < len(all.Content); i += 2 {
		switch key := all.Content[i].Value; {
		case key == name:
			n.Content = append([]*yaml.Node{all.Content[i], all.Content[i+1]}, n.Content...)
		case !slices.Contains(without, key):
			n.Content = append(n.Content, all.Content[i], all.Content[i+1])
		}
	}
	return n, nil
}

func text(s string) *yaml.Node {
	n := new(yaml.Node)
	n.SetString(s)
	return n
}
