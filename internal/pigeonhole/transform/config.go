// Package transform transforms the messages of a route between its source and its sink: it filters
// and changes them, and determines the destination of each.
//
// A message passes filter, headers, set and to, in this order. Expressions see the message as it
// came from the source. The template to sees the changed message.
package transform

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/message"
)

// Config is the transformation of a route. The zero Config changes nothing. See vars.go
// for what expressions may use.
type Config struct {
	// Filter is a CEL expression that is true for the messages to send. Others are dropped.
	// Default: all are sent.
	Filter string `yaml:"filter"`
	// Set replaces parts of the message. Its keys are key, value and header.NAME, its values CEL
	// expressions that return a string, bytes or null. null under key removes the key, null under
	// value makes the message a tombstone, null under header.NAME removes all headers of that
	// name. A string or bytes under header.NAME replaces them. Default: none.
	Set map[string]string `yaml:"set"`
	// Headers chooses and renames headers.
	Headers HeadersConfig `yaml:"headers"`
	// To is the destination: a topic, or in RabbitMQ a queue or routing key. It may
	// contain {topic} (at the source), {topic_name} (its part after the last '/',
	// without -partition-N), {partition}, {key}, {routing_key}, {exchange} and
	// {header.NAME}. A message for which a placeholder has no value, or an empty one, is refused
	// with the reason "template", unless the placeholder has a default: {header.NAME:-other}.
	// {{ and }} stand for the characters { and }.
	//
	// A message is also refused with this reason if a value changes the structure of the name. With a
	// sink of Pulsar, that is a value with '/', or a name that has a part "." or "..", or whose
	// last part begins with "__", ends in "__transaction_pending_ack", or contains "-partition-".
	// With Kafka it is a name that begins with "__". With RabbitMQ it is a queue whose name begins
	// with "amq.". The text between placeholders, the partition and defaults may do all of this,
	// and so may {topic} alone from a topic to one of the same system. Default: the destination in
	// the sink's configuration.
	To string `yaml:"to"`
}

// HeadersConfig chooses and renames headers. In a pattern '*' matches any text, and '?' any one
// character; patterns are case-sensitive. The entries that Pigeonhole adds itself are not headers.
type HeadersConfig struct {
	// Include keeps only headers that match one of these patterns. Default: all.
	Include []string `yaml:"include"`
	// Exclude removes headers that match one of these, also of those included.
	// Default: none.
	Exclude []string `yaml:"exclude"`
	// Rename gives headers that are left another name. Both names are exact. Default:
	// none.
	Rename map[string]string `yaml:"rename"`
}

func (c HeadersConfig) isZero() bool { return len(c.Include)+len(c.Exclude)+len(c.Rename) == 0 }

// Validate returns every fault, those of expressions and of the template included.
func (c Config) Validate() error {
	_, err := New(c, connector.NameRules{}) // the rules are for values, which it does not have
	return err
}

func (c HeadersConfig) validate() error {
	var errs []error
	for _, list := range []struct {
		key      string
		patterns []string
	}{{"include", c.Include}, {"exclude", c.Exclude}} {
		for i, pattern := range list.patterns {
			if pattern == "" {
				errs = append(errs, config.Fault(fmt.Sprintf("headers.%s[%d]", list.key, i), "must be a header's name or a pattern such as x-*"))
			}
		}
	}
	for _, from := range slices.Sorted(maps.Keys(c.Rename)) {
		path := "headers.rename." + from
		switch to := c.Rename[from]; {
		case from == "":
			errs = append(errs, config.Fault("headers.rename", "must name the header to rename, got an empty name"))
		case to == "":
			errs = append(errs, config.Fault(path, "must be the header's new name"))
		case message.IsReserved(to):
			errs = append(errs, config.Fault(path, "must not begin with %s, which is for Pigeonhole's own, got %q", message.Prefix, to))
		}
	}
	return errors.Join(errs...)
}

// parseSetKey parses a key of Config.Set.
func parseSetKey(key string) (target, header string, err error) {
	if name, ok := strings.CutPrefix(key, "header."); ok {
		switch {
		case name == "":
			return "", "", config.Fault("set."+key, "must name a header: header.NAME")
		case message.IsReserved(name):
			return "", "", config.Fault("set."+key, "must not begin with %s, which is for Pigeonhole's own", message.Prefix)
		}
		return "header", name, nil
	}
	if key == "key" || key == "value" {
		return key, "", nil
	}
	return "", "", config.Fault("set."+key, "must be key, value or header.NAME, got %q", key)
}
