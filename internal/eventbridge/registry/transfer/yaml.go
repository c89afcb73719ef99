package transfer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/jsontext"
)

// toYAML converts JSON to YAML: keys keep their order, numbers their digits.
func toYAML(text []byte) (*yaml.Node, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return yamlValue(d)
}

func yamlValue(d *json.Decoder) (*yaml.Node, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	scalar := func(tag, value string) (*yaml.Node, error) {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value}, nil
	}
	switch v := token.(type) {
	case nil:
		return scalar("!!null", "null")
	case bool:
		return scalar("!!bool", strconv.FormatBool(v))
	case json.Number:
		// A tag would be written, and numbers of JSON are numbers of YAML, but for some with an
		// exponent.
		if _, err := strconv.ParseInt(v.String(), 10, 64); err == nil {
			return scalar("!!int", v.String())
		}
		return scalar("!!float", v.String())
	case string:
		n := new(yaml.Node)
		n.SetString(v)
		return n, nil
	}
	n := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	isObject := token == json.Delim('{')
	if !isObject {
		n = &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Style: yaml.FlowStyle}
	}
	for d.More() {
		child, err := yamlValue(d)
		if err != nil {
			return nil, err
		}
		n.Content = append(n.Content, child)
		if child.Kind == yaml.MappingNode && !isObject && len(child.Content) > 2 {
			n.Style = 0 // a list of larger objects is written in lines
		}
	}
	_, err = d.Token()
	return n, err
}

// writeJSON writes YAML as JSON. Keys keep their order. A duplicate key stays, so that the decoder
// of the JSON finds it.
func writeJSON(b *bytes.Buffer, n *yaml.Node) error {
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("line %d: %s", n.Line, fmt.Sprintf(format, args...))
	}
	switch n.Kind {
	case yaml.MappingNode:
		b.WriteByte('{')
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Kind != yaml.ScalarNode || n.Content[i].ShortTag() == "!!merge" {
				return wrong("keys must be texts")
			}
			if i > 0 {
				b.WriteByte(',')
			}
			writeText(b, n.Content[i].Value)
			b.WriteByte(':')
			if err := writeJSON(b, n.Content[i+1]); err != nil {
				return err
			}
		}
		b.WriteByte('}')
	case yaml.SequenceNode:
		b.WriteByte('[')
		for i, element := range n.Content {
			if i > 0 {
				b.WriteByte(',')
			}
			if err := writeJSON(b, element); err != nil {
				return err
			}
		}
		b.WriteByte(']')
	case yaml.ScalarNode:
		return writeScalar(b, n, wrong)
	case yaml.AliasNode:
		return wrong("anchors and aliases (& and *) are not supported: repeat the value")
	default:
		return wrong("is not a value")
	}
	return nil
}

func writeScalar(b *bytes.Buffer, n *yaml.Node, wrong func(string, ...any) error) error {
	switch n.ShortTag() {
	case "!!null":
		b.WriteString("null")
	case "!!bool":
		var v bool
		if err := n.Decode(&v); err != nil {
			return wrong("must be true or false, got %s", model.Quote(n.Value))
		}
		b.WriteString(strconv.FormatBool(v))
	case "!!int", "!!float":
		if json.Valid([]byte(n.Value)) { // with its own digits
			b.WriteString(n.Value)
			return nil
		}
		var v any
		if err := n.Decode(&v); err != nil {
			return wrong("must be a number, got %s", model.Quote(n.Value))
		}
		text, err := json.Marshal(v)
		if err != nil { // infinite, or no number
			return wrong("must be a number that JSON can express, got %s", model.Quote(n.Value))
		}
		b.Write(text)
	case "!!str", "!!timestamp":
		writeText(b, n.Value)
	default:
		return wrong("tags (%s) are not supported", n.ShortTag())
	}
	return nil
}

func writeText(b *bytes.Buffer, text string) { b.Write(jsontext.AppendString(nil, text)) }

// errNoDocument: a text is empty.
var errNoDocument = errors.New("it is empty")

// fromYAML converts the only document of a text to JSON. A text that is JSON stays as it is: some
// escapes and characters of JSON are not YAML.
func fromYAML(text []byte) (json.RawMessage, error) {
	if utf8.Valid(text) && json.Valid(text) {
		return text, nil
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	var n, more yaml.Node
	switch err := d.Decode(&n); {
	case errors.Is(err, io.EOF), err == nil && len(n.Content) != 1:
		return nil, errNoDocument
	case err != nil:
		return nil, fmt.Errorf("it is not YAML: %w", err)
	case d.Decode(&more) == nil:
		return nil, fmt.Errorf("line %d: it must be one YAML document", more.Line)
	}
	var b bytes.Buffer
	err := writeJSON(&b, n.Content[0])
	return b.Bytes(), err
}
