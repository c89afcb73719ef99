package publish

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/internal/truncate"
)

// Template is a topic's name with placeholders.
type Template struct {
	parts     []templatePart
	Tenant    bool // whether it contains the tenant
	chosen    bool // whether its last part contains a placeholder
	PerSeries bool // whether series of one request can have different topics
}

// templatePart is a literal text, or one of the placeholders.
type templatePart struct {
	text  string // of a literal
	label string // whose value replaces the placeholder
	kind  partKind
}

type partKind uint8

const (
	literal partKind = iota
	tenantPart
	labelPart
)

// ParseTemplate reads the configuration's topic.
func ParseTemplate(text string) (Template, error) {
	var t Template
	shape := ""
	for rest := text; rest != ""; {
		before, after, found := strings.Cut(rest, "{")
		if before != "" {
			t.parts = append(t.parts, templatePart{text: before})
			shape += before
		}
		if !found {
			break
		}
		name, after, closed := strings.Cut(after, "}")
		label, isLabel := strings.CutPrefix(name, "label.")
		switch {
		case !closed:
			return t, fmt.Errorf("must close the brace after %q, got %q", before, text)
		case name == "tenant":
			t.parts = append(t.parts, templatePart{kind: tenantPart})
			t.Tenant = true
		case name == "name":
			t.parts = append(t.parts, templatePart{kind: labelPart, label: batch.NameLabel})
			t.PerSeries = true
		case isLabel && label != "":
			t.parts = append(t.parts, templatePart{kind: labelPart, label: label})
			t.PerSeries = true
		default:
			return t, fmt.Errorf("may contain only {tenant}, {name} and {label.NAME}, not {%s}", name)
		}
		shape += "x"
		rest = after
	}
	t.chosen = strings.Contains(text[strings.LastIndexByte(text, '/')+1:], "{")
	if t.Tenant && ambiguous(text) {
		return t, fmt.Errorf("must not have {tenant} and another placeholder in one part of the name: values of two tenants could give the same topic, got %q", text)
	}
	if t.Tenant && namesPartitions(text) {
		return t, fmt.Errorf("must not have {tenant} at the end of a name after %q, a part of it, or numbers of it: "+
			"the topic of tenant 3 would be a partition of another one, got %q", partitionInfix, text)
	}
	if !regexp.MustCompile(`^(non-)?persistent://[^/]+/[^/]+/[^/]+$`).MatchString(shape) {
		return t, fmt.Errorf("must be persistent://tenant/namespace/name, got %q", text)
	}
	return t, nil
}

// ambiguous reports whether a part of the name contains the tenant and another placeholder: their
// values may contain the separator, so that two tenants could get the same topic.
func ambiguous(text string) bool {
	for part := range strings.SplitSeq(text, "/") {
		if strings.Contains(part, "{tenant}") && strings.Count(part, "{") > 1 {
			return true
		}
	}
	return false
}

// partitionInfix precedes the number in the name of a topic's partition.
const partitionInfix = "-partition-"

// namesPartitions reports whether a tenant at the end of the name could make the topic a partition
// of another one: after partitionInfix, or after a part of it that the tenant completes. A single
// dash before the tenant is safe, because CheckTenant refuses tenants that contain the rest.
func namesPartitions(text string) bool {
	before, ok := strings.CutSuffix(text, "{tenant}")
	if !ok {
		return false
	}
	if strings.HasSuffix(strings.TrimRight(before, "0123456789"), partitionInfix) {
		return true
	}
	for n := 2; n < len(partitionInfix); n++ {
		if strings.HasSuffix(before, partitionInfix[:n]) {
			return true
		}
	}
	return false
}

// static reports whether the template has no placeholders.
func (t *Template) static() bool { return !t.Tenant && !t.PerSeries }

// render appends the topic of a series.
func (t *Template) render(dst []byte, tenant string, labels []batch.Label) []byte {
	from := len(dst)
	for _, p := range t.parts {
		switch p.kind {
		case literal:
			dst = append(dst, p.text...)
		case tenantPart:
			dst = append(dst, tenant...) // CheckTenant has checked it
		case labelPart:
			value := ""
			for i := range labels {
				if labels[i].Name == p.label {
					value = labels[i].Value
					break
				}
			}
			dst = appendSanitised(dst, value)
		}
	}
	return t.harmless(dst, from)
}

const (
	maxTopicPart = 64
	noValue      = "none" // replaces the value of a label that the series does not have
)

// appendSanitised writes a value as a part of a topic's name: letters, digits, "_", "-" and "."
// stay, any other byte becomes "_". A long value is cut, and ends with its hash, so that values
// with the same beginning stay different.
func appendSanitised(dst []byte, value string) []byte {
	if value == "" {
		return append(dst, noValue...)
	}
	short := value
	if len(value) > maxTopicPart {
		short = value[:maxTopicPart-17]
	}
	for i := range len(short) {
		c := short[i]
		if !topicByte(c) {
			c = '_'
		}
		dst = append(dst, c)
	}
	if len(short) < len(value) {
		dst = batch.AppendKey(append(dst, '-'), xxhash.Sum64String(value))
	}
	return dst
}

func topicByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.'
}

// harmless changes names with a special meaning in Pulsar, because senders could choose them:
// system topics begin with "__", and "-partition-3" names a partition of another topic. A part that
// consists only of dots could be taken for a path. harmless does not change a name without
// placeholders, which is the operator's choice.
func (t *Template) harmless(topic []byte, from int) []byte {
	for i, parts := from, 0; i < len(topic); i++ {
		if topic[i] != '/' {
			continue
		}
		if parts++; parts < 2 {
			continue // the slashes after the scheme
		}
		end := i + 1
		for end < len(topic) && topic[end] == '.' {
			end++
		}
		if end > i+1 && (end == len(topic) || topic[end] == '/') {
			for j := i + 1; j < end; j++ {
				topic[j] = '_'
			}
		}
	}
	if !t.chosen {
		return topic
	}
	slash := len(topic) - 1
	for slash > from && topic[slash] != '/' {
		slash--
	}
	name := topic[slash+1:]
	if len(name) > 1 && name[0] == '_' && name[1] == '_' {
		name[0] = 'x'
	}
	digits := len(name)
	for digits > 0 && name[digits-1] >= '0' && name[digits-1] <= '9' {
		digits--
	}
	if digits < len(name) && strings.HasSuffix(string(name[:digits]), partitionInfix) {
		topic = append(topic, '_')
	}
	return topic
}

// CheckTenant refuses tenants that cannot be part of a topic's name unchanged: a changed name, as
// from harmless and appendSanitised, could give one tenant the topics of another.
func CheckTenant(tenant string) error {
	good := tenant != "" && len(tenant) <= maxTopicPart && strings.Trim(tenant, ".") != "" && !strings.HasPrefix(tenant, "__") &&
		!strings.HasSuffix(strings.TrimRight(tenant, "0123456789"), "partition-")
	for i := range len(tenant) {
		good = good && topicByte(tenant[i])
	}
	if !good {
		return refusal.Invalid("tenant", "X-Scope-OrgID must be 1 to %d letters, digits, '_', '-' or '.', got %q", maxTopicPart, truncate.Text(tenant, maxTopicPart))
	}
	return nil
}
