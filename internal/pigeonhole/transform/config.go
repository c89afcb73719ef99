// Package transform filters and changes the messages of a route between its source and its sink,
// and determines their destinations. A message passes filter, headers, set and to, in this order.
// Expressions see the message as it came from the source; the template to sees the changed message.
//
// The package imports internal/connector with message and pipeline, but no system.
package transform

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/message"
)

// Config is the transformation of a route. The zero Config changes nothing. See vars.go
// for what expressions may use.
type Config struct {
	// Filter is a CEL expression that is true for the messages to send. The others are dropped.
	// Default: all messages are sent.
	Filter string `yaml:"filter"`
	// Set replaces parts of the message. Its keys are key, value and header.NAME, its values CEL
	// expressions that return a string, bytes or null. null under key removes the key, null under
	// value makes the message a tombstone, null under header.NAME removes all headers of that
	// name. A string or bytes under header.NAME replaces them. Default: none.
	Set map[string]string `yaml:"set"`
	// Headers chooses headers.
	Headers HeadersConfig `yaml:"headers"`
	// To is the destination: a topic, or in RabbitMQ a queue or routing key. It may contain {topic}
	// (at the source), {topic_name} (its part after the last '/', without -partition-N),
	// {partition}, {key}, {routing_key}, {exchange} and {header.NAME}. A message for which a
	// placeholder has no value, or an empty one, is refused with the reason "template", unless the
	// placeholder has a default: {header.NAME:-other}. A message is also refused with this reason
	// if a value changes the structure of the name: a namespace, a partition, or a name that the
	// system reserves (see docs/pigeonhole.md). The text between placeholders, {partition} and
	// defaults may do that, and so may {topic} alone within one system. Default: the destination in
	// the sink's configuration.
	To string `yaml:"to"`
}

// HeadersConfig chooses headers. In a pattern '*' matches any text; patterns are case-sensitive. The
// entries that Pigeonhole adds itself are not headers.
type HeadersConfig struct {
	// Include keeps only headers that match one of these patterns. Default: all.
	Include []string `yaml:"include"`
	// Exclude removes headers that match one of these patterns, also if they match include.
	// Default: none.
	Exclude []string `yaml:"exclude"`
}

// Validate returns every fault of the expressions and of the template.
func (c Config) Validate() error {
	_, err := New(c, connector.NameRules{}) // the rules are for values, which it does not have
	return err
}

// Validate returns every fault.
func (c HeadersConfig) Validate() error {
	const right = "must be a header's name or a pattern such as x-*"
	in, out := slices.Index(c.Include, ""), slices.Index(c.Exclude, "")
	return errors.Join(config.Require(in < 0, fmt.Sprintf("include[%d]", in), right),
		config.Require(out < 0, fmt.Sprintf("exclude[%d]", out), right))
}

func (c *HeadersConfig) isZero() bool { return len(c.Include)+len(c.Exclude) == 0 }

// apply returns the headers to keep. It does not change the given list: others may use it.
func (c *HeadersConfig) apply(headers []message.Header) []message.Header {
	if c.isZero() || len(headers) == 0 {
		return headers
	}
	left := make([]message.Header, 0, len(headers))
	for _, h := range headers {
		if (len(c.Include) == 0 || matchesAny(c.Include, h.Name)) && !matchesAny(c.Exclude, h.Name) {
			left = append(left, h)
		}
	}
	return left
}

func matchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, name) })
}

// matches reports whether name matches the pattern. It looks for each text between two '*' once, at
// its first place.
func matches(pattern, name string) bool {
	text, pattern, star := strings.Cut(pattern, "*")
	name, ok := strings.CutPrefix(name, text)
	for ok && star {
		if text, pattern, star = strings.Cut(pattern, "*"); !star {
			return strings.HasSuffix(name, text)
		}
		_, name, ok = strings.Cut(name, text)
	}
	return ok && name == ""
}
