// Package topic makes the names of topics from the tenant and labels of series. It imports batch and
// must not import publish.
package topic

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/internal/truncate"
)

const (
	maxPart         = 64
	noValue         = "none" // replaces the value of a label that the series does not have
	partitionInfix  = "-partition-"
	partitionDigits = "0123456789" // follow partitionInfix in the name of a partition
)

// Template is a topic's name with placeholders.
type Template struct {
	parts      []templatePart
	Tenant     bool // the name contains the tenant
	PerSeries  bool // the name contains labels: series of one request can have different topics
	nameVaries bool // the last part of the name contains a placeholder
}

// templatePart is a fixed text, the tenant, or the value of a label.
type templatePart struct {
	text   string
	tenant bool
	label  string
}

// Parse reads a topic of the configuration.
func Parse(text string) (Template, error) {
	t := Template{nameVaries: strings.Contains(text[strings.LastIndexByte(text, '/')+1:], "{")}
	for _, token := range regexp.MustCompile(`[^{]+|\{[^}]*\}?`).FindAllString(text, -1) {
		var p templatePart
		switch {
		case token[0] != '{':
			p.text = token
		case token[len(token)-1] != '}':
			return t, fmt.Errorf("must close the brace of %q, got %q", token, text)
		case token == "{tenant}":
			p.tenant = true
		case token == "{name}":
			p.label = batch.NameLabel
		case strings.HasPrefix(token, "{label.") && token != "{label.}":
			p.label = token[len("{label.") : len(token)-1]
		default:
			return t, fmt.Errorf("may contain only {tenant}, {name} and {label.NAME}, not %s", token)
		}
		t.parts = append(t.parts, p)
		t.Tenant = t.Tenant || p.tenant
		t.PerSeries = t.PerSeries || p.label != ""
	}
	if regexp.MustCompile(`\{tenant\}[^/]*\{|\{[^/]*\{tenant\}`).MatchString(text) {
		return t, fmt.Errorf("must not have {tenant} and another placeholder in one part of the name: "+
			"values of two tenants could give the same topic, got %q", text)
	}
	if namesPartitions(text) {
		return t, fmt.Errorf("must not end with {tenant} after %q, after its first letters, or after a number that follows it: "+
			"the topic of tenant 3 would be a partition of another topic, got %q", partitionInfix, text)
	}
	shape := regexp.MustCompile(`\{[^}]*\}`).ReplaceAllString(text, "x")
	if !regexp.MustCompile(`^(non-)?persistent://[^/]+/[^/]+/[^/]+$`).MatchString(shape) {
		return t, fmt.Errorf("must be persistent://tenant/namespace/name, got %q", text)
	}
	return t, nil
}

// namesPartitions reports whether a tenant at the end of the name could make the topic a partition
// of another one: after partitionInfix, or after a part of it that the tenant completes. A single
// dash before the tenant is safe, because CheckTenant refuses tenants that contain the rest.
func namesPartitions(text string) bool {
	before, atEnd := strings.CutSuffix(text, "{tenant}")
	partition := strings.HasSuffix(strings.TrimRight(before, partitionDigits), partitionInfix)
	for n := 2; n < len(partitionInfix); n++ {
		partition = partition || strings.HasSuffix(before, partitionInfix[:n])
	}
	return atEnd && partition
}

// Static reports whether the template has no placeholders.
func (t *Template) Static() bool { return !t.Tenant && !t.PerSeries }

// Render writes the topic of a series over dst. CheckTenant must accept the tenant.
func (t *Template) Render(dst []byte, tenant string, labels []batch.Label) []byte {
	dst = dst[:0]
	for _, p := range t.parts {
		switch {
		case p.tenant:
			dst = append(dst, tenant...)
		case p.label != "":
			dst = appendSanitised(dst, labels, p.label)
		default:
			dst = append(dst, p.text...)
		}
	}
	return t.replaceReserved(dst)
}

// appendSanitised writes a label's value as a part of a topic's name: letters, digits, "_", "-" and
// "." stay, any other byte becomes "_". A long value is cut, and ends with its hash, so that values
// with the same beginning stay different.
func appendSanitised(dst []byte, labels []batch.Label, name string) []byte {
	value := ""
	for i := range labels {
		if labels[i].Name == name {
			value = labels[i].Value
			break
		}
	}
	if value == "" {
		return append(dst, noValue...)
	}
	short := value
	if len(value) > maxPart {
		short = value[:maxPart-17]
	}
	for i := range len(short) {
		c := short[i]
		if !allowed(rune(c)) {
			c = '_'
		}
		dst = append(dst, c)
	}
	if len(short) < len(value) {
		dst = batch.AppendKey(append(dst, '-'), xxhash.Sum64String(value))
	}
	return dst
}

func allowed(c rune) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.'
}

// replaceReserved changes names with a special meaning in Pulsar, because senders could choose them:
// system topics begin with "__", and "-partition-3" names a partition of another topic. A part that
// consists only of dots could be taken for a path. A last part without placeholders is the
// operator's choice and stays.
func (t *Template) replaceReserved(topic []byte) []byte {
	name := topic
	for rest, more := topic, true; more; {
		name, rest, more = bytes.Cut(rest, []byte("/"))
		if len(bytes.Trim(name, ".")) == 0 {
			for i := range name {
				name[i] = '_'
			}
		}
	}
	if !t.nameVaries {
		return topic
	}
	if bytes.HasPrefix(name, []byte("__")) {
		name[0] = 'x'
	}
	before := bytes.TrimRight(name, partitionDigits)
	if len(before) < len(name) && bytes.HasSuffix(before, []byte(partitionInfix)) {
		topic = append(topic, '_')
	}
	return topic
}

// CheckTenant refuses tenants that cannot be part of a topic's name unchanged: a changed name could
// give one tenant the topics of another.
func CheckTenant(tenant string) error {
	if tenant == "" || len(tenant) > maxPart || strings.Trim(tenant, ".") == "" || strings.HasPrefix(tenant, "__") ||
		strings.HasSuffix(strings.TrimRight(tenant, partitionDigits), "partition-") ||
		strings.ContainsFunc(tenant, func(c rune) bool { return !allowed(c) }) {
		return refusal.Invalid("tenant", "X-Scope-OrgID must be 1 to %d letters, digits, '_', '-' or '.', got %q",
			maxPart, truncate.Text(tenant, maxPart))
	}
	return nil
}
