package transform

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
)

// template is a parsed destination.
type template struct {
	parts  []part
	fixed  bool   // there are no placeholders
	static string // the destination then
	rules  connector.NameRules
}

// part is a text, or a placeholder.
type part struct {
	text         string
	name, header string // "" of a text
	fallback     string // "": none
}

func parseTemplate(text string, rules connector.NameRules) (*template, error) {
	t := &template{rules: rules, fixed: true}
	for _, token := range regexp.MustCompile(`\{[^}]*\}|[{}]|[^{}]+`).FindAllString(text, -1) {
		p := part{text: token}
		switch {
		case token == "{":
			return nil, fmt.Errorf("has a '{' without its '}', got %q", text)
		case token == "}":
			return nil, fmt.Errorf("has a '}' without its '{', got %q", text)
		case token[0] == '{':
			var err error
			if p, err = parsePlaceholder(token[1 : len(token)-1]); err != nil {
				return nil, err
			}
			t.fixed = false
		}
		t.parts, t.static = append(t.parts, p), t.static+p.text
	}
	return t, nil
}

func parsePlaceholder(inside string) (part, error) {
	name, fallback, hasFallback := strings.Cut(inside, ":-")
	if hasFallback && fallback == "" {
		return part{}, fmt.Errorf("gives {%s} an empty default", name)
	}
	if header, ok := strings.CutPrefix(name, "header."); ok && header != "" {
		return part{name: "header", header: header, fallback: fallback}, nil
	}
	switch name {
	case "topic", "topic_name", "partition", "key", "routing_key", "exchange":
		return part{name: name, fallback: fallback}, nil
	}
	return part{}, fmt.Errorf("may contain only {topic}, {topic_name}, {partition}, {key}, {routing_key}, {exchange} and"+
		" {header.NAME}, each with a default as in {key:-other}, not {%s}", inside)
}

// destination returns the destination of m, or an error made by pipeline.Refuse.
func (t *template) destination(m *message.Message) (string, error) {
	if t.fixed {
		return t.static, nil
	}
	var buffer, bufferFixed [128]byte
	b := buffer[:0]
	fixed := bufferFixed[:0] // b with a zero byte, which no value has, for each value that a sender may choose
	for i := range t.parts {
		p := &t.parts[i]
		if p.name == "" {
			b, fixed = append(b, p.text...), append(fixed, p.text...)
			continue
		}
		from := len(b)
		b = p.appendValue(b, m)
		value := b[from:]
		switch {
		case len(value) == 0 && p.fallback == "":
			return "", refuse("the destination needs %s, which the message does not have", p)
		case len(value) == 0:
			b, fixed = append(b, p.fallback...), append(fixed, p.fallback...)
			continue
		case p.name == "partition":
			fixed = append(fixed, value...)
		default:
			fixed = append(fixed, 0)
		}
		if err := checkValue(value, t.rules.Separator); err != nil {
			return "", refuse("%s cannot be part of the destination: %w", p, err)
		}
	}
	to := string(b)
	if t.rules.Reserved != nil {
		if clause := t.rules.Reserved(to); clause != "" && clause != t.rules.Reserved(string(fixed)) {
			return "", refuse("the destination %q is not allowed: %s; values of messages must not make such a name", to, clause)
		}
	}
	return to, nil
}

func refuse(format string, args ...any) error {
	return pipeline.Refuse("template", fmt.Errorf(format, args...))
}

func checkValue(value []byte, separator byte) error {
	const maxValue = 1024 // no system has longer names
	switch {
	case len(value) > maxValue:
		return fmt.Errorf("it has %d bytes, more than %d", len(value), maxValue)
	case !utf8.Valid(value):
		return errors.New("it is not valid UTF-8")
	case slices.ContainsFunc(value, func(c byte) bool { return c < ' ' || c == 0x7f }):
		return errors.New("it has control characters")
	case separator != 0 && slices.Contains(value, separator):
		return fmt.Errorf("it contains %q, which would select a topic of another namespace", separator)
	}
	return nil
}

// String returns the placeholder's name for error messages.
func (p *part) String() string {
	if p.header != "" {
		return "the header " + strconv.Quote(p.header)
	}
	return strings.ReplaceAll(p.name, "_", " ")
}

// appendValue appends the placeholder's value, or nothing if the message does not have it.
func (p *part) appendValue(b []byte, m *message.Message) []byte {
	switch p.name {
	case "topic":
		return append(b, m.From.Topic...)
	case "topic_name":
		return append(b, topicName(m.From.Topic)...)
	case "partition":
		if m.From.Partition >= 0 {
			return strconv.AppendInt(b, int64(m.From.Partition), 10)
		}
	case "key":
		return append(b, m.Key...)
	case "routing_key":
		return append(b, amqpProperties(m).RoutingKey...)
	case "exchange":
		return append(b, amqpProperties(m).Exchange...)
	case "header":
		value, _ := m.Header(p.header)
		return append(b, value...)
	}
	return b
}

// topicName returns the last part of a topic of Pulsar, without -partition-N. It returns any other
// topic unchanged.
func topicName(topic string) string {
	at := strings.LastIndexByte(topic, '/')
	if at < 0 {
		return topic
	}
	topic, _ = message.SplitPartition(topic[at+1:])
	return topic
}
